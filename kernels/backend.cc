// The checked entries: validation that no implementation repeats, then the implementation.
#include "kernels/backend.h"

#include <cmath>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "kernels/checks.h"

namespace kvblend::kernels {
namespace {

constexpr std::align_val_t kHostAlignment{4096};

constexpr DataType kF32 = DataType::kF32;
constexpr DataType kBF16 = DataType::kBF16;
constexpr DataType kF16 = DataType::kF16;

// Checks that `backend` can hold such pages, and that the pages have all that the plan uses.
absl::Status CheckPagesOfPlan(absl::string_view op, const Backend& backend, const BatchPlan& plan,
                              const KvPagesView& pages) {
  const PageLayout best = backend.best_page_layout(pages.dtype, pages.page_size, pages.head_dim);
  KVBLEND_RETURN_IF_ERROR(CheckPages(op, pages, backend.has_int8_pages(), best));
  return CheckPlanFitsPages(op, plan, pages);
}

// Checks what the attention operations have in common: all arguments but outputs.
absl::Status CheckAttention(absl::string_view op, const Backend& backend, const BatchPlan& plan,
                            ConstMatrixView q, const AttentionSpec& spec, const KvPagesView& pages) {
  KVBLEND_RETURN_IF_ERROR(CheckPagesOfPlan(op, backend, plan, pages));
  KVBLEND_RETURN_IF_ERROR(CheckAttentionSpec(op, spec, pages));
  return CheckMatrix(op, "q", q, plan.num_rows(), int64_t{spec.num_heads} * pages.head_dim, {kF32});
}

// `out` must not overlap what the attention operations read besides pages.
absl::Status CheckAttentionOutput(absl::string_view op, ConstMatrixView q, const AttentionSpec& spec,
                                  ConstMatrixView out, absl::string_view name) {
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(op, q, "q", out, name));
  if (spec.sinks.data == nullptr) return absl::OkStatus();
  return CheckDisjoint(op, spec.sinks, "sinks", out, name);
}

// Checks what all operations that write KV into pages have in common.
absl::Status CheckScatter(absl::string_view op, const Backend& backend, const BatchPlan& plan,
                          const RopeTable& rope, const KvPagesView& pages) {
  KVBLEND_RETURN_IF_ERROR(CheckPagesOfPlan(op, backend, plan, pages));
  KVBLEND_RETURN_IF_ERROR(CheckPlanFitsRope(op, plan, rope));
  if (rope.head_dim() != pages.head_dim) {
    return Invalid(op, "rope.head_dim is ", rope.head_dim(), "; allowed: the pages' ", pages.head_dim);
  }
  return absl::OkStatus();
}

absl::Status CheckActivation(absl::string_view op, Activation activation) {
  if (activation <= Activation::kClampedSilu) return absl::OkStatus();
  return Invalid(op, "activation is ", static_cast<int>(activation),
                 "; allowed: kSilu, kGeluTanh, kClampedSilu");
}

absl::Status CheckLinearWeights(absl::string_view op, const PackedWeights& weights) {
  if (weights.usage() != WeightUsage::kEmbedding) return absl::OkStatus();
  return Invalid(
      op,
      "weights were packed for kEmbedding; allowed: kLinear, kTolerantLinear, kVeryTolerantLinear, "
      "kLinearAndEmbedding");
}

class RunEveryTime final : public RepeatedStep {
 public:
  absl::Status Run(const StepValues&, absl::FunctionRef<absl::Status()> operations) override {
    return operations();
  }
};

/// The sections that CorrectKv reads and writes; the latter are called k_name and v_name.
absl::Status CheckCorrection(absl::string_view op, const KvSectionView& k, const KvSectionView& v,
                             const KvCorrection& correction, const MutableKvSectionView& k_out,
                             const MutableKvSectionView& v_out, absl::string_view k_name,
                             absl::string_view v_name) {
  KVBLEND_RETURN_IF_ERROR(CheckSection(op, "k", k, KvPart::kKey, k.rows, correction.cols()));
  KVBLEND_RETURN_IF_ERROR(CheckSection(op, "v", v, KvPart::kValue, k.rows, correction.cols()));
  KVBLEND_RETURN_IF_ERROR(CheckSection(op, k_name, k_out, KvPart::kKey, k.rows, correction.cols()));
  KVBLEND_RETURN_IF_ERROR(CheckSection(op, v_name, v_out, KvPart::kValue, k.rows, correction.cols()));
  if (v.encoding != k.encoding) {
    return Invalid(op, "v is ", std::string(Name(v.encoding)), "; allowed: k's ",
                   std::string(Name(k.encoding)));
  }
  if (k_out.encoding != KvEncoding::kF32 && k_out.encoding != KvEncoding::kBF16) {
    return Invalid(op, std::string(k_name), " is ", std::string(Name(k_out.encoding)),
                   "; allowed: f32, bf16");
  }
  if (v_out.encoding != k_out.encoding) {
    return Invalid(op, std::string(v_name), " is ", std::string(Name(v_out.encoding)),
                   "; allowed: ", std::string(k_name), "'s ", std::string(Name(k_out.encoding)));
  }
  const struct {
    absl::string_view name;
    KvSectionView view;
  } sections[] = {{"k", k}, {"v", v}, {k_name, k_out}, {v_name, v_out}};
  for (int out = 2; out < 4; ++out) {
    for (int other = 0; other < out; ++other) {
      KVBLEND_RETURN_IF_ERROR(CheckSectionDisjoint(op, sections[other].view, sections[other].name,
                                                   DenseMatrix(sections[out].view), sections[out].name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLoad(absl::string_view op, const Backend& backend, const KvLoadItem& item,
                       const RopeTable& rope, const KvPagesView& pages) {
  KVBLEND_RETURN_IF_ERROR(CheckScatter(op, backend, *item.plan, rope, pages));
  const int64_t rows = item.plan->num_rows(), cols = int64_t{pages.num_kv_heads} * pages.head_dim;
  KVBLEND_RETURN_IF_ERROR(CheckSection(op, "k", item.k, KvPart::kKey, rows, cols));
  if (item.correction != nullptr) {
    return CheckCorrection(op, item.k, item.v, *item.correction, item.k_memory, item.v_memory, "k_memory",
                           "v_memory");
  }
  KVBLEND_RETURN_IF_ERROR(CheckSection(op, "v", item.v, KvPart::kValue, rows, cols));
  if (item.v.encoding == item.k.encoding) return absl::OkStatus();
  return Invalid(op, "v is ", std::string(Name(item.v.encoding)), "; allowed: k's ",
                 std::string(Name(item.k.encoding)));
}

class HostClock final : public StreamClock {
 public:
  absl::StatusOr<size_t> Mark() override {
    marks_.push_back(absl::Now());
    return marks_.size() - 1;
  }
  absl::StatusOr<double> SecondsBetween(size_t begin, size_t end) override {
    return absl::ToDoubleSeconds(marks_[end] - marks_[begin]);
  }

 private:
  std::vector<absl::Time> marks_;
};

}  // namespace

void* Backend::AllocateHost(int64_t bytes) {
  return ::operator new(static_cast<size_t>(bytes), kHostAlignment, std::nothrow);
}

void Backend::FreeHost(void* data, int64_t) { ::operator delete(data, kHostAlignment); }

std::unique_ptr<StreamClock> Backend::CreateStreamClock(Stream&) { return std::make_unique<HostClock>(); }

std::unique_ptr<RepeatedStep> Backend::CreateRepeatedStep(Stream&) {
  return std::make_unique<RunEveryTime>();
}

absl::StatusOr<std::unique_ptr<PackedWeights>> Backend::PackWeights(int64_t rows, int64_t cols,
                                                                    WeightUsage usage,
                                                                    const WeightSource& source) {
  KVBLEND_RETURN_IF_ERROR(CheckWeightShape(rows, cols));
  return DoPackWeights(rows, cols, usage, source);
}

absl::StatusOr<std::unique_ptr<RopeTable>> Backend::CreateRopeTable(const RopeSpec& spec) {
  KVBLEND_RETURN_IF_ERROR(CheckRopeSpec(spec));
  return DoCreateRopeTable(spec);
}

absl::StatusOr<std::unique_ptr<BatchPlan>> Backend::PlanBatch(const BatchSpec& spec) {
  KVBLEND_RETURN_IF_ERROR(CheckBatchSpec(spec));
  return DoPlanBatch(spec);
}

absl::Status Backend::Embed(Stream& stream, const PackedWeights& table, absl::Span<const int32_t> token_ids,
                            float scale, MatrixView out) {
  constexpr absl::string_view kOp = "Embed";
  if (!IsEmbedding(table.usage())) {
    return Invalid(kOp, "table was packed for linear layers; allowed: kEmbedding, kLinearAndEmbedding");
  }
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, token_ids.size(), table.cols(), {kF32}));
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= table.rows()) {
      return Invalid(kOp, "token_ids[", i, "] is ", token_ids[i], "; allowed: 0 .. ", table.rows() - 1);
    }
  }
  if (!std::isfinite(scale)) return Invalid(kOp, "scale is ", scale, "; allowed: finite numbers");
  return DoEmbed(stream, table, token_ids, scale, out);
}

absl::Status Backend::RmsNorm(Stream& stream, ConstMatrixView x, ConstMatrixView weight, float epsilon,
                              MatrixView out) {
  constexpr absl::string_view kOp = "RmsNorm";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, x.rows, x.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "weight", weight, 1, weight.cols, {kF32}));
  if (weight.cols <= 0 || x.cols % weight.cols != 0) {
    return Invalid(kOp, "weight.cols is ", weight.cols, "; allowed: divisors of x.cols = ", x.cols);
  }
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, x.rows, x.cols, {kF32, compute_dtype()}));
  if (!std::isfinite(epsilon) || epsilon <= 0) {
    return Invalid(kOp, "epsilon is ", epsilon, "; allowed: finite and above 0");
  }
  KVBLEND_RETURN_IF_ERROR(CheckDisjointOrInPlace(kOp, x, "x", out));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, weight, "weight", out));
  return DoRmsNorm(stream, x, weight, epsilon, out);
}

