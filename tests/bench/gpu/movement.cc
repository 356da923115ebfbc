#include <string>
#include <utility>
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
    KVBLEND_ASSIGN_OR_RETURN(movement.reference_, Reference::Create());
    KVBLEND_ASSIGN_OR_RETURN(movement.kv_, PagedKv::Zeros(bench));
    KVBLEND_ASSIGN_OR_RETURN(movement.rope_, MakeRope(bench.backend(), movement.sizes_));
    KVBLEND_ASSIGN_OR_RETURN(movement.host_rope_, MakeRope(*movement.reference_.backend, movement.sizes_));
    const std::vector<int32_t> all = Range(0, movement.sizes_.tokens);
    KVBLEND_ASSIGN_OR_RETURN(movement.plan_, movement.kv_.Plan(bench.backend(), all));
    KVBLEND_ASSIGN_OR_RETURN(movement.host_plan_, movement.kv_.Plan(*movement.reference_.backend, all));
    return movement;
  }

  absl::Status KvLoad(KvEncoding encoding, Lines& lines) {
    KVBLEND_ASSIGN_OR_RETURN(Section k, Store(encoding, KvPart::kKey, 21));
    KVBLEND_ASSIGN_OR_RETURN(Section v, Store(encoding, KvPart::kValue, 22));
    const auto load = [&] {
      return backend().KvLoad(bench_.stream(), *plan_, *rope_, k.view(k.device->data()),
                              v.view(v.device->data()), kv_.device());
    };
    KVBLEND_RETURN_IF_ERROR(load());
    KVBLEND_RETURN_IF_ERROR(host().KvLoad(*reference_.stream, *host_plan_, *host_rope_,
                                          k.view(k.host->data()), v.view(v.host->data()), kv_.host()));
    KVBLEND_ASSIGN_OR_RETURN(const double error, kv_.RelativeError(bench_));
    const int64_t bytes = k.device->size_bytes() + v.device->size_bytes();
    return Add({.operation = "KvLoad",
                .shape = absl::StrCat(std::string(kernels::Name(encoding)), ", ", KvShape()),
                .bytes = static_cast<double>(bytes) + PageBytes() + RopeBytes(),
                .error = error,
                .error_bound = kEqualBits},
               load, lines);
  }

  absl::Status KvScatter(Lines& lines) {
    KVBLEND_ASSIGN_OR_RETURN(Mirror k, Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), 23));
    KVBLEND_ASSIGN_OR_RETURN(Mirror v, Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), 24));
    const auto scatter = [&] {
      return backend().KvScatter(bench_.stream(), *plan_, *rope_, k.device(), v.device(), kv_.device());
    };
    KVBLEND_RETURN_IF_ERROR(scatter());
    KVBLEND_RETURN_IF_ERROR(
        host().KvScatter(*reference_.stream, *host_plan_, *host_rope_, k.host(), v.host(), kv_.host()));
    KVBLEND_ASSIGN_OR_RETURN(const double error, kv_.RelativeError(bench_));
    return Add({.operation = "KvScatter",
                .shape = KvShape(),
                .bytes = 2.0 * static_cast<double>(tokens() * kv_cols()) * 4 + PageBytes() + RopeBytes(),
                .error = error,
                .error_bound = kEqualBits},
               scatter, lines);
  }

  absl::Status KvDeviation(Lines& lines) {
    KVBLEND_ASSIGN_OR_RETURN(Mirror fresh, Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), 25));
    KVBLEND_ASSIGN_OR_RETURN(Section stored, Store(KvEncoding::kInt8, KvPart::kValue, 26));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench_, DataType::kF32, 1, tokens()));
    const auto compare = [&] {
      return backend().KvDeviation(bench_.stream(), fresh.device(), stored.view(stored.device->data()),
                                   out.device());
    };
    KVBLEND_RETURN_IF_ERROR(compare());
    KVBLEND_RETURN_IF_ERROR(
        host().KvDeviation(*reference_.stream, fresh.host(), stored.view(stored.host->data()), out.host()));
    KVBLEND_ASSIGN_OR_RETURN(const double error, out.RelativeError(bench_));
    return Add(
        {.operation = "KvDeviation",
         .shape = absl::StrCat("f32 against int8, [", tokens(), ", ", kv_cols(), "]"),
         .bytes = static_cast<double>(tokens() * kv_cols() * 4 + stored.device->size_bytes() + tokens() * 4),
         .error = error,
         .error_bound = kFp32Bound},
        compare, lines);
  }

  absl::Status RmsNorm(Lines& lines) {
    const int64_t cols = sizes_.hidden_dim;
    KVBLEND_ASSIGN_OR_RETURN(Mirror x, Mirror::Random(bench_, DataType::kF32, tokens(), cols, 27));
    KVBLEND_ASSIGN_OR_RETURN(Mirror weight, Mirror::Random(bench_, DataType::kF32, 1, cols, 28));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench_, DataType::kBF16, tokens(), cols));
    const auto norm = [&] {
      return backend().RmsNorm(bench_.stream(), x.device(), weight.device(), 1e-5f, out.device());
    };
    KVBLEND_RETURN_IF_ERROR(norm());
    const std::vector<int32_t> sample = SampleRows(tokens());
    std::vector<float> rows = x.HostRows(sample), expected(rows.size());
    KVBLEND_RETURN_IF_ERROR(
        host().RmsNorm(*reference_.stream, Floats(rows, cols), weight.host(), 1e-5f, Floats(expected, cols)));
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> actual, out.DeviceRows(bench_, sample));
    return Add({.operation = "RmsNorm",
                .shape = absl::StrCat("f32 to bf16, [", tokens(), ", ", cols, "]"),
                .bytes = static_cast<double>(tokens() * cols * (4 + 2) + cols * 4),
                .error = RelativeError(actual, expected),
                .error_bound = kBf16Bound},
               norm, lines);
  }

  absl::Status Rope(Lines& lines) {
    const int64_t cols = int64_t{sizes_.num_heads} * sizes_.head_dim;
    KVBLEND_ASSIGN_OR_RETURN(Mirror x, Mirror::Random(bench_, DataType::kF32, tokens(), cols, 29));
    const auto rotate = [&] {
      return backend().Rope(bench_.stream(), *plan_, *rope_, sizes_.num_heads, x.device());
    };
    KVBLEND_RETURN_IF_ERROR(rotate());
    KVBLEND_RETURN_IF_ERROR(
        host().Rope(*reference_.stream, *host_plan_, *host_rope_, sizes_.num_heads, x.host()));
    KVBLEND_ASSIGN_OR_RETURN(const double error, x.RelativeError(bench_));
    return Add({.operation = "Rope",
                .shape = absl::StrCat("f32 in place, [", tokens(), ", ", sizes_.num_heads, " x ",
                                      sizes_.head_dim, "]"),
                .bytes = static_cast<double>(2 * tokens() * cols * 4) + RopeBytes(),
                .error = error,
                .error_bound = kFp32Bound},
               rotate, lines);
  }

  absl::Status SiluMul(Lines& lines) {
    const int64_t cols = sizes_.ffn_dim;
    // As the model has them: gate and up side by side.
    KVBLEND_ASSIGN_OR_RETURN(Mirror both, Mirror::Random(bench_, DataType::kF32, tokens(), 2 * cols, 30));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench_, DataType::kBF16, tokens(), cols));
    const auto activate = [&] {
      return backend().SiluMul(bench_.stream(), both.device().Columns(0, cols),
                               both.device().Columns(cols, cols), out.device());
    };
    KVBLEND_RETURN_IF_ERROR(activate());
    const std::vector<int32_t> sample = SampleRows(tokens());
    std::vector<float> rows = both.HostRows(sample), expected(rows.size() / 2);
    const kernels::MatrixView in = Floats(rows, 2 * cols);
    KVBLEND_RETURN_IF_ERROR(host().SiluMul(*reference_.stream, in.Columns(0, cols), in.Columns(cols, cols),
                                           Floats(expected, cols)));
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> actual, out.DeviceRows(bench_, sample));
    return Add({.operation = "SiluMul",
                .shape = absl::StrCat("f32 to bf16, [", tokens(), ", ", cols, "]"),
                .bytes = static_cast<double>(tokens() * cols * (4 + 4 + 2)),
                .error = RelativeError(actual, expected),
                .error_bound = kBf16Bound},
               activate, lines);
  }

  absl::Status GatherRows(Lines& lines) {
    const int64_t cols = sizes_.hidden_dim;
    std::vector<int32_t> indices;
    for (int32_t i = 0; i < sizes_.gathered; ++i)
      indices.push_back(static_cast<int32_t>(int64_t{i} * sizes_.tokens / sizes_.gathered));
    KVBLEND_ASSIGN_OR_RETURN(Mirror in, Mirror::Random(bench_, DataType::kF32, tokens(), cols, 31));
    KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench_, DataType::kF32, sizes_.gathered, cols));
    const auto gather = [&] {
      return backend().GatherRows(bench_.stream(), in.device(), indices, out.device());
    };
    KVBLEND_RETURN_IF_ERROR(gather());
    KVBLEND_RETURN_IF_ERROR(host().GatherRows(*reference_.stream, in.host(), indices, out.host()));
    KVBLEND_ASSIGN_OR_RETURN(const double error, out.RelativeError(bench_));
    return Add({.operation = "GatherRows",
                .shape = absl::StrCat("f32, ", sizes_.gathered, " of [", tokens(), ", ", cols, "]"),
                .bytes = static_cast<double>(2 * sizes_.gathered * cols * 4),
                .error = error,
                .error_bound = kEqualBits},
               gather, lines);
  }

 private:
  // A section in device memory and in the reference's.
  struct Section {
    KvEncoding encoding;
    KvPart part;
    int64_t rows, cols;
    std::unique_ptr<kernels::Buffer> device, host;
    kernels::MutableKvSectionView view(void* data) const { return {data, encoding, part, rows, cols}; }
  };

  explicit MovementBench(Bench& bench) : bench_(bench), sizes_(bench.sizes()) {}

  absl::StatusOr<Section> Store(KvEncoding encoding, KvPart part, uint64_t seed) {
    Section section{encoding, part, tokens(), kv_cols(), nullptr, nullptr};
    KVBLEND_ASSIGN_OR_RETURN(Mirror values,
                             Mirror::Random(bench_, DataType::kF32, tokens(), kv_cols(), seed));
    const int64_t bytes = section.view(nullptr).layout().size_bytes;
    KVBLEND_ASSIGN_OR_RETURN(section.device, backend().Allocate(bytes));
    KVBLEND_ASSIGN_OR_RETURN(section.host, host().Allocate(bytes));
    KVBLEND_RETURN_IF_ERROR(
        host().EncodeKv(*reference_.stream, values.host(), section.view(section.host->data())));
    KVBLEND_RETURN_IF_ERROR(bench_.Upload(section.device->data(), section.host->data(), bytes));
    return section;
  }

  absl::Status Add(const Work& work, absl::FunctionRef<absl::Status()> enqueue, Lines& lines) {
    KVBLEND_ASSIGN_OR_RETURN(auto line, Report(bench_, work, enqueue));
    lines.push_back(std::move(line));
    return absl::OkStatus();
  }

  static kernels::MatrixView Floats(std::vector<float>& values, int64_t cols) {
    return {values.data(), DataType::kF32, static_cast<int64_t>(values.size()) / cols, cols, cols};
  }
  kernels::Backend& backend() { return bench_.backend(); }
  kernels::Backend& host() { return *reference_.backend; }
  int64_t tokens() const { return sizes_.tokens; }
  int64_t kv_cols() const { return int64_t{sizes_.num_kv_heads} * sizes_.head_dim; }
  double PageBytes() const { return 2.0 * static_cast<double>(tokens() * kv_cols()) * 2; }
  double RopeBytes() const { return static_cast<double>(tokens() * sizes_.head_dim * 4); }
  std::string KvShape() const {
    return absl::StrCat(tokens(), " tokens, ", sizes_.num_kv_heads, " kv heads of ", sizes_.head_dim);
  }

  Bench& bench_;
  const Sizes sizes_;
  Reference reference_;
  PagedKv kv_;
  std::unique_ptr<kernels::RopeTable> rope_, host_rope_;
  std::unique_ptr<kernels::BatchPlan> plan_, host_plan_;
};

}  // namespace

absl::Status MeasureMovement(Bench& bench, Lines& lines) {
  KVBLEND_ASSIGN_OR_RETURN(MovementBench movement, MovementBench::Create(bench));
  for (const KvEncoding encoding :
       {KvEncoding::kBF16, KvEncoding::kInt8, KvEncoding::kInt4, KvEncoding::kFp8}) {
    KVBLEND_RETURN_IF_ERROR(movement.KvLoad(encoding, lines));
  }
  KVBLEND_RETURN_IF_ERROR(movement.KvScatter(lines));
  KVBLEND_RETURN_IF_ERROR(movement.KvDeviation(lines));
  KVBLEND_RETURN_IF_ERROR(movement.RmsNorm(lines));
  KVBLEND_RETURN_IF_ERROR(movement.Rope(lines));
  KVBLEND_RETURN_IF_ERROR(movement.SiluMul(lines));
  return movement.GatherRows(lines);
}

}  // namespace kvblend::gpu_bench
