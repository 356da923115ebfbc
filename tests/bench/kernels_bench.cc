// Speed of the CPU backend's operations on the shapes of SmolLM2-135M, beside what the machine gives in the
// same process on as many threads (printed in the head, and in the context of --benchmark_format=json):
//
//   of_peak    of the best oneDNN product, 256^3 to 2048^3, in the same dtype
//   of_onednn  of a bare oneDNN product of the same shape with packed weights, on oneDNN's own threads
//   of_copy    of memcpy's bytes per second, read and written, in as much memory as the operation touches
//   of_read    of the bytes per second of reading what no cache holds
//
//   kernels_bench [--threads=N] [--gemm=auto|bf16|int8|int16] [--cpu_time] [--pages_in_rows]
//   [--benchmark_filter=REGEX]
//
// --gemm=int8: products of weights in 8 bits, held against oneDNN's product of codes.
// --cpu_time: rates (and the peaks) per second of processor time instead of per second, with one thread: for
// machines that are busy with other things.
#include <cstdlib>
#include <string_view>

#include "tests/bench/kernels_bench_support.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

// Args: rows, input features, output features. One matrix, so few rows find it in the caches.
void BM_Linear(benchmark::State& state) {
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const test_support::RowFunction uniform([&](int64_t r, absl::Span<float> row) {
    for (size_t i = 0; i < row.size(); ++i) row[i] = Uniform(r * in + static_cast<int64_t>(i));
    return absl::OkStatus();
  });
  const auto weights = Cpu().PackWeights(out, in, WeightUsage::kLinear, uniform);
  Matrix x(Cpu().compute_dtype(), rows, in), y(DataType::kF32, rows, out);
  const double seconds =
      Measure(state, [&] { return Cpu().Linear(TheStream(), x.view, **weights, false, y.view); });
  // With --gemm=int8 the weights are rounded to codes when they are packed.
  const GemmOperands operands =
      gemm == CpuBackendOptions::Gemm::kInt8 ? GemmOperands::kInt8 : OperandsOfFloats();
  ReportFlops(state, seconds, 2.0 * static_cast<double>(rows * in * out), operands);
  state.counters["of_onednn"] = BareGemmSeconds(operands, rows, in, out) / seconds;
}
BENCHMARK(BM_Linear)
    ->ArgsProduct({{1, 8, 32, 64, 128, 300, 1024, 6000}, {576}, {960, 3072, 576}})
    ->ArgsProduct({{1, 8, 32, 64, 128, 300, 1024, 6000}, {1536}, {576}})
    ->UseRealTime();

// The same with a file's codes.
void LinearOfCodes(benchmark::State& state, int32_t bits, WeightUsage usage = WeightUsage::kLinear) {
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2);
  const auto weights = Cpu().PackWeights(out, in, usage, CodeRows(bits)).value();
  Matrix x(Cpu().compute_dtype(), rows, in), y(DataType::kF32, rows, out);
  const double seconds =
      Measure(state, [&] { return Cpu().Linear(TheStream(), x.view, *weights, false, y.view); });
  ReportFlops(state, seconds, 2.0 * static_cast<double>(rows * in * out), OperandsOfCodes(rows, usage));
}

// Of 4 bits.
void BM_LinearOfCodes(benchmark::State& state) { LinearOfCodes(state, 4); }
BENCHMARK(BM_LinearOfCodes)
    ->ArgsProduct({{1, 8, 16, 32, 33, 300, 1024, 6000}, {576}, {3072}})
    ->ArgsProduct({{300}, {576}, {960, 576}})
    ->ArgsProduct({{1, 2, 4, 8, 300, 1024}, {1536}, {576}})
    ->UseRealTime();

// Of layers whose inputs may be rounded to 8 bits; with --gemm=auto some processors do.
void BM_TolerantLinearOfCodes(benchmark::State& state) {
  LinearOfCodes(state, 4, WeightUsage::kVeryTolerantLinear);
}
BENCHMARK(BM_TolerantLinearOfCodes)
    ->ArgsProduct({{33, 300, 1024}, {576}, {3072}})
    ->ArgsProduct({{300}, {576}, {576}})
    ->UseRealTime();

void BM_LinearOf6Bits(benchmark::State& state) { LinearOfCodes(state, 6); }
BENCHMARK(BM_LinearOf6Bits)->ArgsProduct({{1, 2, 4, 8, 300}, {576}, {3072}})->UseRealTime();
void BM_LinearOf8Bits(benchmark::State& state) { LinearOfCodes(state, 8); }
BENCHMARK(BM_LinearOf8Bits)->ArgsProduct({{1, 2, 4, 8, 300}, {576}, {3072}})->UseRealTime();

