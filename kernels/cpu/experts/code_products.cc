#include <algorithm>
#include <memory_resource>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/row_codes.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

/// Rows of one expert that are multiplied together: rows[first] .. rows[first + count - 1] of an ExpertRows.
struct RowChunk {
  int32_t expert;
  int32_t first;
  int32_t count;  // 1 to kMaxColumnRows
};

/// The rows of x in the order in which experts multiply them, as words of `dtype`, and the sums of sixteens
/// of their inputs.
struct CodeInputs {
  uint32_t* words;  // [rows][steps]
  float* sums;      // [rows][sixteens]
  int64_t steps;
  int64_t sixteens;
  DataType dtype;
};

// A chunk times one column of sixteen outputs.
void MultiplyValues(const QuantizedColumn& column, const CodeInputs& inputs, const ExpertRows& rows,
                    const RowChunk& chunk, int64_t first_output, MatrixView out) {
  const int64_t outputs = std::min(kColumnOutputs, out.cols - first_output);
  float results[kMaxColumnRows * kColumnOutputs];
  simd::QuantizedMatVec(column, inputs.dtype, inputs.words + chunk.first * inputs.steps, inputs.steps,
                        inputs.sums + chunk.first * inputs.sixteens, chunk.count, /*accumulate=*/false,
                        outputs, results, kColumnOutputs);
  for (int32_t r = 0; r < chunk.count; ++r) {
    auto* row = static_cast<float*>(out.Rows(rows.rows[chunk.first + r], 1).data);
    std::copy_n(results + r * kColumnOutputs, outputs, row + first_output);
  }
}

// The same with the chunk's rows as codes.
template <class Code>
void MultiplyCodes(ColumnProduct<Code> product, const QuantizedColumn& column, const CodedRows<Code>& inputs,
                   const ExpertRows& rows, const RowChunk& chunk, int64_t first_output, MatrixView out) {
  float* targets[kMaxColumnRows] = {};
  for (int32_t r = 0; r < chunk.count; ++r) {
    targets[r] = static_cast<float*>(out.Rows(rows.rows[chunk.first + r], 1).data) + first_output;
  }
  MultiplyColumn(product, column, inputs, chunk.count, /*accumulate=*/false,
                 std::min(kColumnOutputs, out.cols - first_output), targets);
}

// Calls multiply(index of a chunk, column, its first output) for all columns of all chunks, in one loop, so
// that a token's few experts keep all threads busy to the end.
void ForColumns(CpuContext& context, const CpuExperts& experts, absl::Span<const RowChunk> chunks,
                int64_t outputs, absl::FunctionRef<void(int64_t, const QuantizedColumn&, int64_t)> multiply) {
  const int64_t columns = (outputs + kColumnOutputs - 1) / kColumnOutputs;
  context.pool.ForStreams(static_cast<int64_t>(chunks.size()) * columns, [&](int64_t i) {
    const int64_t chunk = i / columns, column = i % columns;
    multiply(chunk, experts.expert(chunks[chunk].expert).quantized()->column(column),
             column * kColumnOutputs);
  });
}

template <class Code>
absl::Status CodedProducts(CpuContext& context, const ColumnKernels<Code>& kernels, ConstMatrixView x,
                           const CpuExperts& experts, const ExpertRows& rows,
                           absl::Span<const RowChunk> chunks, MatrixView out) {
  // The group of a row's codes must not depend on the experts that other rows go to.
  int64_t group = kChunkInputs;
  for (int32_t e = 0; e < experts.num_experts(); ++e) {
    const QuantizedMatrix* matrix = experts.expert(e).quantized();
    if (matrix != nullptr) group = std::min(group, matrix->smallest_group());
  }
  // A token stands once for each of its experts, in the tiles of that expert's chunks.
  ListMemory memory(context.scratch);
  std::pmr::vector<TiledRow> places(memory.resource());
  std::pmr::vector<int64_t> begins(memory.resource());
  places.reserve(static_cast<size_t>(out.rows) + chunks.size());
  begins.reserve(chunks.size());
  for (const RowChunk& chunk : chunks) {
    begins.push_back(static_cast<int64_t>(places.size()));
    AppendTiledRows(chunk.count, kernels.tile_rows, places,
                    [&](int64_t i) { return rows.InputOf(rows.rows[chunk.first + i]); });
  }
  KVBLEND_ASSIGN_OR_RETURN(const QuantizedRows<Code> inputs,
                           QuantizeTiledRows<Code>(context, x, group, places, kernels.quantize));
  ForColumns(context, experts, chunks, out.cols,
             [&](int64_t chunk, const QuantizedColumn& column, int64_t first_output) {
               MultiplyCodes(kernels.multiply, column, inputs.rows.Tile(begins[chunk], kernels.tile_rows),
                             rows, chunks[chunk], first_output, out);
             });
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpertCodeProducts(CpuContext& context, ConstMatrixView x, const CpuExperts& experts,
                                const ExpertRows& rows, MatrixView out) {
  ListMemory memory(context.scratch);
  std::pmr::vector<RowChunk> chunks(memory.resource());
  for (int32_t e = 0; e < experts.num_experts(); ++e) {
    if (experts.expert(e).quantized() == nullptr) continue;
    for (int32_t first = rows.begin[e]; first < rows.begin[e + 1]; first += kMaxColumnRows) {
      const int32_t count = std::min<int32_t>(kMaxColumnRows, rows.begin[e + 1] - first);
      chunks.push_back({e, first, count});
    }
  }
  if (chunks.empty()) return absl::OkStatus();
  if (context.codes != nullptr) {
    return CodedProducts(context, context.codes->few_rows, x, experts, rows, chunks, out);
  }
  if (context.pairs != nullptr) {
    int32_t smallest_bits = 8;
    for (const RowChunk& chunk : chunks) {
      smallest_bits = std::min(smallest_bits, experts.expert(chunk.expert).quantized()->smallest_bits());
    }
    if (context.pairs->FewRowsAsPairs(smallest_bits)) {
      return CodedProducts(context, context.pairs->few_pair_rows, x, experts, rows, chunks, out);
    }
    return CodedProducts(context, context.pairs->few_term_rows, x, experts, rows, chunks, out);
  }
  const DataType dtype = simd::GetTiles(context.gemm_dtype).dtype;  // the type that vectors multiply
  CodeInputs inputs{nullptr, nullptr, x.cols * SizeOf(dtype) / static_cast<int64_t>(sizeof(uint32_t)),
                    x.cols / 16, dtype};
  ScratchPool::Lease lease =
      context.scratch.Borrow(out.rows * (inputs.steps + inputs.sixteens) * sizeof(uint32_t));
  if (!lease) return NoMemoryForLinear("its input");
  inputs.words = reinterpret_cast<uint32_t*>(lease.data());
  inputs.sums = reinterpret_cast<float*>(inputs.words + out.rows * inputs.steps);
  ForRows(context.pool, out.rows, x.cols * 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint32_t* words = inputs.words + i * inputs.steps;
      simd::ConvertRow(x.Rows(rows.InputOf(rows.rows[i]), 1).data, x.dtype, words, dtype, x.cols);
      simd::SumSixteens(words, dtype, x.cols, inputs.sums + i * inputs.sixteens);
    }
  });
  ForColumns(context, experts, chunks, out.cols,
             [&](int64_t chunk, const QuantizedColumn& column, int64_t first_output) {
               MultiplyValues(column, inputs, rows, chunks[chunk], first_output, out);
             });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
