// Elements of matrices of any dtype, one at a time.
#pragma once

#include <cstdint>

#include "kernels/host/float_convert.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::reference {

inline float Get(ConstMatrixView m, int64_t row, int64_t col) {
  return LoadElement(m.data, m.dtype, row * m.row_stride + col);
}

inline void Set(MatrixView m, int64_t row, int64_t col, float value) {
  StoreElement(m.data, m.dtype, row * m.row_stride + col, value);
}

}  // namespace kvblend::kernels::reference
