#include "engine/kv/section_rows.h"

#include "kernels/host/kv_codec.h"

namespace kvblend::kv {

void DecodeRows(const kernels::KvSectionView& k, const kernels::KvSectionView& v,
                absl::Span<const int32_t> rows, absl::Span<float> out) {
  const kernels::KvSectionLayout k_layout = k.layout(), v_layout = v.layout();
  float* to = out.data();
  for (const int32_t row : rows) {
    for (int64_t col = 0; col < k.cols; ++col) *to++ = kernels::LoadSectionElement(k, k_layout, row, col);
    for (int64_t col = 0; col < v.cols; ++col) *to++ = kernels::LoadSectionElement(v, v_layout, row, col);
  }
}

}  // namespace kvblend::kv