absl::Status Backend::Linear(Stream& stream, ConstMatrixView x, const PackedWeights& weights, bool accumulate,
                             MatrixView out) {
  constexpr absl::string_view kOp = "Linear";
  KVBLEND_RETURN_IF_ERROR(CheckLinearWeights(kOp, weights));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, x.rows, weights.cols(), {kF32, compute_dtype()}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, x.rows, weights.rows(), {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, x, "x", out));
  return DoLinear(stream, x, weights, accumulate, out);
}

absl::Status Backend::GatedActivation(Stream& stream, Activation activation, ConstMatrixView gate,
                                      ConstMatrixView up, MatrixView out) {
  constexpr absl::string_view kOp = "GatedActivation";
  KVBLEND_RETURN_IF_ERROR(CheckActivation(kOp, activation));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "gate", gate, gate.rows, gate.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "up", up, gate.rows, gate.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, gate.rows, gate.cols, {kF32, compute_dtype()}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjointOrInPlace(kOp, gate, "gate", out));
  KVBLEND_RETURN_IF_ERROR(CheckDisjointOrInPlace(kOp, up, "up", out));
  return DoGatedActivation(stream, activation, gate, up, out);
}

absl::Status Backend::GatedLinear(Stream& stream, ConstMatrixView x, const PackedWeights& weights,
                                  Activation activation, MatrixView both, MatrixView out) {
  constexpr absl::string_view kOp = "GatedLinear";
  KVBLEND_RETURN_IF_ERROR(CheckActivation(kOp, activation));
  KVBLEND_RETURN_IF_ERROR(CheckLinearWeights(kOp, weights));
  if (weights.rows() % 2 != 0) {
    return Invalid(kOp, "weights has ", weights.rows(), " rows; allowed: an even number");
  }
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, x.rows, weights.cols(), {kF32, compute_dtype()}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "both", both, x.rows, weights.rows(), {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, x.rows, weights.rows() / 2, {kF32, compute_dtype()}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, x, "x", out));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, x, "x", both));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, both, "both", out));
  if (x.rows == 0) return absl::OkStatus();  // no rows need no memory, and a null pointer has no columns
  return DoGatedLinear(stream, x, weights, activation, both, out);
}

