// ValueLengths: a warp takes one position after the other, and reads its values eight at a time where all begin at multiples
// of 16 bytes.
#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/device/page_slot.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct ValueLengthsParams {
  PlanView plan;
  KvPagesView pages;
  float* out;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
ValueLengthsKernel(ValueLengthsParams p) {
  const TileOwner owner =
      FindTile(p.plan.num_sequences, BlockX(), kKeyTile, [&](int s) { return p.plan.kv_len[s]; });
  const int first = owner.tile * kKeyTile, end = Min(first + kKeyTile, p.plan.kv_len[owner.sequence]);
  for (int position = first + Warp(); position < end; position += kThreads / kWarpSize) {
    float sum = 0;
    for (int head = 0; head < p.pages.num_kv_heads; ++head) {
      const int64_t slot = PageSlot(p.plan, p.pages, owner.sequence, position, head);
      for (int d = Lane() * kWidth; d < p.pages.head_dim; d += kWarpSize * kWidth) {
        float values[kWidth];
        LoadValues(p.pages.v, p.pages.dtype, slot + d, values);
        for (int i = 0; i < kWidth; ++i) sum += values[i] * values[i];
      }
    }
    sum = WarpSum(sum);
    if (Lane() == 0) p.out[p.plan.kv_offset[owner.sequence] + position] = SqrtRn(sum);
  }
}

}  // namespace

LaunchError LaunchValueLengths(StreamHandle stream, const PlanView& plan, int64_t key_tiles,
                               const KvPagesView& pages, float* out) {
  const ValueLengthsParams params{plan, pages, out};
  const LaunchShape shape{.blocks_x = key_tiles, .threads = kThreads};
  const bool vectorises = pages.head_dim % 8 == 0 && reinterpret_cast<uintptr_t>(pages.v) % 16 == 0;
  return vectorises ? Launch<ValueLengthsKernel<8>>(stream, shape, params)
                    : Launch<ValueLengthsKernel<1>>(stream, shape, params);
}

}  // namespace kvblend::kernels::cuda
