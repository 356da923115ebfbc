// Attention in plain fp32, for f32 pages and for heads that the tensor-core kernels do not take. Correct for
// everything, fast for nothing.
#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/attention/score.h"
#include "kernels/cuda/device/elements.h"
#include "kernels/cuda/device/page_slot.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
// A warp takes one query head of one row; a lane one key at a time, then columns of the values.
template <bool kStatistics>
KVBLEND_KERNEL(kThreads, 4)
PlainAttentionKernel(AttentionParams p) {
  const int head_dim = p.pages.head_dim;
  SharedArena arena;
  SharedArray<float> query = arena.Take<float>(kWarps * head_dim).Slice(Warp() * head_dim, head_dim);
  SharedArray<float> out = arena.Take<float>(kWarps * head_dim).Slice(Warp() * head_dim, head_dim);
  SharedArray<float> weights = arena.Take<float>(kThreads).Slice(Warp() * kWarpSize, kWarpSize);

  const int64_t index = int64_t{BlockX()} * kWarps + Warp();
  const bool valid = index < int64_t{p.plan.num_rows} * p.num_heads;
  const int row = valid ? static_cast<int>(index / p.num_heads) : 0;
  const int head = valid ? static_cast<int>(index % p.num_heads) : 0;
  const int sequence = p.plan.sequence_of_row[row], position = p.plan.positions[row];
  const int kv_head = Divide(p.group, head);
  for (int d = Lane(); d < head_dim; d += kWarpSize) {
    const float x = p.q[row * p.q_stride + int64_t{head} * head_dim + d];
    query[d] = p.negate ? -x : x;
    out[d] = 0.0f;
  }
  SyncWarp();
  float max = kNegativeInfinity, sum = 0;
  for (int first = FirstVisible(p, position); first <= position; first += kWarpSize) {
    const int key = first + Lane();
    float score = kNegativeInfinity;
    if (key <= position) {
      const int64_t slot = PageSlot(p.plan, p.pages, sequence, key, kv_head);
      float dot = 0;
      for (int d = 0; d < head_dim; ++d) {
        const float x = query[d];
        dot = FmaRn(x, LoadValue(p.pages.k, p.pages.dtype, slot + d), dot);
      }
      if (p.soft_cap != 0) dot = CappedScore(p, dot);
      score = dot * p.log2_scale;
    }
    const float new_max = Max(max, WarpMax(score)), rescale = Exp2(max - new_max);
    const float weight = Exp2(score - new_max);
    max = new_max;
    sum = sum * rescale + WarpSum(weight);
    if constexpr (!kStatistics) {
      weights[Lane()] = weight;
      SyncWarp();
      const int count = Min(kWarpSize, position + 1 - first);
      for (int d = Lane(); d < head_dim; d += kWarpSize) {
        float value = out[d];
        value *= rescale;
        for (int j = 0; j < count; ++j) {
          const float w = weights[j];
          value += w * LoadValue(p.pages.v, p.pages.dtype,
                                 PageSlot(p.plan, p.pages, sequence, first + j, kv_head) + d);
        }
        out[d] = value;
      }
      SyncWarp();
    }
  }
  if (!valid) return;
  sum += SinkTerm(p, head, max);
  if constexpr (kStatistics) {
    if (Lane() == 0) p.workspace.log_sum[index] = max + Log2(sum);
  } else {
    for (int d = Lane(); d < head_dim; d += kWarpSize) {
      const float value = out[d];
      StoreValue(p.out, p.out_dtype, row * p.out_stride + int64_t{head} * head_dim + d, DivRn(value, sum));
    }
  }
}

// A thread takes one key of one kv head and walks over all rows of its sequence.
KVBLEND_KERNEL(kKeyTile, 8) PlainMassKernel(AttentionParams p) {
  int sequence = 0, tile = BlockX();
  while (tile >= CeilDiv(p.plan.kv_len[sequence], kKeyTile)) {
    tile -= static_cast<int>(CeilDiv(p.plan.kv_len[sequence], kKeyTile));
    ++sequence;
  }
  const int key = tile * kKeyTile + ThreadIndex(), kv_head = BlockY();
  if (key >= p.plan.kv_len[sequence]) return;
  const int64_t slot = PageSlot(p.plan, p.pages, sequence, key, kv_head);
  float mass = 0;
  for (int row = p.plan.row_indptr[sequence]; row < p.plan.row_indptr[sequence + 1]; ++row) {
    const int position = p.plan.positions[row];
    if (key > position || key < FirstVisible(p, position)) continue;
    for (int h = 0; h < p.group.divisor; ++h) {
      const int head = kv_head * p.group.divisor + h;
      const float* q = p.q + row * p.q_stride + int64_t{head} * p.pages.head_dim;
      float dot = 0;
      for (int d = 0; d < p.pages.head_dim; ++d) {
        dot = FmaRn(p.negate ? -q[d] : q[d], LoadValue(p.pages.k, p.pages.dtype, slot + d), dot);
      }
      if (p.soft_cap != 0) dot = CappedScore(p, dot);
      mass += Exp2(FmaRn(dot, p.log2_scale, -p.workspace.log_sum[int64_t{row} * p.num_heads + head]));
    }
  }
  p.workspace.head_mass[kv_head * p.total_kv_len + p.plan.kv_offset[sequence] + key] = mass;
}

}  // namespace

constexpr int SharedBytes(int head_dim) {
  return static_cast<int>((2 * RoundUp(kWarps * head_dim, 4) + kThreads) * static_cast<int>(sizeof(float)));
}
static_assert(SharedBytes(kMaxHeadDim) <= kMaxSharedBytes);

LaunchError LaunchPlainAttention(StreamHandle stream, const AttentionParams& params, bool statistics) {
  const int64_t warps = int64_t{params.plan.num_rows} * params.num_heads;
  const LaunchShape shape{.blocks_x = CeilDiv(warps, kWarps),
                          .threads = kThreads,
                          .shared_bytes = SharedBytes(params.pages.head_dim)};
  return statistics ? Launch<PlainAttentionKernel<true>>(stream, shape, params)
                    : Launch<PlainAttentionKernel<false>>(stream, shape, params);
}

LaunchError LaunchPlainMass(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params) {
  return Launch<PlainMassKernel>(
      stream, {.blocks_x = shape.key_tiles, .blocks_y = params.pages.num_kv_heads, .threads = kKeyTile},
      params);
}

}  // namespace kvblend::kernels::cuda
