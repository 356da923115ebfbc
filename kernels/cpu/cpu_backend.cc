// Wires the operations of the CPU backend together: each unpacks its arguments, splits its rows over the
// threads and leaves the arithmetic to simd.h, linear.h and attention.h.
#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/checks.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/kv/correction.h"
#include "kernels/cpu/kv/sections.h"
#include "kernels/cpu/kv/spread.h"
#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/packed_weights.h"
#include "kernels/cpu/machine/available_processors.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/cpu/machine/instruction_set.h"
#include "kernels/cpu/machine/onednn.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/batch_plan.h"
#include "kernels/host/host_backend.h"
#include "kernels/host/sample_row.h"

namespace kvblend::kernels {
namespace {

constexpr int kMaxThreads = 1024;

const float* F32Row(ConstMatrixView m, int64_t row) { return static_cast<const float*>(m.Rows(row, 1).data); }

// Names the kernels that multiply codes; empty where there are none.
std::string DescribeCodes(const CpuContext& context) {
  const auto named = [](const char* what, const CodeKernels& kernels) {
    return absl::StrCat(what, " (", std::string(kernels.name), ")");
  };
  if (context.codes != nullptr) return absl::StrCat(named("int8", *context.codes), " and ");
  std::string kinds;
  if (context.pairs != nullptr) kinds = named("int16", *context.pairs);
  if (context.tolerant != nullptr) {
    absl::StrAppend(&kinds, kinds.empty() ? "" : ", ", named("asymmetric int8", *context.tolerant));
  }
  return kinds.empty() ? "" : kinds + " and ";
}

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(int num_threads, std::string weights_folder, const CpuArithmetic& arithmetic,
             const Tiles& bf16_tiles, const Tiles* int16_tiles)
      : context_(num_threads, std::move(weights_folder), arithmetic, simd::GetTiles(DataType::kF32),
                 bf16_tiles, int16_tiles) {}

  int num_threads() const { return context_.pool.num_threads(); }

  std::string_view name() const override { return "cpu"; }
  std::string Describe() const override {
    return absl::StrCat(
        "cpu: ", num_threads(), " threads, GEMM in ", DescribeCodes(context_),
        std::string(Name(context_.value_dtype)), " (oneDNN ", OneDnnDescription(), ")",
        context_.few_pairs == nullptr
            ? ""
            : absl::StrCat(", of few rows in int16 (", std::string(context_.few_pairs->name), ")"),
        ", SIMD ", simd::TargetName(), ", attention in ",
        std::string(context_.int16_tiles != nullptr ? context_.int16_tiles->name
                                                    : context_.TilesFor(context_.gemm_dtype).name),
        " tiles");
  }
  DataType compute_dtype() const override { return context_.gemm_dtype; }
  DataType best_page_dtype() const override {
    return context_.int16_tiles != nullptr ? DataType::kBF16 : compute_dtype();
  }
  bool has_int8_pages() const override { return true; }
  PageLayout best_page_layout(DataType dtype, int32_t page_size, int32_t head_dim) const override {
    // Both kinds of attention must multiply pairs of bf16.
    const bool pairs = context_.TilesFor(context_.gemm_dtype).dtype == DataType::kBF16 && simd::HasBf16Dots();
    return pairs && KvPagesView::HasTiles(dtype, page_size, head_dim) ? PageLayout::kTiles
                                                                      : PageLayout::kRows;
  }