absl::Status Backend::DoGatedLinear(Stream& stream, ConstMatrixView x, const PackedWeights& weights,
                                    Activation activation, MatrixView both, MatrixView out) {
  KVBLEND_RETURN_IF_ERROR(DoLinear(stream, x, weights, /*accumulate=*/false, both));
  return DoGatedActivation(stream, activation, both.Columns(0, out.cols), both.Columns(out.cols, out.cols),
                           out);
}

absl::Status Backend::AddScaled(Stream& stream, ConstMatrixView x, float scale, MatrixView out) {
  constexpr absl::string_view kOp = "AddScaled";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, out.rows, out.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, x.rows == 1 ? 1 : out.rows, out.cols, {kF32}));
  if (!std::isfinite(scale)) return Invalid(kOp, "scale is ", scale, "; allowed: finite numbers");
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, x, "x", out));
  return DoAddScaled(stream, x, scale, out);
}

absl::Status Backend::SoftCap(Stream& stream, float cap, MatrixView x) {
  constexpr absl::string_view kOp = "SoftCap";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, x.rows, x.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckSoftCap(kOp, "cap", cap));
  return DoSoftCap(stream, cap, x);
}

absl::Status Backend::Rope(Stream& stream, const BatchPlan& plan, const RopeTable& rope, int32_t num_heads,
                           MatrixView x) {
  constexpr absl::string_view kOp = "Rope";
  if (num_heads <= 0) return Invalid(kOp, "num_heads is ", num_heads, "; allowed: at least 1");
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, plan.num_rows(), num_heads * rope.head_dim(), {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckPlanFitsRope(kOp, plan, rope));
  return DoRope(stream, plan, rope, num_heads, x);
}

