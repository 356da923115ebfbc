// SelectiveAttention and AttentionMass of the CPU backend; arguments as in kernels/backend.h, already
// checked.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/batch_plan.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Scores are multiplied by it, so that softmaxes can use powers of two.
inline constexpr float kLog2E = 1.44269504088896340736f;

struct AttentionArgs {
  const HostBatchPlan& plan;
  ConstMatrixView q;
  AttentionSpec spec;
  KvPagesView pages;

  int32_t group() const { return spec.num_heads / pages.num_kv_heads; }
  /// Row i of q, head h.
  const float* query(int64_t row, int64_t head) const {
    return static_cast<const float*>(q.data) + row * q.row_stride + head * pages.head_dim;
  }

  /// The soft cap of n scores that are multiplied by kLog2E already; nothing where there is none.
  void CapScores(float* scores, int64_t n) const {
    if (spec.logit_soft_cap != 0) simd::SoftCapRow(scores, spec.logit_soft_cap * kLog2E, n);
  }
  /// The same for `rows` rows of a block of kKeyBlock keys.
  void CapBlock(float* scores, int64_t rows, int64_t keys) const {
    if (spec.logit_soft_cap == 0) return;
    for (int64_t r = 0; r < rows; ++r) CapScores(scores + r * kKeyBlock, keys);
  }

  /// What the softmax of a query head divides by: `sum` of powers of two relative to `max` over its keys, and
  /// its sink.
  float Denominator(int64_t head, float max, float sum) const {
    return spec.sinks.data == nullptr ? sum : sum + std::exp2(Sink(head) - max);
  }
  /// The logarithm to base 2 of that sum, absolute, times the number of heads: 2^(score - it) is what a key
  /// gets of the attention mass.
  float LogMassSum(int64_t head, float max, float sum) const {
    if (spec.sinks.data != nullptr) {
      const float top = std::max(max, Sink(head));
      sum = sum * std::exp2(max - top) + std::exp2(Sink(head) - top);
      max = top;
    }
    return max + std::log2(sum * static_cast<float>(spec.num_heads));
  }

 private:
  float Sink(int64_t head) const { return static_cast<const float*>(spec.sinks.data)[head] * kLog2E; }
};

/// The type of keys, values and probabilities in products of many rows: f32 pages and an f32 GEMM stay exact
/// to f32. Few rows have their own (decode.cc).
inline DataType AttentionDtype(const CpuContext& context, const KvPagesView& pages) {
  return pages.dtype == DataType::kF32 ? DataType::kF32 : context.gemm_dtype;
}

/// What attention of many rows multiplies them in.
inline const Tiles& AttentionTiles(const CpuContext& context, const KvPagesView& pages) {
  const bool codes = context.int16_tiles != nullptr && pages.dtype != DataType::kF32 &&
                     pages.layout == PageLayout::kRows && pages.head_dim <= kMaxCodeHeadDim;
  return codes ? *context.int16_tiles : context.TilesFor(AttentionDtype(context, pages));
}

/// Sequences with at most this many rows read their pages directly (decode.cc): copying the KV
/// would cost more than it saves.
inline constexpr int64_t kMaxDecodeRows = 4;

absl::Status CpuSelectiveAttention(CpuContext& context, const AttentionArgs& args, MatrixView out);
absl::Status CpuAttentionMass(CpuContext& context, const AttentionArgs& args, MatrixView out);
absl::Status CpuSelectiveAttentionWithMass(CpuContext& context, const AttentionArgs& args, MatrixView out,
                                           MatrixView mass);
/// out: [plan.total_kv_len]
void CpuValueLengths(CpuContext& context, const HostBatchPlan& plan, const KvPagesView& pages, float* out);

/// CpuSelectiveAttention of the sequences with more than kMaxDecodeRows rows. Adds their attention mass to
/// `mass` [plan.total_kv_len] where that is not null.
absl::Status BlockedAttention(CpuContext& context, const AttentionArgs& args, MatrixView out, float* mass);
/// CpuSelectiveAttention of the sequences with at most kMaxDecodeRows rows.
absl::Status DecodeAttention(CpuContext& context, const AttentionArgs& args, MatrixView out);

}  // namespace kvblend::kernels
