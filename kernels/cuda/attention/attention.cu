// SelectiveAttention and AttentionMass: which kernels run, and the two that put their parts together.
#include <cfloat>
#include <cmath>

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/attention/score.h"
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

// A warp puts the splits of one query head of one row together: the output, or the log of the sum. A lane
// weighs a split, then holds columns.
template <bool kStatistics>
KVBLEND_KERNEL(kThreads, 8)
MergeSplitsKernel(AttentionParams p) {
  const int64_t index = int64_t{BlockX()} * kWarps + Warp();
  const int64_t per_split = int64_t{p.plan.num_rows} * p.num_heads;
  if (index >= per_split) return;
  const auto max_of = [&](int s) {
    return s < p.splits ? p.workspace.max[s * per_split + index] : kNegativeInfinity;
  };
  float max = kNegativeInfinity, sum = 0;
  for (int s = Lane(); s < p.splits; s += kWarpSize) max = Max(max, max_of(s));
  max = WarpMax(max);
  for (int s = Lane(); s < p.splits; s += kWarpSize) {
    sum += p.workspace.sum[s * per_split + index] * Exp2(max_of(s) - max);
  }
  const int64_t row = index / p.num_heads, head = index - row * p.num_heads;
  sum = WarpSum(sum) + SinkTerm(p, head, max);
  if constexpr (kStatistics) {
    if (Lane() == 0) p.workspace.log_sum[index] = max + Log2(sum);
  } else {
    constexpr int kColumns = 4;  // of a lane at a time: as many loads are under way
    const int head_dim = p.pages.head_dim;
    for (int first = 0; first < head_dim; first += kColumns * kWarpSize) {
      float values[kColumns] = {};
      for (int group = 0; group < p.splits; group += kWarpSize) {
        const float weight = Exp2(max_of(group + Lane()) - max);
        const int splits = Min(kWarpSize, p.splits - group);
        for (int s = 0; s < splits; ++s) {
          const float* part = p.workspace.out + ((group + s) * per_split + index) * head_dim;
          const float weight_of_split = Shuffle(weight, s);
          KVBLEND_UNROLL
          for (int c = 0; c < kColumns; ++c) {
            const int d = first + c * kWarpSize + Lane();
            if (d < head_dim) values[c] += part[d] * weight_of_split;
          }
        }
      }
      for (int c = 0; c < kColumns; ++c) {
        const int d = first + c * kWarpSize + Lane();
        if (d < head_dim) {
          StoreValue(p.out, p.out_dtype, row * p.out_stride + head * head_dim + d, DivRn(values[c], sum));
        }
      }
    }
  }
}

// out[j] = the mean over query heads; head_mass holds sums per kv head.
KVBLEND_KERNEL(kThreads, 8) MeanMassKernel(AttentionParams p) {
  const int64_t key = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (key >= p.total_kv_len) return;
  float sum = 0;
  for (int h = 0; h < p.pages.num_kv_heads; ++h) sum += p.workspace.head_mass[h * p.total_kv_len + key];
  static_cast<float*>(p.out)[key] = DivRn(sum, static_cast<float>(p.num_heads));
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

AttentionParams ParamsOf(const PlanView& plan, ConstMatrixView q, const AttentionShape& shape,
                         const AttentionSpec& spec, const KvPagesView& pages,
                         const AttentionWorkspace& workspace) {
  AttentionParams params;
  params.plan = plan;
  params.q = static_cast<const float*>(q.data);
  params.q_stride = q.row_stride;
  params.pages = pages;
  params.num_heads = shape.num_heads;
  params.sliding_window = spec.sliding_window;
  params.group = FastDivisor::Of(shape.group);
  // Above 0, so that masked scores stay minus infinity: a scale of 0 gives exponents too small to matter.
  params.log2_scale = std::fmax(std::fabs(spec.scale) * kLog2E, FLT_MIN);
  params.negate = spec.scale < 0;
  if (spec.logit_soft_cap != 0) {
    const float unit = params.log2_scale / kLog2E, cap = spec.logit_soft_cap / unit;
    // Where the scale is so near 0 that the cap in its units is infinite, no score would reach the cap.
    if (std::isfinite(cap)) {
      params.soft_cap = cap;
      params.inverse_soft_cap = unit / spec.logit_soft_cap;
    }
  }
  params.sinks = static_cast<const float*>(spec.sinks.data);
  params.q_vectorises = pages.head_dim % 8 == 0 && q.row_stride % 4 == 0 && Aligned(q.data);
  params.kv_vectorises = pages.head_dim % 8 == 0 && Aligned(pages.k) && Aligned(pages.v);
  params.splits = shape.splits;
  params.workspace = workspace;
  params.total_kv_len = shape.total_kv_len;
  return params;
}

LaunchShape OneWarpPerHead(const AttentionParams& p) {
  return {.blocks_x = CeilDiv(int64_t{p.plan.num_rows} * p.num_heads, kWarps), .threads = kThreads};
}

}  // namespace

LaunchError LaunchSelectiveAttention(StreamHandle stream, const PlanView& plan, ConstMatrixView q,
                                     const AttentionShape& shape, const AttentionSpec& spec,
                                     const KvPagesView& pages, const AttentionWorkspace& workspace,
                                     MatrixView out) {
  AttentionParams params = ParamsOf(plan, q, shape, spec, pages, workspace);
  params.out = out.data;
  params.out_dtype = out.dtype;
  params.out_stride = out.row_stride;
  if (!UsesTensorCores(pages)) return LaunchPlainAttention(stream, params, false);
  const LaunchError error = pages.dtype == DataType::kBF16 ? LaunchTilesBf16(stream, shape, params, false)
                                                           : LaunchTilesF16(stream, shape, params, false);
  if (!error.ok() || shape.splits == 1) return error;
  return Launch<MergeSplitsKernel<false>>(stream, OneWarpPerHead(params), params);
}

LaunchError LaunchAttentionMass(StreamHandle stream, const PlanView& plan, ConstMatrixView q,
                                const AttentionShape& shape, const AttentionSpec& spec,
                                const KvPagesView& pages, const AttentionWorkspace& workspace, float* out) {
  AttentionParams params = ParamsOf(plan, q, shape, spec, pages, workspace);
  params.out = out;
  const bool bf16 = pages.dtype == DataType::kBF16;
  LaunchError error;
  // First sweep: the rows' softmax statistics. Sequences without rows have keys all the same.
  if (plan.num_rows > 0) {
    if (!UsesTensorCores(pages)) {
      error = LaunchPlainAttention(stream, params, true);
    } else {
      error =
          bf16 ? LaunchTilesBf16(stream, shape, params, true) : LaunchTilesF16(stream, shape, params, true);
      if (error.ok()) error = Launch<MergeSplitsKernel<true>>(stream, OneWarpPerHead(params), params);
    }
  }
  if (!error.ok()) return error;
  // Second sweep: what each key gets.
  if (!UsesTensorCores(pages)) {
    error = LaunchPlainMass(stream, shape, params);
  } else {
    error = bf16 ? LaunchMassBf16(stream, shape, params) : LaunchMassF16(stream, shape, params);
  }
  if (!error.ok()) return error;
  return Launch<MeanMassKernel>(
      stream, {.blocks_x = CeilDiv(shape.total_kv_len, kThreads), .threads = kThreads}, params);
}

}  // namespace kvblend::kernels::cuda
