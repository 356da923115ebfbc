// KV in pages, one value or head at a time: the definition that vectorised code is held against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/base/attributes.h"
#include "kernels/host/float_convert.h"
#include "kernels/host/kv_codec.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// The largest code of int8 pages; the smallest is its negative.
inline constexpr float kLargestPageCode = 127.0f;

/// K or V of some pages: what HostBatchPlan::Slot indexes.
struct PageValues {
  void* data;
  uint16_t* steps;  // null but for int8 pages
  DataType dtype;
  PageLayout layout;
  bool is_keys;
  int64_t page_size;
  int64_t head_dim;

  static PageValues Keys(const KvPagesView& pages) {
    return {pages.k,       static_cast<uint16_t*>(pages.k_steps),
            pages.dtype,   pages.layout,
            true,          pages.page_size,
            pages.head_dim};
  }
  static PageValues Values(const KvPagesView& pages) {
    return {pages.v,       static_cast<uint16_t*>(pages.v_steps),
            pages.dtype,   pages.layout,
            false,         pages.page_size,
            pages.head_dim};
  }

  /// Where element d of the head at `slot`, a multiple of head_dim, lies.
  ABSL_ATTRIBUTE_ALWAYS_INLINE int64_t Index(int64_t slot, int64_t d) const {
    if (layout == PageLayout::kRows) return slot + d;
    const int64_t token = slot / head_dim % page_size, run = slot - token * head_dim;
    if (!is_keys) return run + (token / 2 * head_dim + d) * 2 + token % 2;
    const int64_t tile = token / kPageTile;
    return run + ((tile * head_dim / 2 + d / 2) * kPageTile + token % kPageTile) * 2 + d % 2;
  }

  /// The steps and the codes of the head at `slot`, a multiple of head_dim.
  uint16_t* StepsAt(int64_t slot) const {
    return steps + slot / head_dim * KvPagesView::StepsPerHead(head_dim);
  }
  int8_t* CodesAt(int64_t slot) const { return static_cast<int8_t*>(data) + slot; }

  ABSL_ATTRIBUTE_ALWAYS_INLINE float Load(int64_t slot, int64_t d) const {
    if (dtype != DataType::kInt8) return LoadElement(data, dtype, Index(slot, d));
    return Bf16ToF32(StepsAt(slot)[d / kPageGroup]) * static_cast<float>(CodesAt(slot)[d]);
  }

  /// Stores a head. values: [head_dim]
  void Store(int64_t slot, const float* values) const {
    if (dtype != DataType::kInt8) {
      for (int64_t d = 0; d < head_dim; ++d) StoreElement(data, dtype, Index(slot, d), values[d]);
      return;
    }
    for (int64_t begin = 0; begin < head_dim; begin += kPageGroup) {
      const int64_t end = std::min(begin + kPageGroup, head_dim);
      float largest = 0, finite = 0;
      for (int64_t d = begin; d < end; ++d) {
        largest = std::max(largest, std::abs(values[d]));
        finite += values[d] * 0.0f;
      }
      const uint16_t step = CeilToBf16(largest / kLargestPageCode + finite);
      StepsAt(slot)[begin / kPageGroup] = step;
      const float inverse = InverseStep(step);
      for (int64_t d = begin; d < end; ++d) {
        const float code = finite == 0 ? std::nearbyint(values[d] * inverse) : 0.0f;
        CodesAt(slot)[d] = static_cast<int8_t>(std::clamp(code, -kLargestPageCode, kLargestPageCode));
      }
    }
  }
};

}  // namespace kvblend::kernels
