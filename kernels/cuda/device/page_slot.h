// KV in pages: where a row goes or lies, and how K is rotated on the way. For .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {

/// The first element of a head at a sequence's position in pages.k or pages.v.
KVBLEND_DEVICE int64_t PageSlot(const PlanView& plan, const KvPagesView& pages, int sequence, int position,
                                int head) {
  const int page_of_sequence = Divide(plan.page_size, position);
  const int64_t page = plan.page_indices[plan.page_indptr[sequence] + page_of_sequence];
  const int slot = position - page_of_sequence * plan.page_size.divisor;
  return ((page * pages.num_kv_heads + head) * pages.page_size + slot) * pages.head_dim;
}
/// The same of the plan's row.
KVBLEND_DEVICE int64_t PageSlot(const PlanView& plan, const KvPagesView& pages, int row, int head) {
  return PageSlot(plan, pages, plan.sequence_of_row[row], plan.positions[row], head);
}

// Rotates a pair with the roundings of the reference backend, so that all backends store the same bytes.
KVBLEND_DEVICE void RotatePair(float& a, float& b, float cos, float sin) {
  const float rotated = SubRn(MulRn(a, cos), MulRn(b, sin));
  b = AddRn(MulRn(a, sin), MulRn(b, cos));
  a = rotated;
}

}  // namespace kvblend::kernels::cuda
