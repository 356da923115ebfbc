// Speed of the CPU backend's operations on the shapes of SmolLM2-135M: GFLOP/s and share of the machine's
// peak for products, GB/s for what only moves memory. "peak" is the best oneDNN GEMM of this process, on as
// many threads.
//
//   kernels_bench [--benchmark_filter=REGEX]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <vector>

#include "kernels/backend.h"

namespace kvblend::kernels {
namespace {

constexpr int kHeads = 9, kKvHeads = 3, kHeadDim = 64, kPageSize = 16, kContext = 6000;
constexpr float kScale = 0.125f;

Backend& Cpu() {
  static const auto backend = CreateBackend("cpu", 0).value();
  return *backend;
}
Stream& TheStream() {
  static const auto stream = Cpu().CreateStream().value();
  return *stream;
}

// GFLOP/s of the best of several large products in the backend's GEMM dtype.
double PeakGflops() {
  static const double peak = [] {
    constexpr int64_t kSize = 2048;
    using Memory = dnnl::memory;
    const auto type =
        Cpu().compute_dtype() == DataType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto any = Memory::format_tag::any;
    const dnnl::matmul::primitive_desc desc(
        dnnl::matmul::desc({{kSize, kSize}, type, any}, {{kSize, kSize}, type, any},
                           {{kSize, kSize}, Memory::data_type::f32, any}),
        engine);
    Memory a(desc.src_desc(), engine), b(desc.weights_desc(), engine), c(desc.dst_desc(), engine);
    dnnl::matmul matmul(desc);
    double best = 0;
    for (int i = 0; i < 10; ++i) {
      const auto start = std::chrono::steady_clock::now();
      matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
      stream.wait();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, 2.0 * kSize * kSize * kSize / seconds.count() / 1e9);
    }
    return best;
  }();
  return peak;
}

// Cheap pseudo-random values in [-1, 1).
float Uniform(int64_t i) {
  return static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761u)) * 0x1p-31f;
}

struct Matrix {
  Matrix(DataType dtype, int64_t rows, int64_t cols)
      : buffer(Cpu().Allocate(rows * cols * SizeOf(dtype)).value()),
        view{buffer->data(), dtype, rows, cols, cols} {
    if (dtype == DataType::kF32) {
      auto* data = static_cast<float*>(view.data);
      for (int64_t i = 0; i < rows * cols; ++i) data[i] = Uniform(i);
    } else {
      const Matrix source(DataType::kF32, rows, cols);
      (void)Cpu().Convert(TheStream(), source.view, view).ok();
    }
  }
  std::unique_ptr<Buffer> buffer;
  MatrixView view;
};

// One sequence of kContext tokens, its pages in shuffled order.
struct Kv {
  explicit Kv(const std::vector<int32_t>& positions)
      : k(DataType::kBF16, kPages, int64_t{kKvHeads} * kPageSize * kHeadDim),
        v(DataType::kBF16, kPages, int64_t{kKvHeads} * kPageSize * kHeadDim) {
    std::vector<int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
    const std::vector<int32_t> row_indptr = {0, static_cast<int32_t>(positions.size())}, kv_len = {kContext},
                               page_indptr = {0, kPages};
    plan = Cpu().PlanBatch({row_indptr, positions, kv_len, page_indptr, pages, kPageSize, 0}).value();
    view = {k.view.data, v.view.data, DataType::kBF16, kPages, kKvHeads, kPageSize, kHeadDim};
  }
  static constexpr int32_t kPages = (kContext + kPageSize - 1) / kPageSize;
  Matrix k, v;
  std::unique_ptr<BatchPlan> plan;
  KvPagesView view;
};

// `count` positions spread evenly, the last one at the end.
std::vector<int32_t> Spread(int64_t count) {
  std::vector<int32_t> positions;
  for (int64_t i = 1; i <= count; ++i) positions.push_back(static_cast<int32_t>(i * kContext / count - 1));
  return positions;
}