// Few rows over 30 layers' worth of different matrices, as in decoding: bound by memory. Arg: rows.
void BM_LinearFromMemory(benchmark::State& state) {
  const int64_t rows = state.range(0), in = 576, out = 3072;
  const test_support::RowFunction halves([](int64_t, absl::Span<float> row) {
    std::fill(row.begin(), row.end(), 0.5f);
    return absl::OkStatus();
  });
  std::vector<std::unique_ptr<PackedWeights>> layers;
  for (int i = 0; i < 60; ++i) {
    layers.push_back(Cpu().PackWeights(out, in, WeightUsage::kLinear, halves).value());
  }
  Matrix x(DataType::kF32, rows, in), y(DataType::kF32, rows, out);
  const double seconds = Measure(state, [&] {
    absl::Status status;
    for (const auto& weights : layers)
      status.Update(Cpu().Linear(TheStream(), x.view, *weights, false, y.view));
    return status;
  });
  ReportFlops(state, seconds, 120.0 * static_cast<double>(rows * in * out), OperandsOfFloats());
  ReportRead(state, seconds, 60.0 * in * out * static_cast<double>(SizeOf(Cpu().compute_dtype())));
}
BENCHMARK(BM_LinearFromMemory)->Arg(1)->Arg(4)->Arg(8)->Arg(32)->Arg(33)->UseRealTime();

// The gate and up projections of a layer of Qwen3-30B-A3B, in codes of 4 bits: every token goes to 8 of 128
// experts. Arg: tokens. One reads 8 experts; 1,024, as many as go through a layer together, use about 64
// times each.
void BM_ExpertLinear(benchmark::State& state) {
  constexpr int32_t kExperts = 128, kChosen = 8;
  constexpr int64_t kIn = 2048, kOut = 1536;
  const int64_t tokens = state.range(0), rows = tokens * kChosen;
  static const auto weights = Cpu().PackExperts(kExperts, kOut, kIn, CodeRows(4)).value();
  std::mt19937 random(3);
  std::vector<int32_t> experts(rows), all(kExperts);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t token = 0; token < tokens; ++token) {
    std::shuffle(all.begin(), all.end(), random);
    std::copy_n(all.begin(), kChosen, experts.begin() + token * kChosen);
  }
  Matrix x(Cpu().compute_dtype(), tokens, kIn), y(DataType::kF32, rows, kOut);
  const double seconds = Measure(state, [&] {
    return Cpu().ExpertLinear(TheStream(), x.view, *weights, {experts.data(), rows}, y.view);
  });
  // Experts have no way of their own for few rows.
  ReportFlops(state, seconds, 2.0 * static_cast<double>(rows * kIn * kOut), OperandsOfCodes(kContext));
  if (tokens == 1) ReportRead(state, seconds, kChosen * kIn * kOut * 4.5 / 8);
}
BENCHMARK(BM_ExpertLinear)->Arg(1)->Arg(8)->Arg(64)->Arg(300)->Arg(1024)->UseRealTime();

// Arg: rows of 6,000, evenly spread. 6000: full prefill; 900 and 300: blended at 15% and 5%; 1: decode.
void BM_SelectiveAttention(benchmark::State& state) {
  const std::vector<int32_t> positions = Spread(state.range(0));
  Kv kv(positions);
  Matrix q(DataType::kF32, state.range(0), kHeads * kHeadDim);
  Matrix out(Cpu().compute_dtype(), state.range(0), kHeads * kHeadDim);
  const double seconds = Measure(state, [&] {
    return Cpu().SelectiveAttention(TheStream(), *kv.plan, q.view, {kHeads, kScale}, kv.view, out.view);
  });
  ReportFlops(state, seconds, 4.0 * SeenKeys(positions) * kHeads * kHeadDim, OperandsOfAttention());
  if (state.range(0) == 1) {  // one layer's KV stays in the caches
    const double bytes = 2.0 * kContext * kKvWidth * 2;
    ReportMoved(state, seconds, bytes, bytes);
  }
}
BENCHMARK(BM_SelectiveAttention)->Arg(6000)->Arg(900)->Arg(300)->Arg(30)->Arg(1)->UseRealTime();

// A step of decoding, all layers, whose KV no cache holds. Args: sequences, tokens of each, tokens per page,
// whether a sequence's pages lie one after the other.
void BM_DecodeAttentionFromMemory(benchmark::State& state) {
  const auto sequences = static_cast<int32_t>(state.range(0)), tokens = static_cast<int32_t>(state.range(1)),
             page_size = static_cast<int32_t>(state.range(2));
  const int32_t pages_each = (tokens + page_size - 1) / page_size, num_pages = sequences * pages_each;
  const int64_t page_elements = int64_t{kKvHeads} * page_size * kHeadDim;
  std::vector<Matrix> keys, values;
  for (int i = 0; i < kLayers; ++i) {
    keys.emplace_back(DataType::kBF16, num_pages, page_elements);
    values.emplace_back(DataType::kBF16, num_pages, page_elements);
  }
  std::vector<int32_t> row_indptr = {0}, positions, kv_len, page_indptr = {0}, pages(num_pages);
  for (int32_t s = 1; s <= sequences; ++s) {
    row_indptr.push_back(s);
    positions.push_back(tokens - 1);
    kv_len.push_back(tokens);
    page_indptr.push_back(s * pages_each);
  }
  std::iota(pages.begin(), pages.end(), 0);
  if (state.range(3) == 0) std::shuffle(pages.begin(), pages.end(), std::mt19937(2));
  const auto plan = Cpu().PlanBatch({row_indptr, positions, kv_len, page_indptr, pages, page_size}).value();
  Matrix q(DataType::kF32, sequences, kHeads * kHeadDim);
  Matrix out(Cpu().compute_dtype(), sequences, kHeads * kHeadDim);
  const double seconds = Measure(state, [&] {
    absl::Status status;
    for (int i = 0; i < kLayers; ++i) {
      const KvPagesView view = PagesOf(keys[i], values[i], num_pages, page_size);
      status.Update(Cpu().SelectiveAttention(TheStream(), *plan, q.view, {kHeads, kScale}, view, out.view));
    }
    return status;
  });
  ReportRead(state, seconds, 2.0 * kLayers * sequences * tokens * kKvWidth * sizeof(uint16_t));
}
BENCHMARK(BM_DecodeAttentionFromMemory)
    ->ArgNames({"sequences", "tokens", "page", "in_order"})
    ->ArgsProduct({{1}, {6000}, {16, 64}, {0, 1}})
    ->ArgsProduct({{1, 8}, {512}, {64}, {0, 1}})
    ->UseRealTime();

