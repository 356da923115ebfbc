#include "kernels/cuda/device/kernels.h"

#include <algorithm>

namespace kvblend::kernels::cuda {

FastDivisor FastDivisor::Of(int32_t divisor) {
  int s = 0;
  while ((int64_t{1} << s) < divisor) ++s;
  if (s == 0) return {};
  const auto power = uint64_t{1} << (31 + s);
  const auto d = static_cast<uint64_t>(divisor);
  return {static_cast<uint32_t>((power + d - 1) / d), s - 1, divisor};
}

KvSource KvSource::Of(ConstMatrixView matrix) {
  return {.data = static_cast<const unsigned char*>(matrix.data),
          .encoding = DenseEncoding(matrix.dtype),
          .row_stride = matrix.row_stride};
}

KvSource KvSource::Of(const KvSectionView& section) {
  const KvSectionLayout layout = section.layout();
  return {.data = static_cast<const unsigned char*>(section.data),
          .encoding = section.encoding,
          .per_channel = section.part == KvPart::kKey,
          .row_stride = IsQuantized(section.encoding) ? layout.code_row_bytes : section.cols,
          .scale_cols = layout.scale_cols,
          .steps = layout.steps,
          .codes = layout.codes};
}

int64_t KvPlacements::max_rows() const {
  int32_t rows = 0;
  for (int32_t i = 0; i < count; ++i) rows = std::max(rows, items[i].plan.num_rows);
  return rows;
}

}  // namespace kvblend::kernels::cuda