absl::Status Backend::KvScatter(Stream& stream, const BatchPlan& plan, const RopeTable& rope,
                                ConstMatrixView k, ConstMatrixView v, KvPagesView pages) {
  constexpr absl::string_view kOp = "KvScatter";
  KVBLEND_RETURN_IF_ERROR(CheckScatter(kOp, *this, plan, rope, pages));
  const int64_t cols = int64_t{pages.num_kv_heads} * pages.head_dim;
  const DataType of_pages = pages.dtype == DataType::kInt8 ? kF32 : pages.dtype;
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "k", k, plan.num_rows(), cols, {kF32, of_pages}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "v", v, plan.num_rows(), cols, {k.dtype}));
  return DoKvScatter(stream, plan, rope, k, v, pages);
}

absl::Status Backend::KvLoad(Stream& stream, const BatchPlan& plan, const RopeTable& rope, KvSectionView k,
                             KvSectionView v, KvPagesView pages) {
  KVBLEND_RETURN_IF_ERROR(CheckLoad("KvLoad", *this, {&plan, k, v}, rope, pages));
  return DoKvLoad(stream, plan, rope, k, v, pages);
}

absl::StatusOr<std::unique_ptr<KvCorrection>> Backend::CreateKvCorrection(const KvCorrectionSpec& spec) {
  KVBLEND_RETURN_IF_ERROR(CheckKvCorrectionSpec(spec));
  return DoCreateKvCorrection(spec);
}

absl::Status Backend::CorrectKv(Stream& stream, KvSectionView k, KvSectionView v,
                                const KvCorrection& correction, MutableKvSectionView k_out,
                                MutableKvSectionView v_out) {
  KVBLEND_RETURN_IF_ERROR(CheckCorrection("CorrectKv", k, v, correction, k_out, v_out, "k_out", "v_out"));
  return DoCorrectKv(stream, k, v, correction, k_out, v_out);
}

absl::Status Backend::KvLoadCorrected(Stream& stream, const BatchPlan& plan, const RopeTable& rope,
                                      KvSectionView k, KvSectionView v, const KvCorrection& correction,
                                      MutableKvSectionView k_memory, MutableKvSectionView v_memory,
                                      KvPagesView pages) {
  const KvLoadItem item{&plan, k, v, &correction, k_memory, v_memory};
  KVBLEND_RETURN_IF_ERROR(CheckLoad("KvLoadCorrected", *this, item, rope, pages));
  return DoKvLoadCorrected(stream, plan, rope, k, v, correction, k_memory, v_memory, pages);
}

absl::Status Backend::DoKvLoadCorrected(Stream& stream, const BatchPlan& plan, const RopeTable& rope,
                                        KvSectionView k, KvSectionView v, const KvCorrection& correction,
                                        MutableKvSectionView k_memory, MutableKvSectionView v_memory,
                                        KvPagesView pages) {
  KVBLEND_RETURN_IF_ERROR(DoCorrectKv(stream, k, v, correction, k_memory, v_memory));
  return DoKvLoad(stream, plan, rope, k_memory, v_memory, pages);
}

absl::Status Backend::KvLoadAll(Stream& stream, absl::Span<const KvLoadItem> items, const RopeTable& rope,
                                KvPagesView pages) {
  for (const KvLoadItem& item : items) {
    KVBLEND_RETURN_IF_ERROR(CheckLoad("KvLoadAll", *this, item, rope, pages));
  }
  return DoKvLoadAll(stream, items, rope, pages);
}

