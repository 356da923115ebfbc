// KvDeviation: one block per row, eight elements per thread and step where all rows begin at multiples of 16
// bytes. What is stored is decoded in registers.
#include "kernels/cuda/kv/source.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct KvDeviationParams {
  ConstMatrixView fresh;
  KvSource stored;
  float* out;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
KvDeviationKernel(KvDeviationParams p) {
  SharedArena arena;
  float sum = 0;
  for (int64_t c = ThreadIndex() * kWidth; c < p.fresh.cols; c += kThreads * kWidth) {
    float fresh[kWidth], stored[kWidth];
    LoadValues(p.fresh.data, DataType::kF32, BlockX() * p.fresh.row_stride + c, fresh);
    LoadKv(p.stored, BlockX(), c, stored);
    for (int i = 0; i < kWidth; ++i) {
      const float difference = fresh[i] - stored[i];
      sum += difference * difference;
    }
  }
  sum = BlockSum(sum, arena.Take<float>(32));
  if (ThreadIndex() == 0) p.out[BlockX()] = sum;
}

}  // namespace

LaunchError LaunchKvDeviation(StreamHandle stream, ConstMatrixView fresh, const KvSource& stored,
                              float* out) {
  const KvDeviationParams params{fresh, stored, out};
  const LaunchShape shape{.blocks_x = fresh.rows, .threads = kThreads, .shared_bytes = 32 * sizeof(float)};
  const bool vectorises = VectorisesSource(stored, fresh.cols) && fresh.row_stride % 8 == 0 &&
                          reinterpret_cast<uintptr_t>(fresh.data) % 16 == 0;
  return vectorises ? Launch<KvDeviationKernel<8>>(stream, shape, params)
                    : Launch<KvDeviationKernel<1>>(stream, shape, params);
}

}  // namespace kvblend::kernels::cuda