void ReportFlops(benchmark::State& state, double flops) {
  const auto iterations = static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(flops * iterations / 1e9, benchmark::Counter::kIsRate);
  state.counters["of_peak"] =
      benchmark::Counter(flops * iterations / 1e9 / PeakGflops(), benchmark::Counter::kIsRate);
}

void ReportBytes(benchmark::State& state, double bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(bytes * static_cast<double>(state.iterations()) / 1e9, benchmark::Counter::kIsRate);
}

void CheckOk(benchmark::State& state, const absl::Status& status) {
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}

// Args: rows, input features, output features. One matrix, so few rows find it in the caches.
void BM_Linear(benchmark::State& state) {
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const auto weights =
      Cpu().PackWeights(out, in, WeightUsage::kLinear, [&](int64_t r, absl::Span<float> row) {
        for (size_t i = 0; i < row.size(); ++i) row[i] = Uniform(r * in + static_cast<int64_t>(i));
        return absl::OkStatus();
      });
  Matrix x(Cpu().compute_dtype(), rows, in), y(DataType::kF32, rows, out);
  for (auto _ : state) CheckOk(state, Cpu().Linear(TheStream(), x.view, **weights, false, y.view));
  ReportFlops(state, 2.0 * static_cast<double>(rows * in * out));
}
BENCHMARK(BM_Linear)
    ->ArgsProduct({{1, 32, 300, 1024, 6000}, {576}, {960, 3072, 576}})
    ->ArgsProduct({{1, 32, 300, 1024, 6000}, {1536}, {576}})
    ->UseRealTime();

// Few rows over 30 layers' worth of different matrices, as in decoding: bound by memory. Arg: rows.
void BM_LinearFromMemory(benchmark::State& state) {
  const int64_t rows = state.range(0), in = 576, out = 3072;
  std::vector<std::unique_ptr<PackedWeights>> layers;
  for (int i = 0; i < 60; ++i) {
    layers.push_back(Cpu()
                         .PackWeights(out, in, WeightUsage::kLinear,
                                      [&](int64_t, absl::Span<float> row) {
                                        std::fill(row.begin(), row.end(), 0.5f);
                                        return absl::OkStatus();
                                      })
                         .value());
  }
  Matrix x(DataType::kF32, rows, in), y(DataType::kF32, rows, out);
  for (auto _ : state) {
    for (const auto& weights : layers)
      CheckOk(state, Cpu().Linear(TheStream(), x.view, *weights, false, y.view));
  }
  ReportBytes(state, 60.0 * in * out * static_cast<double>(SizeOf(Cpu().compute_dtype())));
}
BENCHMARK(BM_LinearFromMemory)->Arg(1)->Arg(4)->Arg(8)->Arg(32)->UseRealTime();

// Arg: rows of 6,000, evenly spread. 6000: full prefill; 900 and 300: blended at 15% and 5%; 1: decode.
void BM_SelectiveAttention(benchmark::State& state) {
  const std::vector<int32_t> positions = Spread(state.range(0));
  Kv kv(positions);
  Matrix q(DataType::kF32, state.range(0), kHeads * kHeadDim);
  Matrix out(Cpu().compute_dtype(), state.range(0), kHeads * kHeadDim);
  for (auto _ : state) {
    CheckOk(state,
            Cpu().SelectiveAttention(TheStream(), *kv.plan, q.view, kHeads, kScale, kv.view, out.view));
  }
  double keys = 0;
  for (const int32_t position : positions) keys += position + 1;
  ReportFlops(state, 4.0 * keys * kHeads * kHeadDim);
  if (state.range(0) == 1) ReportBytes(state, 2.0 * kContext * kKvHeads * kHeadDim * 2);
}
BENCHMARK(BM_SelectiveAttention)->Arg(6000)->Arg(900)->Arg(300)->Arg(30)->Arg(1)->UseRealTime();

