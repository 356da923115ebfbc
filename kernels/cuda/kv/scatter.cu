// Rope, KvScatter and KvLoad. KvScatter and KvLoad are one kernel: read (and decode) KV, rotate K
// to its position, write both into pages.
#include <limits>

#include "kernels/cuda/kv/page_slot.h"
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
  PlanView plan;
  RopeView rope;
  KvSource k;
  KvSource v;
  KvPagesView pages;
  FastDivisor items_per_row;   // kv heads x pieces of a head
  FastDivisor pieces_of_head;  // head_dim / (2 kWidth)
  int64_t num_items;
};

// A thread takes 2 kWidth columns of one head of one row that hold kWidth pairs: one run of columns where
// pairs are neighbours, two runs half a head apart where they are not.
template <int kWidth>
KVBLEND_KERNEL(kThreads, 8)
KvScatterKernel(KvScatterParams p) {
  const int64_t item = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (item >= p.num_items) return;
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
  LoadKv(p.k, row, column + first, k0);
  LoadKv(p.k, row, column + second, k1);
  LoadKv(p.v, row, column + first, v0);
  LoadKv(p.v, row, column + second, v1);
  const int position = p.plan.positions[row];
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
  const int64_t to = PageSlot(p.plan, p.pages, row, head);
  StoreValues(p.pages.k, p.pages.dtype, to + first, k0);
  StoreValues(p.pages.k, p.pages.dtype, to + second, k1);
  StoreValues(p.pages.v, p.pages.dtype, to + first, v0);
  StoreValues(p.pages.v, p.pages.dtype, to + second, v1);
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

template <int kWidth>
LaunchError LaunchScatter(StreamHandle stream, KvScatterParams params, int64_t rows) {
  const int64_t per_head = params.pages.head_dim / (2 * kWidth),
                per_row = per_head * params.pages.num_kv_heads;
  params.pieces_of_head = FastDivisor::Of(static_cast<int32_t>(per_head));
  params.items_per_row = FastDivisor::Of(static_cast<int32_t>(per_row));
  params.num_items = rows * per_row;
  if (params.num_items > std::numeric_limits<int32_t>::max()) return {kInvalidValue};
  return Launch<KvScatterKernel<kWidth>>(
      stream, {.blocks_x = CeilDiv(params.num_items, kThreads), .threads = kThreads}, params);
}

}  // namespace

LaunchError LaunchRope(StreamHandle stream, const PlanView& plan, const RopeView& rope, int32_t num_heads,
                       MatrixView x) {
  return Launch<RopeKernel>(stream, {.blocks_x = x.rows, .threads = kThreads},
                            RopeParams{plan, rope, num_heads, x});
}

LaunchError LaunchKvScatter(StreamHandle stream, const PlanView& plan, const RopeView& rope,
                            const KvSource& k, const KvSource& v, KvPagesView pages) {
  const int64_t cols = int64_t{pages.num_kv_heads} * pages.head_dim;
  const KvScatterParams params{plan, rope, k, v, pages, {}, {}, 0};
  const bool vectorises = pages.head_dim % 16 == 0 && VectorisesSource(k, cols) &&
                          VectorisesSource(v, cols) && Aligned(pages.k) && Aligned(pages.v);
  return vectorises ? LaunchScatter<8>(stream, params, plan.num_rows)
                    : LaunchScatter<1>(stream, params, plan.num_rows);
}

}  // namespace kvblend::kernels::cuda