 protected:
  absl::StatusOr<std::unique_ptr<PackedWeights>> DoPackWeights(int64_t rows, int64_t cols, WeightUsage usage,
                                                               const WeightSource& source) override {
    const OneDnnThreadScope scope;
    return CpuWeights::Create(context_, rows, cols, usage, source);
  }
  absl::Status DoEmbed(Stream&, const PackedWeights& table, absl::Span<const int32_t> token_ids, float scale,
                       MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* weights, CpuWeights::From(table, context_.value_dtype));
    ForRows(context_.pool, out.rows, out.cols * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        auto* row = static_cast<float*>(out.Rows(i, 1).data);
        weights->ReadEmbeddingRow(token_ids[i], row);
        if (scale != 1) simd::ScaleRow(row, scale, row, DataType::kF32, out.cols);
      }
    });
    return absl::OkStatus();
  }

  absl::Status DoRmsNorm(Stream&, ConstMatrixView x, ConstMatrixView weight, float epsilon,
                         MatrixView out) override {
    ForRows(context_.pool, x.rows, x.cols * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t c = 0; c < x.cols; c += weight.cols) {
          simd::RmsNormRow(F32Row(x, i) + c, F32Row(weight, 0), epsilon, weight.cols, out.dtype,
                           out.Rows(i, 1).Columns(c, weight.cols).data);
        }
      }
    });
    return absl::OkStatus();
  }

  absl::Status DoLinear(Stream&, ConstMatrixView x, const PackedWeights& packed, bool accumulate,
                        MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* weights, CpuWeights::From(packed, context_.value_dtype));
    const OneDnnThreadScope scope;
    return CpuLinear(context_, x, *weights, accumulate, out);
  }

  absl::Status DoGatedLinear(Stream& stream, ConstMatrixView x, const PackedWeights& packed,
                             Activation activation, MatrixView both, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* weights, CpuWeights::From(packed, context_.value_dtype));
    if (TakesGatedPairs(context_, x.rows, *weights)) {
      return PairedGatedLinear(context_, x, *weights, activation, out);
    }
    if (TakesGatedAsymmetricCodes(context_, x.rows, *weights)) {
      return AsymmetricGatedLinear(context_, x, *weights, activation, out);
    }
    return Backend::DoGatedLinear(stream, x, packed, activation, both, out);
  }

  absl::StatusOr<std::unique_ptr<PackedExperts>> DoPackExperts(int32_t num_experts, int64_t rows,
                                                               int64_t cols,
                                                               const WeightSource& source) override {
    const OneDnnThreadScope scope;
    return CpuExperts::Create(context_, num_experts, rows, cols, source);
  }

  absl::Status DoChooseExperts(Stream&, ConstMatrixView logits, const RoutingSpec& spec, IndicesView experts,
                               MatrixView weights) override {
    CpuChooseExperts(context_, logits, spec, experts, weights);
    return absl::OkStatus();
  }

  absl::Status DoExpertLinear(Stream&, ConstMatrixView x, const PackedExperts& packed, IndicesView experts,
                              MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* weights, CpuExperts::From(packed, context_.value_dtype));
    const OneDnnThreadScope scope;
    return CpuExpertLinear(context_, x, *weights, experts, out);
  }

  absl::Status DoSumExperts(Stream&, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                            MatrixView out) override {
    CpuSumExperts(context_, x, weights, accumulate, out);
    return absl::OkStatus();
  }

  absl::Status DoAddExpertBias(Stream&, ConstMatrixView bias, IndicesView experts, MatrixView out) override {
    return CpuAddExpertBias(context_, bias, experts, out);
  }

  absl::Status DoGatedActivation(Stream&, Activation activation, ConstMatrixView gate, ConstMatrixView up,
                                 MatrixView out) override {
    ForRows(context_.pool, out.rows, out.cols * 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        simd::GatedActivationRows(activation, F32Row(gate, i), F32Row(up, i), /*stride=*/0, out.Rows(i, 1));
      }
    });
    return absl::OkStatus();
  }

  absl::Status DoAddScaled(Stream&, ConstMatrixView x, float scale, MatrixView out) override {
    ForRows(context_.pool, out.rows, out.cols * 12, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        simd::AddScaledRow(F32Row(x, x.rows == 1 ? 0 : i), scale, static_cast<float*>(out.Rows(i, 1).data),
                           out.cols);
      }
    });
    return absl::OkStatus();
  }

  absl::Status DoSoftCap(Stream&, float cap, MatrixView x) override {
    ForRows(context_.pool, x.rows, x.cols * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        simd::SoftCapRow(static_cast<float*>(x.Rows(i, 1).data), cap, x.cols);
      }
    });
    return absl::OkStatus();
  }

  absl::Status DoRope(Stream&, const BatchPlan& batch, const RopeTable& table, int32_t num_heads,
                      MatrixView x) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    ForRows(context_.pool, x.rows, x.cols * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t position = plan->position(i);
        simd::RotateHeads(rope->layout(), rope->cos(position), rope->sin(position), rope->head_dim(),
                          num_heads, static_cast<float*>(x.Rows(i, 1).data));
      }
    });
    return absl::OkStatus();
  }

  absl::Status DoKvScatter(Stream&, const BatchPlan& batch, const RopeTable& table, ConstMatrixView k,
                           ConstMatrixView v, KvPagesView pages) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    CpuKvScatter(context_, {*plan, *rope, pages}, k, v);
    return absl::OkStatus();
  }

  absl::Status DoKvLoad(Stream&, const BatchPlan& batch, const RopeTable& table, KvSectionView k,
                        KvSectionView v, KvPagesView pages) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    CpuKvLoad(context_, {*plan, *rope, pages}, k, v);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<KvCorrection>> DoCreateKvCorrection(const KvCorrectionSpec& spec) override {
    return std::make_unique<CpuKvCorrection>(spec);
  }

  absl::Status DoCorrectKv(Stream&, KvSectionView k, KvSectionView v, const KvCorrection& correction,
                           MutableKvSectionView k_out, MutableKvSectionView v_out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* own, OfOwnKind<CpuKvCorrection>(correction, "the KvCorrection was"));
    CpuCorrectKv(context_, k, v, *own, k_out, v_out);
    return absl::OkStatus();
  }

  absl::Status DoKvLoadCorrected(Stream&, const BatchPlan& batch, const RopeTable& table, KvSectionView k,
                                 KvSectionView v, const KvCorrection& correction,
                                 MutableKvSectionView k_memory, MutableKvSectionView v_memory,
                                 KvPagesView pages) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    KVBLEND_ASSIGN_OR_RETURN(const auto* own, OfOwnKind<CpuKvCorrection>(correction, "the KvCorrection was"));
    CpuKvLoadCorrected(context_, {*plan, *rope, pages}, k, v, *own, k_memory, v_memory);
    return absl::OkStatus();
  }

  absl::Status DoEncodeKv(Stream&, ConstMatrixView in, MutableKvSectionView out) override {
    CpuEncodeKv(context_, in, out);
    return absl::OkStatus();
  }

  absl::Status DoSelectiveAttention(Stream&, const BatchPlan& batch, ConstMatrixView q,
                                    const AttentionSpec& spec, KvPagesView pages, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    return CpuSelectiveAttention(context_, {*plan, q, spec, pages}, out);
  }

  absl::Status DoAttentionMass(Stream&, const BatchPlan& batch, ConstMatrixView q, const AttentionSpec& spec,
                               KvPagesView pages, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    return CpuAttentionMass(context_, {*plan, q, spec, pages}, out);
  }

  absl::Status DoSpreadDeviation(Stream&, const BatchPlan& batch, const RopeTable& table,
                                 absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                 const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                 KvPagesView pages) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    KVBLEND_ASSIGN_OR_RETURN(const auto* rope, HostRopeTable::From(table));
    CpuSpreadDeviation(context_, {*plan, *rope, pages}, ranges, keys, values, k, v);
    return absl::OkStatus();
  }

  absl::Status DoValueLengths(Stream&, const BatchPlan& batch, KvPagesView pages, MatrixView out) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    CpuValueLengths(context_, *plan, pages, static_cast<float*>(out.data));
    return absl::OkStatus();
  }

  absl::Status DoSelectiveAttentionWithMass(Stream&, const BatchPlan& batch, ConstMatrixView q,
                                            const AttentionSpec& spec, KvPagesView pages, MatrixView out,
                                            MatrixView mass) override {
    KVBLEND_ASSIGN_OR_RETURN(const auto* plan, HostBatchPlan::From(batch));
    return CpuSelectiveAttentionWithMass(context_, {*plan, q, spec, pages}, out, mass);
  }

  absl::Status DoKvDeviation(Stream&, ConstMatrixView fresh, KvSectionView stored, MatrixView out) override {
    CpuKvDeviation(context_, fresh, stored, static_cast<float*>(out.data));
    return absl::OkStatus();
  }

  absl::Status DoSelectTopK(Stream&, ConstMatrixView scores, IndicesView out) override {
    const float* values = F32Row(scores, 0);
    const auto rank = [values](int32_t i) {
      return std::isnan(values[i]) ? -std::numeric_limits<float>::infinity() : values[i];
    };
    std::vector<int32_t> order(scores.cols);
    std::iota(order.begin(), order.end(), 0);
    if (out.size < scores.cols) {
      std::nth_element(order.begin(), order.begin() + out.size, order.end(), [&](int32_t a, int32_t b) {
        const float rank_a = rank(a), rank_b = rank(b);
        return rank_a != rank_b ? rank_a > rank_b : a < b;
      });
    }
    std::sort(order.begin(), order.begin() + out.size);
    std::copy_n(order.begin(), out.size, out.data);
    return absl::OkStatus();
  }

  absl::Status DoSampleTokens(Stream&, ConstMatrixView logits, absl::Span<const SamplingSpec> specs,
                              absl::Span<SampledToken> out) override {
    ForRows(context_.pool, logits.rows, logits.cols * 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = SampleRow({F32Row(logits, i), static_cast<size_t>(logits.cols)}, specs[i]);
      }
    });
    return absl::OkStatus();
  }

  absl::Status DoGatherRows(Stream&, ConstMatrixView in, absl::Span<const int32_t> row_indices,
                            MatrixView out) override {
    const int64_t row_bytes = in.cols * SizeOf(in.dtype);
    ForRows(context_.pool, out.rows, row_bytes * 2, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(out.Rows(i, 1).data, in.Rows(row_indices[i], 1).data, row_bytes);
      }
    });
    return absl::OkStatus();
  }

 private:
  CpuContext context_;
};

