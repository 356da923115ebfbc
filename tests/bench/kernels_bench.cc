// Speed of the CPU backend's operations on the shapes of SmolLM2-135M: GFLOP/s and share of the machine's
// peak for products, GB/s for what only moves memory. "peak" is the best oneDNN GEMM of this process, on as
// many threads.
//
//   kernels_bench [--threads=N] [--cpu_time] [--benchmark_filter=REGEX]
//
// --cpu_time: rates (and the peak) per second of processor time instead of per second, with one thread: for
// machines that are busy with other things.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"

extern "C" void omp_set_num_threads(int);

namespace kvblend::kernels {
namespace {

constexpr int kHeads = 9, kKvHeads = 3, kHeadDim = 64, kPageSize = 16, kContext = 6000;
constexpr float kScale = 0.125f;

int num_threads = 0;  // one per available processor
bool use_cpu_time = false;

double Seconds() {
  timespec time;
  clock_gettime(use_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Backend& Cpu() {
  static const auto backend = CreateBackend("cpu", num_threads).value();
  return *backend;
}
Stream& TheStream() {
  static const auto stream = Cpu().CreateStream().value();
  return *stream;
}

// GFLOP/s of the best of several products in the backend's GEMM dtype.
double PeakGflops() {
  static const double peak = [] {
    using Memory = dnnl::memory;
    const auto type =
        Cpu().compute_dtype() == DataType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto any = Memory::format_tag::any;
    double best = 0;
    for (const int64_t size : {256, 512, 1024, 2048}) {
      const Memory::desc in({size, size}, type, any), out({size, size}, Memory::data_type::f32, any);
      const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(in, in, out), engine);
      Memory a(desc.src_desc(), engine), b(desc.weights_desc(), engine), c(desc.dst_desc(), engine);
      dnnl::matmul matmul(desc);
      for (int i = 0; i < 10; ++i) {
        const double start = Seconds();
        matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
        stream.wait();
        best = std::max(best, 2.0 * static_cast<double>(size * size * size) / (Seconds() - start) / 1e9);
      }
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

// Runs `operation` for every iteration and keeps the time that it took.
template <typename Operation>
double Measure(benchmark::State& state, const Operation& operation) {
  const double start = Seconds();
  for (auto _ : state) {
    if (const absl::Status status = operation(); !status.ok()) {
      state.SkipWithError(std::string(status.message()).c_str());
      break;
    }
  }
  return (Seconds() - start) / static_cast<double>(state.iterations());
}

void ReportFlops(benchmark::State& state, double seconds, double flops) {
  state.counters["GFLOP/s"] = flops / seconds / 1e9;
  state.counters["of_peak"] = flops / seconds / 1e9 / PeakGflops();
}

void ReportBytes(benchmark::State& state, double seconds, double bytes) {
  state.counters["GB/s"] = bytes / seconds / 1e9;
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
  const double seconds =
      Measure(state, [&] { return Cpu().Linear(TheStream(), x.view, **weights, false, y.view); });
  ReportFlops(state, seconds, 2.0 * static_cast<double>(rows * in * out));
}
BENCHMARK(BM_Linear)
    ->ArgsProduct({{1, 8, 32, 64, 128, 300, 1024, 6000}, {576}, {960, 3072, 576}})
    ->ArgsProduct({{1, 8, 32, 64, 128, 300, 1024, 6000}, {1536}, {576}})
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
  const double seconds = Measure(state, [&] {
    absl::Status status;
    for (const auto& weights : layers)
      status.Update(Cpu().Linear(TheStream(), x.view, *weights, false, y.view));
    return status;
  });
  ReportBytes(state, seconds, 60.0 * in * out * static_cast<double>(SizeOf(Cpu().compute_dtype())));
}
BENCHMARK(BM_LinearFromMemory)->Arg(1)->Arg(4)->Arg(8)->Arg(32)->Arg(33)->UseRealTime();

// Arg: rows of 6,000, evenly spread. 6000: full prefill; 900 and 300: blended at 15% and 5%; 1: decode.
void BM_SelectiveAttention(benchmark::State& state) {
  const std::vector<int32_t> positions = Spread(state.range(0));
  Kv kv(positions);
  Matrix q(DataType::kF32, state.range(0), kHeads * kHeadDim);
  Matrix out(Cpu().compute_dtype(), state.range(0), kHeads * kHeadDim);
  const double seconds = Measure(state, [&] {
    return Cpu().SelectiveAttention(TheStream(), *kv.plan, q.view, kHeads, kScale, kv.view, out.view);
  });
  double keys = 0;
  for (const int32_t position : positions) keys += position + 1;
  ReportFlops(state, seconds, 4.0 * keys * kHeads * kHeadDim);
  if (state.range(0) == 1) ReportBytes(state, seconds, 2.0 * kContext * kKvHeads * kHeadDim * 2);
}
BENCHMARK(BM_SelectiveAttention)->Arg(6000)->Arg(900)->Arg(300)->Arg(30)->Arg(1)->UseRealTime();

// The question's rows at the end of the prompt. Arg: rows.
void BM_AttentionMass(benchmark::State& state) {
  std::vector<int32_t> positions(state.range(0));
  std::iota(positions.begin(), positions.end(), kContext - static_cast<int32_t>(state.range(0)));
  Kv kv(positions);
  Matrix q(DataType::kF32, state.range(0), kHeads * kHeadDim), mass(DataType::kF32, 1, kContext);
  Measure(state, [&] {
    return Cpu().AttentionMass(TheStream(), *kv.plan, q.view, kHeads, kScale, kv.view, mass.view);
  });
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
  const double seconds =
      Measure(state, [&] { return Cpu().KvScatter(TheStream(), *kv.plan, *rope, k.view, v.view, kv.view); });
  ReportBytes(state, seconds, 4.0 * kContext * kKvHeads * kHeadDim * 2);  // read and written
}
BENCHMARK(BM_KvScatter)->Arg(0)->Arg(1)->UseRealTime();

void BM_RmsNorm(benchmark::State& state) {
  Matrix x(DataType::kF32, kContext, 576), weight(DataType::kF32, 1, 576),
      out(Cpu().compute_dtype(), kContext, 576);
  const double seconds =
      Measure(state, [&] { return Cpu().RmsNorm(TheStream(), x.view, weight.view, 1e-5f, out.view); });
  ReportBytes(state, seconds, kContext * 576.0 * static_cast<double>(4 + SizeOf(Cpu().compute_dtype())));
}
BENCHMARK(BM_RmsNorm)->UseRealTime();

void BM_SiluMul(benchmark::State& state) {
  Matrix both(DataType::kF32, kContext, 3072), out(Cpu().compute_dtype(), kContext, 1536);
  const double seconds = Measure(state, [&] {
    return Cpu().SiluMul(TheStream(), both.view.Columns(0, 1536), both.view.Columns(1536, 1536), out.view);
  });
  ReportBytes(state, seconds, kContext * 1536.0 * static_cast<double>(8 + SizeOf(Cpu().compute_dtype())));
}
BENCHMARK(BM_SiluMul)->UseRealTime();

void BM_Rope(benchmark::State& state) {
  Kv kv(Spread(kContext));
  std::vector<float> inv_freq(kHeadDim / 2, 0.01f);
  const auto rope = Cpu().CreateRopeTable({RopeLayout::kInterleaved, kHeadDim, 8192, inv_freq}).value();
  Matrix q(DataType::kF32, kContext, kHeads * kHeadDim);
  const double seconds =
      Measure(state, [&] { return Cpu().Rope(TheStream(), *kv.plan, *rope, kHeads, q.view); });
  ReportBytes(state, seconds, kContext * 576.0 * 8);
}
BENCHMARK(BM_Rope)->UseRealTime();

}  // namespace
}  // namespace kvblend::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.rfind("--threads=", 0) == 0) {
      kvblend::kernels::num_threads = std::atoi(argv[i] + 10);
    } else if (arg == "--cpu_time") {
      kvblend::kernels::use_cpu_time = true;
      kvblend::kernels::num_threads = 1;
    } else {
      argv[kept++] = argv[i];
    }
  }
  if (benchmark::ReportUnrecognizedArguments(kept, argv)) return 1;
  // oneDNN's own threads, for the peak; the backend keeps its calls single-threaded by itself.
  if (kvblend::kernels::num_threads > 0) omp_set_num_threads(kvblend::kernels::num_threads);
  std::printf("%s\npeak (best oneDNN GEMM, 256^3 to 2048^3): %.0f GFLOP/s\n",
              kvblend::kernels::Cpu().Describe().c_str(), kvblend::kernels::PeakGflops());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
