// Rows of activations as codes, in working memory.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Owns the memory of its rows.
template <class Code>
struct QuantizedRows {
  ScratchPool::Lease lease;
  CodedRows<Code> rows;  // in whole tiles, in which rows of zeros stand for those that lack
};

/// x in groups of `group` inputs and tiles of `tile_rows` rows, each rounded by `quantize`.
/// kResourceExhausted: no memory.
template <class Code>
absl::StatusOr<QuantizedRows<Code>> QuantizeRows(CpuContext& context, ConstMatrixView x, int64_t group,
                                                 int64_t tile_rows, RowQuantizer<Code> quantize);

/// Rows of x in groups of `group` inputs, in the given places; places that no row takes are zeros.
/// kResourceExhausted: no memory.
template <class Code>
absl::StatusOr<QuantizedRows<Code>> QuantizeTiledRows(CpuContext& context, ConstMatrixView x, int64_t group,
                                                      absl::Span<const TiledRow> places,
                                                      RowQuantizer<Code> quantize);

/// A column's first `outputs` outputs by num_rows rows into out[r][0 .. outputs), by `product`, which is of
/// CodeKernels.
template <class Code>
void MultiplyColumn(ColumnProduct<Code> product, const QuantizedColumn& column, const CodedRows<Code>& rows,
                    int64_t num_rows, bool accumulate, int64_t outputs, float* const* out);

}  // namespace kvblend::kernels
