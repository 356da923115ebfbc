// Rows as the tiles of kernels/cpu/machine/tiles.h multiply them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// The rows of x as words of the tiles' type, in whole tiles: where they lie if they fit, copied otherwise.
class TileInput {
 public:
  /// x: f32 or the tiles' type; must stay. kResourceExhausted when there is no memory for a copy.
  absl::Status Prepare(CpuContext& context, const Tiles& tiles, ConstMatrixView x) {
    const int64_t rows = RoundUp(x.rows, tiles.rows), per_word = tiles.elements_per_word();
    steps_ = tiles.Steps(x.cols);
    const bool fits = x.dtype == tiles.dtype && x.cols == steps_ * per_word && x.row_stride % per_word == 0 &&
                      reinterpret_cast<uintptr_t>(x.data) % sizeof(uint32_t) == 0;
    x_ = static_cast<const uint32_t*>(x.data);
    x_stride_ = x.row_stride / per_word;
    first_copied_ = fits ? x.rows / tiles.rows * tiles.rows : 0;
    lease_ = context.scratch.Borrow((rows - first_copied_) * steps_ * sizeof(uint32_t));
    if (!lease_) return NoMemoryForLinear("its input");
    auto* copy = reinterpret_cast<uint32_t*>(lease_.data());
    const int64_t filled = tiles.Words(x.cols);
    ForRows(context.pool, rows - first_copied_, 2 * steps_ * static_cast<int64_t>(sizeof(uint32_t)),
            [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) {
                uint32_t* row = copy + i * steps_;
                const bool is_padding = first_copied_ + i >= x.rows;
                std::fill(row + (is_padding ? 0 : filled - 1), row + steps_, 0u);  // of the last word half
                if (is_padding) continue;
                simd::ConvertRow(x.Rows(first_copied_ + i, 1).data, x.dtype, row, tiles.dtype, x.cols);
              }
            });
    return absl::OkStatus();
  }

  int64_t steps() const { return steps_; }
  /// A tile's rows, stride() words apart. `row`: its first.
  const uint32_t* tile(int64_t row) const {
    return row < first_copied_
               ? x_ + row * x_stride_
               : reinterpret_cast<const uint32_t*>(lease_.data()) + (row - first_copied_) * steps_;
  }
  int64_t stride(int64_t row) const { return row < first_copied_ ? x_stride_ : steps_; }

 private:
  const uint32_t* x_ = nullptr;
  int64_t x_stride_ = 0, steps_ = 0, first_copied_ = 0;
  ScratchPool::Lease lease_;
};

}  // namespace kvblend::kernels