absl::Status Backend::DoKvLoadAll(Stream& stream, absl::Span<const KvLoadItem> items, const RopeTable& rope,
                                  KvPagesView pages) {
  for (const KvLoadItem& item : items) {
    KVBLEND_RETURN_IF_ERROR(item.correction == nullptr
                                ? DoKvLoad(stream, *item.plan, rope, item.k, item.v, pages)
                                : DoKvLoadCorrected(stream, *item.plan, rope, item.k, item.v,
                                                    *item.correction, item.k_memory, item.v_memory, pages));
  }
  return absl::OkStatus();
}

absl::Status Backend::EncodeKv(Stream& stream, ConstMatrixView in, MutableKvSectionView out) {
  constexpr absl::string_view kOp = "EncodeKv";
  KVBLEND_RETURN_IF_ERROR(CheckSection(kOp, "out", out, out.part, out.rows, out.cols));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "in", in, out.rows, out.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckSectionDisjoint(kOp, out, "out", in, "in"));
  return DoEncodeKv(stream, in, out);
}

absl::Status Backend::SelectiveAttention(Stream& stream, const BatchPlan& plan, ConstMatrixView q,
                                         const AttentionSpec& spec, KvPagesView pages, MatrixView out) {
  constexpr absl::string_view kOp = "SelectiveAttention";
  KVBLEND_RETURN_IF_ERROR(CheckAttention(kOp, *this, plan, q, spec, pages));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, q.rows, q.cols, {kF32, compute_dtype()}));
  KVBLEND_RETURN_IF_ERROR(CheckAttentionOutput(kOp, q, spec, out, "out"));
  return DoSelectiveAttention(stream, plan, q, spec, pages, out);
}

absl::Status Backend::AttentionMass(Stream& stream, const BatchPlan& plan, ConstMatrixView q,
                                    const AttentionSpec& spec, KvPagesView pages, MatrixView out) {
  constexpr absl::string_view kOp = "AttentionMass";
  KVBLEND_RETURN_IF_ERROR(CheckAttention(kOp, *this, plan, q, spec, pages));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, 1, plan.total_kv_len(), {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckAttentionOutput(kOp, q, spec, out, "out"));
  return DoAttentionMass(stream, plan, q, spec, pages, out);
}

absl::Status Backend::SelectiveAttentionWithMass(Stream& stream, const BatchPlan& plan, ConstMatrixView q,
                                                 const AttentionSpec& spec, KvPagesView pages, MatrixView out,
                                                 MatrixView mass) {
  constexpr absl::string_view kOp = "SelectiveAttentionWithMass";
  KVBLEND_RETURN_IF_ERROR(CheckAttention(kOp, *this, plan, q, spec, pages));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, q.rows, q.cols, {kF32, compute_dtype()}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "mass", mass, 1, plan.total_kv_len(), {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckAttentionOutput(kOp, q, spec, out, "out"));
  KVBLEND_RETURN_IF_ERROR(CheckAttentionOutput(kOp, q, spec, mass, "mass"));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, out, "out", mass, "mass"));
  return DoSelectiveAttentionWithMass(stream, plan, q, spec, pages, out, mass);
}

absl::Status Backend::DoSelectiveAttentionWithMass(Stream& stream, const BatchPlan& plan, ConstMatrixView q,
                                                   const AttentionSpec& spec, KvPagesView pages,
                                                   MatrixView out, MatrixView mass) {
  KVBLEND_RETURN_IF_ERROR(DoAttentionMass(stream, plan, q, spec, pages, mass));
  return DoSelectiveAttention(stream, plan, q, spec, pages, out);
}

absl::Status Backend::KvDeviation(Stream& stream, ConstMatrixView fresh, KvSectionView stored,
                                  MatrixView out) {
  constexpr absl::string_view kOp = "KvDeviation";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "fresh", fresh, fresh.rows, fresh.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckSection(kOp, "stored", stored, stored.part, fresh.rows, fresh.cols));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, 1, fresh.rows, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, fresh, "fresh", out));
  KVBLEND_RETURN_IF_ERROR(CheckSectionDisjoint(kOp, stored, "stored", out, "out"));
  return DoKvDeviation(stream, fresh, stored, out);
}

