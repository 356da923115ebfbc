// Products of codes (code_products.h). A few rows are multiplied straight from the weights' codes; for more,
// these are brought into the products' order for every call, a block of outputs at a time, so that weights
// lie in memory once. A row's result is the same bit for bit either way, except with wide groups.
#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "kernels/cpu/linear/block_linear.h"
#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/row_codes.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

// REQUIRES: x.rows <= kMaxColumnRows
template <class Code>
absl::Status FewRows(CpuContext& context, const ColumnKernels<Code>& kernels, ConstMatrixView x,
                     const QuantizedMatrix& matrix, bool accumulate, MatrixView out) {
  absl::InlinedVector<TiledRow, kMaxColumnRows> places;
  AppendTiledRows(x.rows, kernels.tile_rows, places, [](int64_t r) { return r; });
  const auto quantized =
      QuantizeTiledRows<Code>(context, x, matrix.smallest_group(), places, kernels.quantize);
  if (!quantized.ok()) return quantized.status();
  context.pool.ForStreams(matrix.num_columns(), [&](int64_t c) {
    float* targets[kMaxColumnRows];
    for (int64_t r = 0; r < out.rows; ++r) {
      targets[r] = static_cast<float*>(out.data) + r * out.row_stride + c * kColumnOutputs;
    }
    MultiplyColumn(kernels.multiply, matrix.column(c), quantized->rows, out.rows, accumulate,
                   std::min(kColumnOutputs, out.cols - c * kColumnOutputs), targets);
  });
  return absl::OkStatus();
}

// `count` rows for inputs of x, of which nothing is written yet.
template <class Code>
absl::StatusOr<QuantizedRows<Code>> RowsFor(CpuContext& context, int64_t count, int64_t cols, int64_t group,
                                            int64_t tile_rows) {
  QuantizedRows<Code> result;
  result.rows.cols = RoundUp(cols, std::max(group, kChunkInputs));
  result.rows.group = group;
  result.rows.tile_rows = tile_rows;
  const int64_t row_codes = result.rows.cols / CodedRows<Code>::kInputs,
                codes_bytes = count * row_codes * static_cast<int64_t>(sizeof(Code)),
                scales = count * result.rows.groups();
  const int64_t bytes = codes_bytes + 2 * scales * static_cast<int64_t>(sizeof(float));
  result.lease = context.scratch.Borrow(bytes);
  if (!result.lease) return NoMemoryForLinear("its input as codes");
  result.rows.codes = reinterpret_cast<Code*>(result.lease.data());
  result.rows.steps = reinterpret_cast<float*>(result.lease.data() + codes_bytes);
  result.rows.sums = result.rows.steps + scales;
  return result;
}

template <class Code>
void ZeroRow(const CodedRows<Code>& row) {
  for (int64_t g = 0; g < row.groups(); ++g) {
    std::fill_n(row.codes + g * row.group_stride(), row.group_codes(), Code{});
    row.steps[g * row.tile_rows] = row.sums[g * row.tile_rows] = 0.0f;
  }
}

}  // namespace

template <class Code>
absl::StatusOr<QuantizedRows<Code>> QuantizeRows(CpuContext& context, ConstMatrixView x, int64_t group,
                                                 int64_t tile_rows, RowQuantizer<Code> quantize) {
  const int64_t padded = RoundUp(x.rows, tile_rows);
  auto result = RowsFor<Code>(context, padded, x.cols, group, tile_rows);
  if (!result.ok()) return result;
  ForRows(context.pool, padded, 4 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const CodedRows<Code> row = result->rows.Row(r);
      if (r < x.rows) {
        quantize(x.Rows(r, 1).data, x.dtype, x.cols, row);
      } else {
        ZeroRow(row);
      }
    }
  });
  return result;
}

template <class Code>
absl::StatusOr<QuantizedRows<Code>> QuantizeTiledRows(CpuContext& context, ConstMatrixView x, int64_t group,
                                                      absl::Span<const TiledRow> places,
                                                      RowQuantizer<Code> quantize) {
  const auto count = static_cast<int64_t>(places.size());
  auto result = RowsFor<Code>(context, count, x.cols, group, /*tile_rows=*/1);
  if (!result.ok()) return result;
  ForRows(context.pool, count, 4 * x.cols, [&](int64_t begin, int64_t end) {
    for (const TiledRow& place : places.subspan(begin, end - begin)) {
      const CodedRows<Code> row = result->rows.Tile(place.before, place.tile_rows).Row(place.index);
      if (place.source >= 0) {
        quantize(x.Rows(place.source, 1).data, x.dtype, x.cols, row);
      } else {
        ZeroRow(row);
      }
    }
  });
  return result;
}

template absl::StatusOr<QuantizedRows<int8_t>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t, int64_t,
                                                            RowQuantizer<int8_t>);
template absl::StatusOr<QuantizedRows<int16_t>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t, int64_t,
                                                             RowQuantizer<int16_t>);
template absl::StatusOr<QuantizedRows<WideCode>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t, int64_t,
                                                              RowQuantizer<WideCode>);
template absl::StatusOr<QuantizedRows<AsymmetricGroup>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t,
                                                                     int64_t, RowQuantizer<AsymmetricGroup>);
template absl::StatusOr<QuantizedRows<AsymmetricWholeGroup>> QuantizeRows(CpuContext&, ConstMatrixView,
                                                                          int64_t, int64_t,
                                                                          RowQuantizer<AsymmetricWholeGroup>);