// In the words of --gemm and KVBLEND_CPU, which may allow less than the processor has.
absl::Status GemmIsNotHere(absl::string_view gemm, absl::string_view needs) {
  std::string best = "less";  // than any name stands for
  for (const char* name : {"portable", "avx2", "avx_vnni", "avx512", "amx"}) {
    const InstructionSet set = ParseInstructionSet(name).value();
    if (set <= AllowedInstructionSet() && HasInstructions(set)) best = name;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "gemm is '", gemm, "', which needs ", needs, "; this processor has ", best, "; allowed here: auto, ",
      OneDnnSupportsBF16() ? "bf16, " : "", "f32", BestCodeKernels() != nullptr ? ", int16, int8" : ""));
}

// tiles: in place of the best of their kind; null: none.
absl::StatusOr<std::unique_ptr<Backend>> Create(const CpuBackendOptions& options, const Tiles* tiles) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("num_threads is ", options.num_threads,
                                                   "; allowed: 0 (one per available processor) .. ",
                                                   kMaxThreads));
  }
  KVBLEND_RETURN_IF_ERROR(ApplyInstructionSetLimit());
  CpuArithmetic arithmetic;
  auto& [gemm, values, codes, pairs, few_pairs, tolerant] = arithmetic;
  switch (options.gemm) {
    case CpuBackendOptions::Gemm::kInt8:
      codes = BestCodeKernels();
      if (codes == nullptr) {
        return GemmIsNotHere("int8", "AVX2");
      }
      gemm = OneDnnHasFastBF16() ? DataType::kBF16 : DataType::kF32;
      break;
    case CpuBackendOptions::Gemm::kInt16:
      pairs = BestCodeKernels();
      if (pairs == nullptr) {
        return GemmIsNotHere("int16", "AVX2");
      }
      break;
    case CpuBackendOptions::Gemm::kAuto: {
      const CodeKernels* kernels = FasterThanF32Kernels();
      gemm = OneDnnHasFastBF16() ? DataType::kBF16 : DataType::kF32;
      (gemm == DataType::kF32 ? pairs : few_pairs) = kernels;
      if (kernels != nullptr && kernels->HasAsymmetric() && !OneDnnHasAmx()) tolerant = kernels;
      break;
    }
    case CpuBackendOptions::Gemm::kF32:
      break;
    case CpuBackendOptions::Gemm::kBF16:
      if (!OneDnnSupportsBF16()) {
        return GemmIsNotHere("bf16", "AVX-512");
      }
      gemm = DataType::kBF16;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("gemm is ", static_cast<int>(options.gemm),
                                                     "; allowed: auto, bf16, f32, int16, int8"));
  }
  // Weights that are no codes take half the memory in bf16.
  const bool chooses = options.gemm == CpuBackendOptions::Gemm::kAuto || codes != nullptr;
  values = chooses && OneDnnHasBF16Instructions() ? DataType::kBF16 : gemm;
  const int num_threads =
      options.num_threads == 0 ? std::min(AvailableProcessors(), kMaxThreads) : options.num_threads;
  // Attention is exact to f32 unless activations are rounded.
  const bool rounds = codes != nullptr || pairs != nullptr;
  const Tiles* int16 = rounds && gemm == DataType::kF32 ? simd::GetInt16Tiles() : nullptr;
  if (tiles != nullptr && tiles->codes) int16 = tiles;
  const bool own_bf16 = tiles != nullptr && !tiles->codes;
  auto backend = std::make_unique<CpuBackend>(num_threads, options.weights_folder, arithmetic,
                                              own_bf16 ? *tiles : BestTiles(DataType::kBF16), int16);
  if (backend->num_threads() == num_threads) return backend;
  return absl::ResourceExhaustedError(absl::StrCat(
      "num_threads is ", num_threads, ", of which the system lets this process start ",
      backend->num_threads(),
      "; allowed: as many as its limits of threads (ulimit -u, a container's pids) and of memory leave"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options) {
  return Create(options, nullptr);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackendWithTiles(const CpuBackendOptions& options,
                                                                   const Tiles& tiles) {
  return Create(options, &tiles);
}

}  // namespace kvblend::kernels
