// ValueLengths: a warp takes a position, its lanes pieces of the values of all kv heads: eight elements where
// all begin at multiples of 16 bytes. No load waits for another.
#include "kernels/cuda/attention/tile.h"
#include "kernels/cuda/device/page_slot.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kBlocksOfTile = kKeyTile / kWarps;

struct ValueLengthsParams {
  PlanView plan;
  KvPagesView pages;
  FastDivisor pieces_of_head;
  float* out;
};

template <int kWidth>
KVBLEND_KERNEL(kThreads, 4)
ValueLengthsKernel(ValueLengthsParams p) {
  const TileOwner owner =
      FindTile(p.plan.num_sequences, BlockX(), kKeyTile, [&](int s) { return p.plan.kv_len[s]; });
  const int position = owner.tile * kKeyTile + BlockY() * kWarps + Warp();
  if (position >= p.plan.kv_len[owner.sequence]) return;
  const int64_t slot = PageSlot(p.plan, p.pages, owner.sequence, position, 0);
  const int64_t head_stride = int64_t{p.pages.page_size} * p.pages.head_dim;
  const int pieces_of_head = p.pieces_of_head.divisor, pieces = pieces_of_head * p.pages.num_kv_heads;
  float sum = 0;
  for (int piece = Lane(); piece < pieces; piece += kWarpSize) {
    const int head = Divide(p.pieces_of_head, piece);
    float values[kWidth];
    LoadValues(p.pages.v, p.pages.dtype, slot + head * head_stride + (piece - head * pieces_of_head) * kWidth,
               values);
    for (int i = 0; i < kWidth; ++i) sum += values[i] * values[i];
  }
  sum = WarpSum(sum);
  if (Lane() == 0) p.out[p.plan.kv_offset[owner.sequence] + position] = SqrtRn(sum);
}

}  // namespace

LaunchError LaunchValueLengths(StreamHandle stream, const PlanView& plan, int64_t key_tiles,
                               const KvPagesView& pages, float* out) {
  const bool vectorises = pages.head_dim % 8 == 0 && reinterpret_cast<uintptr_t>(pages.v) % 16 == 0;
  const ValueLengthsParams params{plan, pages, FastDivisor::Of(pages.head_dim / (vectorises ? 8 : 1)), out};
  const LaunchShape shape{.blocks_x = key_tiles, .blocks_y = kBlocksOfTile, .threads = kThreads};
  return vectorises ? Launch<ValueLengthsKernel<8>>(stream, shape, params)
                    : Launch<ValueLengthsKernel<1>>(stream, shape, params);
}

}  // namespace kvblend::kernels::cuda
