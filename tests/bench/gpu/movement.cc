#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/bench/gpu/inputs.h"
#include "tests/bench/gpu/operations.h"

namespace kvblend::gpu_bench {
namespace {

using kernels::DataType;
using kernels::KvEncoding;
using kernels::KvPart;

constexpr double kEqualBits = 0;
constexpr double kFp32Bound = 1e-6;   // a few roundings of fp32, in whatever order
constexpr double kBf16Bound = 0.004;  // of one rounding to bf16

class MovementBench {
 public:
  static absl::StatusOr<MovementBench> Create(Bench& bench) {
    MovementBench movement(bench);
    KVBLEND_ASSIGN_OR_RETURN(movement.kv_, PagedKv::Create(bench));
    KVBLEND_ASSIGN_OR_RETURN(movement.rope_, MakeRope(bench));
    KVBLEND_ASSIGN_OR_RETURN(movement.plan_, movement.kv_.Plan(bench, Range(0, movement.sizes_.tokens)));
    return movement;
  }

  absl::Status KvLoad(KvEncoding encoding) {
    KVBLEND_ASSIGN_OR_RETURN(Section k, Store(encoding, KvPart::kKey, 21));
    KVBLEND_ASSIGN_OR_RETURN(Section v, Store(encoding, KvPart::kValue, 22));
    const Work work = {.operation = "KvLoad",
                       .shape = absl::StrCat(std::string(kernels::Name(encoding)), ", ", KvShape()),
                       .bytes = k.bytes() + v.bytes() + PageBytes() + RopeBytes(),
                       .error_bound = kEqualBits};
    return bench_.Compare(work, kv_, [&](const Side& on) {
      return on.backend.KvLoad(on.stream, plan_.On(on), rope_.On(on), k.On(on), v.On(on), kv_.On(on));
    });
  }

  absl::Status CorrectKv(int64_t rank) {
    const int64_t channels = 2 * kv_cols();
    KVBLEND_ASSIGN_OR_RETURN(Section k, Store(KvEncoding::kInt8, KvPart::kKey, 32));
    KVBLEND_ASSIGN_OR_RETURN(Section v, Store(KvEncoding::kInt8, KvPart::kValue, 33));
    KVBLEND_ASSIGN_OR_RETURN(Mirror k_out, Mirror::Zeros(bench_, DataType::kF32, tokens(), kv_cols()));
    KVBLEND_ASSIGN_OR_RETURN(Mirror v_out, Mirror::Zeros(bench_, DataType::kF32, tokens(), kv_cols()));
    std::vector<float> weights(channels * std::max<int64_t>(rank, kernels::kNumKvCorrectionPlaces));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i * 37 % 101) * 2e-4f - 0.01f;
    const absl::Span<const float> values(weights);
    const kernels::KvCorrectionSpec spec{.cols = kv_cols(),
                                         .rank = rank,
                                         .scale = values.first(channels),
                                         .offset = values.first(kernels::kNumKvCorrectionPlaces * channels),
                                         .down = values.first(channels * rank),
                                         .up = values.first(channels * rank)};
    KVBLEND_ASSIGN_OR_RETURN(const auto correction,
                             MakeBoth<kernels::KvCorrection>(bench_, [&](kernels::Backend& backend) {
                               return backend.CreateKvCorrection(spec);
                             }));
    const Work work = {.operation = "CorrectKv",
                       .shape = absl::StrCat("int8 to f32, rank ", rank, ", ", KvShape()),
                       .flops = 2.0 * static_cast<double>(tokens() * channels * (2 * rank + 1)),
                       .bytes = k.bytes() + v.bytes() + 4.0 * static_cast<double>(tokens() * channels),
                       .error_bound = kBf16Bound};  // what the map multiplies
    return bench_.Compare(work, k_out, [&](const Side& on) {
      const auto dense = [&](Mirror& out, KvPart part) {
        return kernels::MutableKvSectionView{out.On(on).data, KvEncoding::kF32, part, tokens(), kv_cols()};
      };
      return on.backend.CorrectKv(on.stream, k.On(on), v.On(on), correction.On(on),
                                  dense(k_out, KvPart::kKey), dense(v_out, KvPart::kValue));
    });
  }

