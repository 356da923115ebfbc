// What it costs to share a loop among threads: with nothing to do, and beside iterations as short as those of
// decoding.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "kernels/cpu/machine/thread_pool.h"

namespace kvblend::kernels {
namespace {

// Multiplications that wait for each other: nothing of it touches memory.
[[gnu::noinline]] float Work(int64_t multiplications) {
  float value = 1.0f;
  for (int64_t i = 0; i < multiplications; ++i) {
    value *= 1.0000001f;
    benchmark::DoNotOptimize(value);
  }
  return value;
}

template <typename Body>
double NanosecondsOf(Body body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

// Arguments: threads, multiplications of each thread in a loop. beside_ns: how much longer a loop takes than
// a thread's share.
void BM_ThreadPoolLoop(benchmark::State& state) {
  const int64_t threads = state.range(0), multiplications = state.range(1);
  if (threads > std::max<int64_t>(2, std::thread::hardware_concurrency())) {
    state.SkipWithError("fewer processors");
    return;
  }
  constexpr int kShares = 1000;
  const double shares = NanosecondsOf([&] {
    for (int i = 0; i < kShares; ++i) benchmark::DoNotOptimize(Work(multiplications));
  });
  ThreadPool pool(static_cast<int>(threads), [] {});
  const double loops = NanosecondsOf([&] {
    for (auto iteration : state) {
      pool.ForStreams(threads, [&](int64_t) { benchmark::DoNotOptimize(Work(multiplications)); });
    }
  });
  state.counters["beside_ns"] = loops / static_cast<double>(state.iterations()) - shares / kShares;
}
BENCHMARK(BM_ThreadPoolLoop)->ArgsProduct({{1, 2, 4, 8, 16, 32, 64}, {0, 1000, 10000}})->UseRealTime();

}  // namespace
}  // namespace kvblend::kernels