// The question's rows at the end of the prompt. Arg: rows.
void BM_AttentionMass(benchmark::State& state) {
  const std::vector<int32_t> positions = Last(state.range(0));
  Kv kv(positions);
  Matrix q(DataType::kF32, state.range(0), kHeads * kHeadDim), mass(DataType::kF32, 1, kContext);
  const double seconds = Measure(state, [&] {
    return Cpu().AttentionMass(TheStream(), *kv.plan, q.view, {kHeads, kScale}, kv.view, mass.view);
  });
  ReportFlops(state, seconds, 2.0 * SeenKeys(positions) * kHeads * kHeadDim,
              OperandsOfAttention());  // the scores, once
}
BENCHMARK(BM_AttentionMass)->Arg(30)->UseRealTime();

// A layer's attention in the query pass. Arg: rows of the question.
void BM_SelectiveAttentionWithMass(benchmark::State& state) {
  const std::vector<int32_t> positions = Last(state.range(0));
  Kv kv(positions);
  Matrix q(DataType::kF32, state.range(0), kHeads * kHeadDim), mass(DataType::kF32, 1, kContext);
  Matrix out(Cpu().compute_dtype(), state.range(0), kHeads * kHeadDim);
  const double seconds = Measure(state, [&] {
    return Cpu().SelectiveAttentionWithMass(TheStream(), *kv.plan, q.view, {kHeads, kScale}, kv.view,
                                            out.view, mass.view);
  });
  ReportFlops(state, seconds, 4.0 * SeenKeys(positions) * kHeads * kHeadDim, OperandsOfAttention());
}
BENCHMARK(BM_SelectiveAttentionWithMass)->Arg(30)->UseRealTime();

}  // namespace
}  // namespace kvblend::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  bool cpu_time = false;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.rfind("--threads=", 0) == 0) {
      kvblend::kernels::num_threads = std::atoi(argv[i] + 10);
    } else if (arg == "--gemm=int8") {
      kvblend::kernels::gemm = kvblend::kernels::CpuBackendOptions::Gemm::kInt8;
    } else if (arg == "--gemm=bf16") {
      kvblend::kernels::gemm = kvblend::kernels::CpuBackendOptions::Gemm::kBF16;
    } else if (arg == "--gemm=int16") {
      kvblend::kernels::gemm = kvblend::kernels::CpuBackendOptions::Gemm::kInt16;
    } else if (arg == "--gemm=auto") {
      kvblend::kernels::gemm = kvblend::kernels::CpuBackendOptions::Gemm::kAuto;
    } else if (arg == "--pages_in_rows") {
      kvblend::kernels::pages_in_rows = true;
    } else if (arg == "--cpu_time") {
      cpu_time = true;
      kvblend::kernels::num_threads = 1;
    } else {
      argv[kept++] = argv[i];
    }
  }
  if (benchmark::ReportUnrecognizedArguments(kept, argv)) return 1;
  kvblend::ConfigurePeaks(kvblend::kernels::num_threads, cpu_time);
  const std::string backend = kvblend::kernels::Cpu().Describe();
  const double gemm = kvblend::GemmPeakGflops(kvblend::kernels::OperandsOfFloats()),
               codes = kvblend::GemmPeakGflops(kvblend::GemmOperands::kInt8),
               pairs = kvblend::GemmPeakGflops(kvblend::GemmOperands::kInt16);
  const double copy = kvblend::CopyGbps(kvblend::kLargeFootprint), read = kvblend::ReadGbps();
  benchmark::AddCustomContext("backend", backend);
  benchmark::AddCustomContext("gemm_peak_gflops", std::to_string(gemm));
  benchmark::AddCustomContext("int8_peak_gops", std::to_string(codes));
  benchmark::AddCustomContext("int16_peak_gops", std::to_string(pairs));
  benchmark::AddCustomContext("copy_peak_gbps", std::to_string(copy));
  benchmark::AddCustomContext("read_peak_gbps", std::to_string(read));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