  absl::Status KvScatter() {
    KVBLEND_ASSIGN_OR_RETURN(Mirror k, Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), 23));
    KVBLEND_ASSIGN_OR_RETURN(Mirror v, Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), 24));
    const Work work = {
        .operation = "KvScatter",
        .shape = KvShape(),
        .bytes = 2.0 * static_cast<double>(tokens() * kv_cols()) * 4 + PageBytes() + RopeBytes(),
        .error_bound = kEqualBits};
    return bench_.Compare(work, kv_, [&](const Side& on) {
      return on.backend.KvScatter(on.stream, plan_.On(on), rope_.On(on), k.On(on), v.On(on), kv_.On(on));
    });
  }

  absl::Status KvDeviation() {
    KVBLEND_ASSIGN_OR_RETURN(Mirror fresh, Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), 25));
    KVBLEND_ASSIGN_OR_RETURN(Section stored, Store(KvEncoding::kInt8, KvPart::kValue, 26));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench_, DataType::kF32, 1, tokens()));
    const Work work = {.operation = "KvDeviation",
                       .shape = absl::StrCat("f32 against int8, [", tokens(), ", ", kv_cols(), "]"),
                       .bytes = static_cast<double>(tokens() * (kv_cols() + 1) * 4) + stored.bytes(),
                       .error_bound = kFp32Bound};
    return bench_.Compare(work, out, [&](const Side& on) {
      return on.backend.KvDeviation(on.stream, fresh.On(on), stored.On(on), out.On(on));
    });
  }

  // Five chunks, of whose tokens every seventh passes its deviation on.
  absl::Status SpreadDeviation() {
    KVBLEND_ASSIGN_OR_RETURN(PagedKv kv, PagedKv::Create(bench_, 34));
    std::vector<int32_t> rows;
    for (int32_t row = 0; row < sizes_.tokens; row += 7) rows.push_back(row);
    std::vector<kernels::ColumnRange> chunks;
    for (int32_t i = 0; i < 5; ++i) chunks.push_back({sizes_.tokens * i / 5, sizes_.tokens * (i + 1) / 5});
    KVBLEND_ASSIGN_OR_RETURN(const auto plan, kv.Plan(bench_, rows));
    const auto fresh_rows = static_cast<int64_t>(rows.size());
    KVBLEND_ASSIGN_OR_RETURN(Mirror k, Mirror::Random(bench_, DataType::kF32, fresh_rows, kv_cols(), 35));
    KVBLEND_ASSIGN_OR_RETURN(Mirror v, Mirror::Random(bench_, DataType::kF32, fresh_rows, kv_cols(), 36));
    const Work work = {.operation = "SpreadDeviation",
                       .shape = absl::StrCat(fresh_rows, " rows, ", KvShape()),
                       .bytes = 2 * PageBytes() + RopeBytes(),
                       .error_bound = kBf16Bound};
    return bench_.Compare(work, kv, [&](const Side& on) {
      return on.backend.SpreadDeviation(on.stream, plan.On(on), rope_.On(on), chunks, {.anywhere = 0},
                                        {.anywhere = 0.05f}, k.On(on), v.On(on), kv.On(on));
    });
  }

  absl::Status RmsNorm() {
    const int64_t cols = sizes_.hidden_dim;
    KVBLEND_ASSIGN_OR_RETURN(Mirror x, Mirror::Random(bench_, DataType::kF32, tokens(), cols, 27));
    KVBLEND_ASSIGN_OR_RETURN(Mirror weight, Mirror::Random(bench_, DataType::kF32, 1, cols, 28));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Rounded(cols));
    const Work work = {.operation = "RmsNorm",
                       .shape = absl::StrCat("f32 to bf16, [", tokens(), ", ", cols, "]"),
                       .bytes = static_cast<double>(tokens() * cols * (4 + 2) + cols * 4),
                       .error_bound = kBf16Bound};
    return bench_.Compare(work, out, [&](const Side& on) {
      return on.backend.RmsNorm(on.stream, x.On(on), weight.On(on), 1e-5f, out.On(on));
    });
  }

  absl::Status Rope() {
    const int64_t cols = int64_t{sizes_.num_heads} * sizes_.head_dim;
    KVBLEND_ASSIGN_OR_RETURN(Mirror x, Mirror::Random(bench_, DataType::kF32, tokens(), cols, 29));
    const Work work = {.operation = "Rope",
                       .shape = absl::StrCat("f32 in place, [", tokens(), ", ", sizes_.num_heads, " x ",
                                             sizes_.head_dim, "]"),
                       .bytes = static_cast<double>(2 * tokens() * cols * 4) + RopeBytes(),
                       .error_bound = kFp32Bound};
    return bench_.Compare(work, x, [&](const Side& on) {
      return on.backend.Rope(on.stream, plan_.On(on), rope_.On(on), sizes_.num_heads, x.On(on));
    });
  }

  absl::Status GatedActivation() {
    const int64_t cols = sizes_.ffn_dim;
    // As the model has them: gate and up side by side.
    KVBLEND_ASSIGN_OR_RETURN(Mirror both, Mirror::Random(bench_, DataType::kF32, tokens(), 2 * cols, 30));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Rounded(cols));
    const Work work = {.operation = "GatedActivation",
                       .shape = absl::StrCat("f32 to bf16, [", tokens(), ", ", cols, "]"),
                       .bytes = static_cast<double>(tokens() * cols * (4 + 4 + 2)),
                       .error_bound = kBf16Bound};
    return bench_.Compare(work, out, [&](const Side& on) {
      const kernels::MatrixView in = both.On(on);
      return on.backend.GatedActivation(on.stream, kernels::Activation::kSilu, in.Columns(0, cols),
                                        in.Columns(cols, cols), out.On(on));
    });
  }

  absl::Status GatherRows() {
    const int64_t cols = sizes_.hidden_dim;
    std::vector<int32_t> indices;
    for (int32_t i = 0; i < sizes_.gathered; ++i)
      indices.push_back(static_cast<int32_t>(int64_t{i} * sizes_.tokens / sizes_.gathered));
    KVBLEND_ASSIGN_OR_RETURN(Mirror in, Mirror::Random(bench_, DataType::kF32, tokens(), cols, 31));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench_, DataType::kF32, sizes_.gathered, cols));
    const Work work = {.operation = "GatherRows",
                       .shape = absl::StrCat("f32, ", sizes_.gathered, " of [", tokens(), ", ", cols, "]"),
                       .bytes = static_cast<double>(2 * sizes_.gathered * cols * 4),
                       .error_bound = kEqualBits};
    return bench_.Compare(work, out, [&](const Side& on) {
      return on.backend.GatherRows(on.stream, in.On(on), indices, out.On(on));
    });
  }

 private:
  struct Section {
    KvEncoding encoding;
    KvPart part;
    int64_t rows, cols;
    Both<kernels::Buffer> buffer;
    kernels::MutableKvSectionView On(const Side& side) const {
      return {buffer.On(side).data(), encoding, part, rows, cols};
    }
    double bytes() const { return static_cast<double>(buffer.device->size_bytes()); }
  };

  explicit MovementBench(Bench& bench) : bench_(bench), sizes_(bench.sizes()) {}

  absl::StatusOr<Section> Store(KvEncoding encoding, KvPart part, uint64_t seed) {
    Section section{encoding, part, tokens(), kv_cols(), {}};
    KVBLEND_ASSIGN_OR_RETURN(Mirror values,
                             Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), seed));
    const int64_t bytes = LayoutOf(encoding, part, tokens(), kv_cols()).size_bytes;
    KVBLEND_ASSIGN_OR_RETURN(section.buffer,
                             MakeBoth<kernels::Buffer>(
                                 bench_, [&](kernels::Backend& backend) { return backend.Allocate(bytes); }));
    const Side host = bench_.reference();
    KVBLEND_RETURN_IF_ERROR(host.backend.EncodeKv(host.stream, values.On(host), section.On(host)));
    KVBLEND_RETURN_IF_ERROR(bench_.Upload(section.buffer.device->data(), section.buffer.host->data(), bytes));
    return section;
  }

  // A result in bf16; the reference's is not rounded.
  absl::StatusOr<Mirror> Rounded(int64_t cols) {
    return Mirror::Zeros(bench_, DataType::kBF16, tokens(), cols, /*host_dtype=*/DataType::kF32);
  }

  int64_t tokens() const { return sizes_.tokens; }
  int64_t kv_cols() const { return int64_t{sizes_.num_kv_heads} * sizes_.head_dim; }
  double PageBytes() const { return 2.0 * static_cast<double>(tokens() * kv_cols()) * 2; }
  double RopeBytes() const { return static_cast<double>(tokens() * sizes_.head_dim * 4); }
  std::string KvShape() const {
    return absl::StrCat(tokens(), " tokens, ", sizes_.num_kv_heads, " kv heads of ", sizes_.head_dim);
  }

  Bench& bench_;
  const Sizes sizes_;
  PagedKv kv_;
  Both<kernels::RopeTable> rope_;
  Both<kernels::BatchPlan> plan_;
};

}  // namespace

absl::Status MeasureMovement(Bench& bench) {
  KVBLEND_ASSIGN_OR_RETURN(MovementBench movement, MovementBench::Create(bench));
  for (const KvEncoding encoding :
       {KvEncoding::kBF16, KvEncoding::kInt8, KvEncoding::kInt4, KvEncoding::kFp8}) {
    KVBLEND_RETURN_IF_ERROR(movement.KvLoad(encoding));
  }
  for (const int64_t rank : {0, 16}) KVBLEND_RETURN_IF_ERROR(movement.CorrectKv(rank));
  KVBLEND_RETURN_IF_ERROR(movement.KvScatter());
  KVBLEND_RETURN_IF_ERROR(movement.KvDeviation());
  KVBLEND_RETURN_IF_ERROR(movement.SpreadDeviation());
  KVBLEND_RETURN_IF_ERROR(movement.RmsNorm());
  KVBLEND_RETURN_IF_ERROR(movement.Rope());
  KVBLEND_RETURN_IF_ERROR(movement.GatedActivation());
  return movement.GatherRows();
}

}  // namespace kvblend::gpu_bench