absl::Status Backend::SpreadDeviation(Stream& stream, const BatchPlan& plan, const RopeTable& rope,
                                      absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                      const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                      KvPagesView pages) {
  constexpr absl::string_view kOp = "SpreadDeviation";
  KVBLEND_RETURN_IF_ERROR(CheckScatter(kOp, *this, plan, rope, pages));
  KVBLEND_RETURN_IF_ERROR(CheckSpreadRanges(kOp, ranges, plan, rope));
  KVBLEND_RETURN_IF_ERROR(CheckSpread(kOp, "keys", keys));
  KVBLEND_RETURN_IF_ERROR(CheckSpread(kOp, "values", values));
  const int64_t cols = int64_t{pages.num_kv_heads} * pages.head_dim;
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "k", k, plan.num_rows(), cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "v", v, plan.num_rows(), cols, {kF32}));
  return DoSpreadDeviation(stream, plan, rope, ranges, keys, values, k, v, pages);
}

absl::Status Backend::ValueLengths(Stream& stream, const BatchPlan& plan, KvPagesView pages, MatrixView out) {
  constexpr absl::string_view kOp = "ValueLengths";
  KVBLEND_RETURN_IF_ERROR(CheckPagesOfPlan(kOp, *this, plan, pages));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, 1, plan.total_kv_len(), {kF32}));
  return DoValueLengths(stream, plan, pages, out);
}

absl::Status Backend::MassScores(Stream& stream, ConstMatrixView mass, ConstMatrixView lengths,
                                 absl::Span<const ColumnRange> counted, absl::Span<const ColumnRange> wanted,
                                 MatrixView out) {
  constexpr absl::string_view kOp = "MassScores";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "mass", mass, mass.rows, mass.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "lengths", lengths, mass.rows, mass.cols, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckColumns(kOp, "counted", counted, mass.cols));
  KVBLEND_RETURN_IF_ERROR(CheckColumns(kOp, "wanted", wanted, mass.cols));
  int64_t columns = 0;
  for (const ColumnRange& range : wanted) columns += range.end - range.begin;
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, 1, columns, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, mass, "mass", out));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, lengths, "lengths", out));
  return DoMassScores(stream, mass, lengths, counted, wanted, out);
}

absl::Status Backend::SelectTopK(Stream& stream, ConstMatrixView scores, IndicesView out) {
  constexpr absl::string_view kOp = "SelectTopK";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "scores", scores, 1, scores.cols, {kF32}));
  constexpr int64_t kMaxScores = std::numeric_limits<int32_t>::max();
  if (scores.cols > kMaxScores) {
    return Invalid(kOp, "scores.cols is ", scores.cols, "; allowed: up to ", kMaxScores);
  }
  if (out.size < 0 || out.size > scores.cols) {
    return Invalid(kOp, "out.size is ", out.size, "; allowed: 0 .. scores.cols = ", scores.cols);
  }
  // A matrix of elements of the same size stands for the indices.
  const MatrixView indices{out.data, kF32, 1, out.size, out.size};
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", indices, 1, out.size, {kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, scores, "scores", indices));
  return DoSelectTopK(stream, scores, out);
}

absl::Status Backend::SampleTokens(Stream& stream, ConstMatrixView logits,
                                   absl::Span<const SamplingSpec> specs, absl::Span<SampledToken> out) {
  constexpr absl::string_view kOp = "SampleTokens";
  if (logits.cols < 1 || logits.cols > kMaxSampledVocab) {
    return Invalid(kOp, "logits.cols is ", logits.cols, "; allowed: 1 .. ", kMaxSampledVocab);
  }
  KVBLEND_RETURN_IF_ERROR(
      CheckMatrix(kOp, "logits", logits, static_cast<int64_t>(specs.size()), logits.cols, {kF32}));
  if (out.size() != specs.size()) {
    return Invalid(kOp, "out has ", out.size(), " tokens; allowed: one per spec = ", specs.size());
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    KVBLEND_RETURN_IF_ERROR(CheckSamplingSpec(kOp, i, specs[i], logits.cols));
  }
  return DoSampleTokens(stream, logits, specs, out);
}

absl::Status Backend::GatherRows(Stream& stream, ConstMatrixView in, absl::Span<const int32_t> row_indices,
                                 MatrixView out) {
  constexpr absl::string_view kOp = "GatherRows";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "in", in, in.rows, in.cols, {kF32, kBF16, kF16}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, row_indices.size(), in.cols, {in.dtype}));
  for (size_t i = 0; i < row_indices.size(); ++i) {
    if (row_indices[i] < 0 || row_indices[i] >= in.rows) {
      return Invalid(kOp, "row_indices[", i, "] is ", row_indices[i], "; allowed: 0 .. ", in.rows - 1);
    }
  }
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, in, "in", out));
  return DoGatherRows(stream, in, row_indices, out);
}

}  // namespace kvblend::kernels