// The question's rows at the end of the prompt. Arg: rows.
void BM_AttentionMass(benchmark::State& state) {
  std::vector<int32_t> positions(state.range(0));
  std::iota(positions.begin(), positions.end(), kContext - static_cast<int32_t>(state.range(0)));
  Kv kv(positions);
  Matrix q(DataType::kF32, state.range(0), kHeads * kHeadDim), mass(DataType::kF32, 1, kContext);
  for (auto _ : state) {
    CheckOk(state, Cpu().AttentionMass(TheStream(), *kv.plan, q.view, kHeads, kScale, kv.view, mass.view));
  }
}
BENCHMARK(BM_AttentionMass)->Arg(30)->UseRealTime();

// All 6,000 tokens of one layer from the store into pages. Arg: 0 interleaved, 1 split halves.
void BM_KvScatter(benchmark::State& state) {
  Kv kv(Spread(kContext));
  std::vector<float> inv_freq(kHeadDim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    inv_freq[i] = static_cast<float>(std::pow(100000.0, -2.0 * static_cast<double>(i) / kHeadDim));
  }
  const auto layout = state.range(0) == 0 ? RopeLayout::kInterleaved : RopeLayout::kSplitHalf;
  const auto rope = Cpu().CreateRopeTable({layout, kHeadDim, 8192, inv_freq}).value();
  Matrix k(DataType::kBF16, kContext, kKvHeads * kHeadDim), v(DataType::kBF16, kContext, kKvHeads * kHeadDim);
  for (auto _ : state) CheckOk(state, Cpu().KvScatter(TheStream(), *kv.plan, *rope, k.view, v.view, kv.view));
  ReportBytes(state, 4.0 * kContext * kKvHeads * kHeadDim * 2);  // read and written
}
BENCHMARK(BM_KvScatter)->Arg(0)->Arg(1)->UseRealTime();

void BM_RmsNorm(benchmark::State& state) {
  Matrix x(DataType::kF32, kContext, 576), weight(DataType::kF32, 1, 576),
      out(Cpu().compute_dtype(), kContext, 576);
  for (auto _ : state) CheckOk(state, Cpu().RmsNorm(TheStream(), x.view, weight.view, 1e-5f, out.view));
  ReportBytes(state, kContext * 576.0 * static_cast<double>(4 + SizeOf(Cpu().compute_dtype())));
}
BENCHMARK(BM_RmsNorm)->UseRealTime();

void BM_SiluMul(benchmark::State& state) {
  Matrix both(DataType::kF32, kContext, 3072), out(Cpu().compute_dtype(), kContext, 1536);
  for (auto _ : state) {
    CheckOk(state,
            Cpu().SiluMul(TheStream(), both.view.Columns(0, 1536), both.view.Columns(1536, 1536), out.view));
  }
  ReportBytes(state, kContext * 1536.0 * static_cast<double>(8 + SizeOf(Cpu().compute_dtype())));
}
BENCHMARK(BM_SiluMul)->UseRealTime();

void BM_Rope(benchmark::State& state) {
  Kv kv(Spread(kContext));
  std::vector<float> inv_freq(kHeadDim / 2, 0.01f);
  const auto rope = Cpu().CreateRopeTable({RopeLayout::kInterleaved, kHeadDim, 8192, inv_freq}).value();
  Matrix q(DataType::kF32, kContext, kHeads * kHeadDim);
  for (auto _ : state) CheckOk(state, Cpu().Rope(TheStream(), *kv.plan, *rope, kHeads, q.view));
  ReportBytes(state, kContext * 576.0 * 8);
}
BENCHMARK(BM_Rope)->UseRealTime();

}  // namespace
}  // namespace kvblend::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  std::printf("%s\npeak (oneDNN GEMM 2048^3): %.0f GFLOP/s\n", kvblend::kernels::Cpu().Describe().c_str(),
              kvblend::kernels::PeakGflops());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
