// Elements of matrices of any dtype, one at a time.
#pragma once

#include <cstdint>

#include "absl/base/attributes.h"
#include "kernels/host/float_convert.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::reference {

ABSL_ATTRIBUTE_ALWAYS_INLINE inline float Get(ConstMatrixView m, int64_t row, int64_t col) {
  return LoadElement(m.data, m.dtype, row * m.row_stride + col);
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void Set(MatrixView m, int64_t row, int64_t col, float value) {
  StoreElement(m.data, m.dtype, row * m.row_stride + col, value);
}

}  // namespace kvblend::kernels::reference