template absl::StatusOr<QuantizedRows<int8_t>> QuantizeTiledRows(CpuContext&, ConstMatrixView, int64_t,
                                                                 absl::Span<const TiledRow>,
                                                                 RowQuantizer<int8_t>);
template absl::StatusOr<QuantizedRows<int16_t>> QuantizeTiledRows(CpuContext&, ConstMatrixView, int64_t,
                                                                  absl::Span<const TiledRow>,
                                                                  RowQuantizer<int16_t>);
template absl::StatusOr<QuantizedRows<CodeTerms>> QuantizeTiledRows(CpuContext&, ConstMatrixView, int64_t,
                                                                    absl::Span<const TiledRow>,
                                                                    RowQuantizer<CodeTerms>);

template <class Code>
void MultiplyColumn(ColumnProduct<Code> product, const QuantizedColumn& column, const CodedRows<Code>& rows,
                    int64_t num_rows, bool accumulate, int64_t outputs, float* const* out) {
  if (outputs == kColumnOutputs) return product(column, rows, num_rows, accumulate, out);
  float results[kMaxColumnRows][kColumnOutputs] = {};
  float* targets[kMaxColumnRows] = {};
  for (int64_t r = 0; r < num_rows; ++r) {
    targets[r] = results[r];
    if (accumulate) std::copy_n(out[r], outputs, results[r]);
  }
  product(column, rows, num_rows, accumulate, targets);
  for (int64_t r = 0; r < num_rows; ++r) std::copy_n(results[r], outputs, out[r]);
}

template void MultiplyColumn(ColumnProduct<int8_t>, const QuantizedColumn&, const RowCodes&, int64_t, bool,
                             int64_t, float* const*);
template void MultiplyColumn(ColumnProduct<int16_t>, const QuantizedColumn&, const RowPairs&, int64_t, bool,
                             int64_t, float* const*);
template void MultiplyColumn(ColumnProduct<CodeTerms>, const QuantizedColumn&, const RowTerms&, int64_t, bool,
                             int64_t, float* const*);

absl::Status Int8Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                        MatrixView out) {
  const CodeKernels& kernels = *context.codes;
  const QuantizedMatrix& matrix = *weights.quantized();
  if (x.rows <= kMaxColumnRows) return FewRows(context, kernels.few_rows, x, matrix, accumulate, out);
  return ManyRows(context, kernels.bytes, x, matrix, matrix.smallest_group(), accumulate, out);
}

absl::Status WideInt16Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                             bool accumulate, MatrixView out) {
  return ManyRows(context, context.pairs->wide, x, *weights.quantized(), WideGroup(x.cols), accumulate, out);
}

bool HasAsymmetricCodes(const CpuContext& context, const CpuWeights& weights) {
  const bool tolerates =
      weights.usage() == WeightUsage::kVeryTolerantLinear ||
      (weights.usage() == WeightUsage::kTolerantLinear && context.gemm_dtype != DataType::kBF16);
  return context.tolerant != nullptr && tolerates && weights.quantized() != nullptr &&
         weights.quantized()->smallest_group() == AsymmetricGroup::kInputs &&
         weights.quantized()->largest_bits() <= AsymmetricGroup::kMostWeightBits;
}

absl::Status AsymmetricLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                              bool accumulate, MatrixView out) {
  const CodeKernels& kernels = *context.tolerant;
  if (kernels.whole_groups.multiply != nullptr) {
    return ManyRows(context, kernels.whole_groups, x, *weights.quantized(), AsymmetricWholeGroup::kInputs,
                    accumulate, out);
  }
  return ManyRows(context, kernels.asymmetric, x, *weights.quantized(), AsymmetricGroup::kInputs, accumulate,
                  out);
}

bool TakesGatedAsymmetricCodes(const CpuContext& context, int64_t num_rows, const CpuWeights& weights) {
  return weights.rows() % (2 * kPackedBlock) == 0 &&
         WayOfLinear(context, num_rows, weights) == LinearWay::kAsymmetric;
}

absl::Status AsymmetricGatedLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                                   Activation activation, MatrixView out) {
  const CodeKernels& kernels = *context.tolerant;
  if (kernels.whole_groups.multiply != nullptr) {
    return GatedManyRows(context, kernels.whole_groups, x, *weights.quantized(),
                         AsymmetricWholeGroup::kInputs, activation, out);
  }
  return GatedManyRows(context, kernels.asymmetric, x, *weights.quantized(), AsymmetricGroup::kInputs,
                       activation, out);
}

absl::Status Int16Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                         MatrixView out) {
  if (x.rows > weights.rows_as_alone()) return WideInt16Linear(context, x, weights, accumulate, out);
  const CodeKernels& kernels = context.pairs != nullptr ? *context.pairs : *context.few_pairs;
  const QuantizedMatrix& matrix = *weights.quantized();
  if (x.rows > kMaxColumnRows) {
    return ManyRows(context, kernels.pairs, x, matrix, matrix.smallest_group(), accumulate, out);
  }
  if (kernels.FewRowsAsPairs(matrix.smallest_bits())) {
    return FewRows(context, kernels.few_pair_rows, x, matrix, accumulate, out);
  }
  return FewRows(context, kernels.few_term_rows, x, matrix, accumulate, out);
}

}  // namespace kvblend::kernels
