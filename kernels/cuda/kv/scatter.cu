// Rope, KvScatter and KvLoad. KvScatter and KvLoad are one kernel: read (and decode) KV, rotate K
// to its position, write both into pages.
#include <limits>

#include "kernels/cuda/device/page_slot.h"
#include "kernels/cuda/kv/source.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;

struct RopeParams {
  PlanView plan;
  RopeView rope;
  int32_t num_heads;
  MatrixView x;
};

KVBLEND_KERNEL(kThreads, 8) RopeKernel(RopeParams p) {
  const int half = p.rope.head_dim / 2;
  const float* cos = p.rope.table + int64_t{p.plan.positions[BlockX()]} * p.rope.head_dim;
  float* row = static_cast<float*>(p.x.data) + BlockX() * p.x.row_stride;
  for (int head = Warp(); head < p.num_heads; head += kThreads / kWarpSize) {
    float* x = row + int64_t{head} * p.rope.head_dim;
    for (int i = Lane(); i < half; i += kWarpSize) {
      float& a = x[p.rope.interleaved ? 2 * i : i];
      float& b = x[p.rope.interleaved ? 2 * i + 1 : half + i];
      RotatePair(a, b, cos[i], cos[half + i]);
    }
  }
}

struct KvScatterParams {
  KvPlacements placements;
  RopeView rope;
  KvPagesView pages;
  FastDivisor items_per_row;   // kv heads x pieces of a head
  FastDivisor pieces_of_head;  // head_dim / (2 kWidth)
};

// A thread takes 2 kWidth columns of one head of one row that hold kWidth pairs: one run of columns where
// pairs are neighbours, two runs half a head apart where they are not. Row y of blocks works on placement y.
template <int kWidth>
KVBLEND_KERNEL(kThreads, 8)
KvScatterKernel(KvScatterParams p) {
  const KvPlacement& from = p.placements.items[BlockY()];
  const int64_t item = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (item >= int64_t{from.plan.num_rows} * p.items_per_row.divisor) return;
  const int row = Divide(p.items_per_row, static_cast<int>(item));
  const int in_row = static_cast<int>(item) - row * p.items_per_row.divisor;
  const int head = Divide(p.pieces_of_head, in_row);
  const int piece = in_row - head * p.pieces_of_head.divisor;
  const int head_dim = p.pages.head_dim, half = head_dim / 2;
  const int pair = piece * kWidth;  // the first of kWidth
  const int first = p.rope.interleaved ? 2 * pair : pair;
  const int second = p.rope.interleaved ? first + kWidth : first + half;
  const int64_t column = int64_t{head} * head_dim;

  float k0[kWidth], k1[kWidth], v0[kWidth], v1[kWidth], cos[kWidth], sin[kWidth];
  LoadKv(from.k, row, column + first, k0);
  LoadKv(from.k, row, column + second, k1);
  LoadKv(from.v, row, column + first, v0);
  LoadKv(from.v, row, column + second, v1);
  const int position = from.plan.positions[row];
  const float* angles = p.rope.table + int64_t{position} * head_dim + pair;
  for (int i = 0; i < kWidth; ++i) {
    cos[i] = angles[i];
    sin[i] = angles[half + i];
  }
  if (p.rope.interleaved && kWidth > 1) {
    for (int i = 0; i < kWidth / 2; ++i) {
      RotatePair(k0[2 * i], k0[2 * i + 1], cos[i], sin[i]);
      RotatePair(k1[2 * i], k1[2 * i + 1], cos[kWidth / 2 + i], sin[kWidth / 2 + i]);
    }
  } else {
    for (int i = 0; i < kWidth; ++i) RotatePair(k0[i], k1[i], cos[i], sin[i]);
  }
  const int64_t to = PageSlot(from.plan, p.pages, row, head);
  StoreValues(p.pages.k, p.pages.dtype, to + first, k0);
  StoreValues(p.pages.k, p.pages.dtype, to + second, k1);
  StoreValues(p.pages.v, p.pages.dtype, to + first, v0);
  StoreValues(p.pages.v, p.pages.dtype, to + second, v1);
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

template <int kWidth>
LaunchError LaunchScatter(StreamHandle stream, KvScatterParams params) {
  const int64_t per_head = params.pages.head_dim / (2 * kWidth),
                per_row = per_head * params.pages.num_kv_heads,
                num_items = params.placements.max_rows() * per_row;
  params.pieces_of_head = FastDivisor::Of(static_cast<int32_t>(per_head));
  params.items_per_row = FastDivisor::Of(static_cast<int32_t>(per_row));
  if (num_items > std::numeric_limits<int32_t>::max()) return {kInvalidValue};
  return Launch<KvScatterKernel<kWidth>>(
      stream,
      {.blocks_x = CeilDiv(num_items, kThreads), .blocks_y = params.placements.count, .threads = kThreads},
      params);
}

}  // namespace

LaunchError LaunchRope(StreamHandle stream, const PlanView& plan, const RopeView& rope, int32_t num_heads,
                       MatrixView x) {
  return Launch<RopeKernel>(stream, {.blocks_x = x.rows, .threads = kThreads},
                            RopeParams{plan, rope, num_heads, x});
}

LaunchError LaunchKvScatter(StreamHandle stream, const KvPlacements& placements, const RopeView& rope,
                            KvPagesView pages) {
  const int64_t cols = int64_t{pages.num_kv_heads} * pages.head_dim;
  const KvScatterParams params{placements, rope, pages, {}, {}};
  bool vectorises = pages.head_dim % 16 == 0 && Aligned(pages.k) && Aligned(pages.v);
  for (int32_t i = 0; i < placements.count; ++i) {
    const KvPlacement& item = placements.items[i];
    vectorises = vectorises && VectorisesSource(item.k, cols) && VectorisesSource(item.v, cols);
  }
  return vectorises ? LaunchScatter<8>(stream, params) : LaunchScatter<1>(stream, params);
}

}  // namespace kvblend::kernels::cuda
