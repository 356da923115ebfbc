// SelectiveAttention and AttentionMass of the CPU backend; arguments as in kernels/backend.h, already
// checked.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/host/batch_plan.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

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
};

/// The type of keys, values and probabilities in products: f32 pages and an f32 GEMM stay exact to f32.
inline DataType AttentionDtype(const CpuContext& context, const KvPagesView& pages) {
  return pages.dtype == DataType::kF32 ? DataType::kF32 : context.gemm_dtype;
}

/// Sequences with at most this many rows read their pages directly (decode.cc): copying the KV
/// would cost more than it saves.
inline constexpr int64_t kMaxDecodeRows = 4;

absl::Status CpuSelectiveAttention(CpuContext& context, const AttentionArgs& args, MatrixView out);
absl::Status CpuAttentionMass(CpuContext& context, const AttentionArgs& args, MatrixView out);
absl::Status CpuSelectiveAttentionWithMass(CpuContext& context, const AttentionArgs& args, MatrixView out,
                                           MatrixView mass);

/// CpuSelectiveAttention of the sequences with more than kMaxDecodeRows rows. Adds their attention mass to
/// `mass` [plan.total_kv_len] where that is not null.
absl::Status BlockedAttention(CpuContext& context, const AttentionArgs& args, MatrixView out, float* mass);
/// CpuSelectiveAttention of the sequences with at most kMaxDecodeRows rows.
absl::Status DecodeAttention(CpuContext& context, const AttentionArgs& args, MatrixView out);

}  // namespace kvblend::kernels
