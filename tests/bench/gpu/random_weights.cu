#include "kernels/cuda/device/device.h"
#include "tests/bench/gpu/random_weights.h"

namespace kvblend::gpu_bench {
namespace {

namespace cuda = kernels::cuda;

struct FillParams {
  uint16_t* out;
  int64_t count;
  float bound;
  uint64_t seed;
};

// Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: SplitMix64, by index.
KVBLEND_KERNEL(256, 4) FillRandomKernel(FillParams p) {
  const int64_t step = int64_t{cuda::GridX()} * cuda::BlockThreads();
  for (int64_t i = int64_t{cuda::BlockX()} * cuda::BlockThreads() + cuda::ThreadIndex(); i < p.count;
       i += step) {
    uint64_t z = p.seed + static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const auto signed_bits = static_cast<int32_t>(z >> 32);
    p.out[i] = cuda::ToBf16(cuda::MulRn(static_cast<float>(signed_bits) * 0x1p-31f, p.bound));
  }
}

}  // namespace

kernels::cuda::LaunchError LaunchFillRandom(kernels::cuda::StreamHandle stream, uint16_t* out, int64_t count,
                                            float bound, uint64_t seed) {
  const int64_t wanted = cuda::CeilDiv(count, 256 * 16);
  const int64_t blocks = wanted < 1 ? 1 : wanted > 4096 ? 4096 : wanted;
  return cuda::Launch<FillRandomKernel>(stream, {.blocks_x = blocks, .threads = 256},
                                        FillParams{out, count, bound, seed});
}

}  // namespace kvblend::gpu_bench
