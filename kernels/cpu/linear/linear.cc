#include "kernels/cpu/linear/linear.h"

#include <algorithm>

#include "kernels/cpu/machine/onednn.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

// Up to this many rows the tiles of tiles.h are faster than oneDNN, which pads rows and columns more. Those
// of AMX are for any number, and without AVX-512 they take all, because oneDNN would want the weights in
// another layout.
constexpr int64_t kMaxTiledRows = 64;
// With more inputs too few rows fit into the second-level cache to make up for expanding columns.
constexpr int64_t kMaxPairedInputs = 2048;

absl::Status MatVec(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                    MatrixView out) {
  const int64_t k = PackedColumns(weights.dtype(), weights.cols());
  ScratchPool::Lease lease = context.scratch.Borrow(x.rows * k * sizeof(float));
  if (!lease) return NoMemoryForLinear("its input");
  auto* input = reinterpret_cast<float*>(lease.data());
  for (int64_t r = 0; r < x.rows; ++r) {
    simd::ConvertRow(x.Rows(r, 1).data, x.dtype, input + r * k, DataType::kF32, x.cols);
    std::fill(input + r * k + x.cols, input + (r + 1) * k, 0.0f);
  }
  const auto& panels = weights.panels().panels;
  context.pool.ParallelFor(static_cast<int64_t>(panels.size()), [&](int64_t i) {
    const WeightPanel& panel = panels[i];
    simd::PackedMatVec(panel.memory.get_data_handle(), weights.dtype(), k, panel.count, input, x.rows,
                       accumulate, static_cast<float*>(out.data) + panel.first, out.row_stride);
  });
  return absl::OkStatus();
}

absl::Status QuantizedMatVec(CpuContext& context, DataType dtype, ConstMatrixView x,
                             const CpuWeights& weights, bool accumulate, MatrixView out) {
  const int64_t steps = x.cols * SizeOf(dtype) / static_cast<int64_t>(sizeof(uint32_t)),
                sixteens = x.cols / 16;
  ScratchPool::Lease lease = context.scratch.Borrow(x.rows * (steps + sixteens) * sizeof(uint32_t));
  if (!lease) return NoMemoryForLinear("its input");
  auto* input = reinterpret_cast<uint32_t*>(lease.data());
  auto* sums = reinterpret_cast<float*>(input + x.rows * steps);
  for (int64_t r = 0; r < x.rows; ++r) {
    simd::ConvertRow(x.Rows(r, 1).data, x.dtype, input + r * steps, dtype, x.cols);
    simd::SumSixteens(input + r * steps, dtype, x.cols, sums + r * sixteens);
  }
  const QuantizedMatrix& matrix = *weights.quantized();
  context.pool.ForStreams(matrix.num_columns(), [&](int64_t c) {
    const int64_t first = c * kColumnOutputs;
    simd::QuantizedMatVec(matrix.column(c), dtype, input, steps, sums, x.rows, accumulate,
                          std::min(kColumnOutputs, weights.rows() - first),
                          static_cast<float*>(out.data) + first, out.row_stride);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status FewRowsLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                           MatrixView out) {
  if (weights.quantized() == nullptr) return MatVec(context, x, weights, accumulate, out);
  const DataType dtype = simd::GetTiles(weights.dtype()).dtype;  // the type that vectors multiply
  return QuantizedMatVec(context, dtype, x, weights, accumulate, out);
}

LinearWay WayOfLinear(const CpuContext& context, int64_t num_rows, const CpuWeights& weights) {
  const bool in_codes = weights.quantized() != nullptr, few = num_rows <= weights.rows_as_alone();
  if (in_codes && context.codes != nullptr) return LinearWay::kInt8;
  if (!few && HasAsymmetricCodes(context, weights)) return LinearWay::kAsymmetric;
  if (in_codes && (context.pairs != nullptr || (few && context.few_pairs != nullptr)))
    return LinearWay::kInt16;
  if (few) return LinearWay::kFewRows;
  const Tiles& tiles = context.TilesFor(weights.dtype());
  const bool paired = tiles.linear_pair != nullptr && weights.cols() <= kMaxPairedInputs;
  const bool faster = num_rows <= kMaxTiledRows || paired || !OneDnnReadsBlocks();
  return faster && tiles.dtype == weights.dtype() ? LinearWay::kTiles : LinearWay::kOneDnn;
}

absl::Status CpuLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                       MatrixView out) {
  if (x.rows == 0) return absl::OkStatus();
  switch (WayOfLinear(context, x.rows, weights)) {
    case LinearWay::kFewRows:
      return FewRowsLinear(context, x, weights, accumulate, out);
    case LinearWay::kTiles:
      return TiledLinear(context, context.TilesFor(weights.dtype()), x, weights, accumulate, out);
    case LinearWay::kOneDnn:
      return OneDnnLinear(context, x, weights, accumulate, out);
    case LinearWay::kInt8:
      return Int8Linear(context, x, weights, accumulate, out);
    case LinearWay::kAsymmetric:
      return AsymmetricLinear(context, x, weights, accumulate, out);
    case LinearWay::kInt16:
      return Int16Linear(context, x, weights, accumulate, out);
  }
  return absl::InternalError("Linear: no way");
}

}  // namespace kvblend::kernels
