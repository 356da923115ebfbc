#include "tests/bench/machine_peaks.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/bench/pair_products.h"

extern "C" void omp_set_num_threads(int);

namespace kvblend {
namespace {

int threads = 1;
bool use_cpu_time = false;

// In huge pages where the system has them, so that what is measured is memory and not address translation.
class Array {
 public:
  explicit Array(int64_t bytes) : data_(static_cast<char*>(std::aligned_alloc(kHugePage, Padded(bytes)))) {
    if (data_ == nullptr) std::abort();
    (void)madvise(data_.get(), Padded(bytes), MADV_HUGEPAGE);
    std::memset(data_.get(), 1, Padded(bytes));
  }
  char* data() const { return data_.get(); }

 private:
  static constexpr int64_t kHugePage = int64_t{2} << 20;
  static int64_t Padded(int64_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char, Free> data_;
};

// Best seconds of several runs of work(thread), which every thread does at once. The threads meet before each
// run.
template <typename Work>
double BestOfThreads(int runs, const Work& work) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    std::atomic<int> ready = 0;
    const auto meet_and_work = [&](int thread) {
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      work(thread);
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(meet_and_work, thread);
    while (ready.load() < threads - 1) std::this_thread::yield();
    const double start = Seconds();
    meet_and_work(0);
    for (std::thread& other : others) other.join();
    best = std::min(best, Seconds() - start);
  }
  return best;
}

double PeakGops(const PairProducts& products) {
  if (products.run == nullptr) return 0;
  constexpr int64_t kIterations = 500'000;  // some milliseconds, beside which starting threads is nothing
  const double seconds = BestOfThreads(9, [&](int) { products.run(kIterations); });
  return products.operations * kIterations * threads / seconds / 1e9;
}

}  // namespace

void ConfigurePeaks(int num_threads, bool cpu_time) {
  threads =
      num_threads > 0 ? num_threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  use_cpu_time = cpu_time;
  omp_set_num_threads(threads);  // oneDNN's; the backend keeps its own calls single-threaded by itself
}

double Seconds() {
  timespec time;
  clock_gettime(use_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double BareGemmSeconds(GemmOperands operands, int64_t rows, int64_t in, int64_t out) {
  static std::map<std::tuple<GemmOperands, int64_t, int64_t, int64_t>, double> measured;
  double& seconds = measured[{operands, rows, in, out}];
  if (seconds > 0) return seconds;
  using Memory = dnnl::memory;
  const bool codes = operands == GemmOperands::kInt8;
  const auto floats = operands == GemmOperands::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
  const auto of_x = codes ? Memory::data_type::u8 : floats,
             of_weights = codes ? Memory::data_type::s8 : floats,
             of_y = codes ? Memory::data_type::s32 : Memory::data_type::f32;
  const auto plain = Memory::format_tag::ab;
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::matmul::primitive_desc desc(
      dnnl::matmul::desc({{rows, in}, of_x, plain}, {{in, out}, of_weights, Memory::format_tag::any},
                         {{rows, out}, of_y, plain}),
      engine);
  Memory x(desc.src_desc(), engine), weights(desc.weights_desc(), engine), y(desc.dst_desc(), engine);
  for (const Memory& memory : {x, weights, y}) {
    std::memset(memory.get_data_handle(), 0x3c,
                memory.get_desc().get_size());  // 0.0115 in both types of float
  }
  dnnl::matmul matmul(desc);
  std::vector<double> runs;
  const double begin = Seconds();
  while (runs.size() < 7 || (Seconds() - begin < 0.05 && runs.size() < 200)) {
    const double start = Seconds();
    matmul.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y}});
    stream.wait();
    runs.push_back(Seconds() - start);
  }
  std::nth_element(runs.begin(), runs.begin() + static_cast<int64_t>(runs.size() / 2), runs.end());
  return seconds = runs[runs.size() / 2];
}

double GemmPeakGflops(GemmOperands operands) {
  static std::map<GemmOperands, double> measured;
  double& best = measured[operands];
  if (best > 0) return best;
  if (operands == GemmOperands::kInt16) return best = PeakGops(BestPairProducts());
  if (operands == GemmOperands::kBF16) best = PeakGops(TileProducts());
  for (const int64_t size : {256, 512, 1024, 2048}) {
    const double seconds = BareGemmSeconds(operands, size, size, size);
    best = std::max(best, 2.0 * static_cast<double>(size * size * size) / seconds / 1e9);
  }
  return best;
}

double CopyGbps(int64_t footprint) {
  static std::map<int64_t, double> measured;
  double& gbps = measured[footprint];
  if (gbps > 0) return gbps;
  const int64_t share = std::max<int64_t>(footprint / 2 / threads, 64);
  const Array from(share * threads), to(share * threads);
  const int64_t repeats = std::max<int64_t>(1, (int64_t{128} << 20) / (share * threads));
  const double seconds = BestOfThreads(7, [&](int thread) {
    for (int64_t i = 0; i < repeats; ++i) {
      std::memcpy(to.data() + thread * share, from.data() + thread * share, share);
      asm volatile("" : : "r"(to.data()) : "memory");  // all of them happen
    }
  });
  return gbps = 2.0 * static_cast<double>(share * threads * repeats) / seconds / 1e9;
}

double ReadGbps() {
  static double gbps = 0;
  if (gbps > 0) return gbps;
  constexpr int64_t kBytes = int64_t{256} << 20, kLine = 64, kAhead = 4096;
  const int64_t share = kBytes / threads / kLine * kLine;
  const Array from(kBytes + kAhead);
  const double seconds = BestOfThreads(9, [&](int thread) {
    std::array<uint64_t, kLine / sizeof(uint64_t)> sums = {}, line;
    const char* begin = from.data() + thread * share;
    for (const char* at = begin; at < begin + share; at += kLine) {
      __builtin_prefetch(at + kAhead, /*write=*/0, /*locality=*/0);
      std::memcpy(line.data(), at, kLine);
      for (size_t i = 0; i < line.size(); ++i) sums[i] += line[i];
    }
    asm volatile("" : : "r"(sums.data()) : "memory");  // the sums are wanted
  });
  return gbps = static_cast<double>(share * threads) / seconds / 1e9;
}

}  // namespace kvblend
