#include <algorithm>
#include <memory_resource>
#include <vector>

#include "kernels/cpu/experts/experts.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

/// Rows of one expert that are multiplied together: rows[first] .. rows[first + count - 1] of an ExpertRows.
struct RowChunk {
  int32_t expert;
  int32_t first;
  int32_t count;  // 1 to kMaxQuantizedRows
};

/// The rows of x in the order in which experts multiply them, as words of `dtype`, and the sums of sixteens of their inputs.
struct CodeInputs {
  uint32_t* words;  // [rows][steps]
  float* sums;      // [rows][sixteens]
  int64_t steps;
  int64_t sixteens;
  DataType dtype;
};

// A chunk times one column of sixteen outputs.
void MultiplyColumn(const QuantizedColumn& column, const CodeInputs& inputs, const ExpertRows& rows,
                    const RowChunk& chunk, int64_t first_output, MatrixView out) {
  const int64_t outputs = std::min(kColumnOutputs, out.cols - first_output);
  float results[simd::kMaxQuantizedRows * kColumnOutputs];
  simd::QuantizedMatVec(column, inputs.dtype, inputs.words + chunk.first * inputs.steps, inputs.steps,
                        inputs.sums + chunk.first * inputs.sixteens, chunk.count, /*accumulate=*/false,
                        outputs, results, kColumnOutputs);
  for (int32_t r = 0; r < chunk.count; ++r) {
    auto* row = static_cast<float*>(out.Rows(rows.rows[chunk.first + r], 1).data);
    std::copy_n(results + r * kColumnOutputs, outputs, row + first_output);
  }
}

}  // namespace

absl::Status ExpertCodeProducts(CpuContext& context, ConstMatrixView x, const CpuExperts& experts,
                                const ExpertRows& rows, MatrixView out) {
  ListMemory memory(context.scratch);
  std::pmr::vector<RowChunk> chunks(memory.resource());
  for (int32_t e = 0; e < experts.num_experts(); ++e) {
    if (experts.expert(e).quantized() == nullptr) continue;
    for (int32_t first = rows.begin[e]; first < rows.begin[e + 1]; first += simd::kMaxQuantizedRows) {
      const int32_t count = std::min<int32_t>(simd::kMaxQuantizedRows, rows.begin[e + 1] - first);
      chunks.push_back({e, first, count});
    }
  }
  if (chunks.empty()) return absl::OkStatus();
  const DataType dtype = simd::GetTiles(context.gemm_dtype).dtype;  // what vectors multiply
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
  // Parts of all chunks in one loop, so that a token's few experts keep all threads busy to the end.
  const int64_t columns = (out.cols + kColumnOutputs - 1) / kColumnOutputs,
                num_chunks = static_cast<int64_t>(chunks.size()),
                wanted = (int64_t{16} * context.pool.num_threads() + num_chunks - 1) / num_chunks,
                parts = std::min(columns, wanted);
  context.pool.ParallelFor(num_chunks * parts, [&](int64_t i) {
    const RowChunk& chunk = chunks[i / parts];
    const int64_t part = i % parts;
    const QuantizedMatrix& matrix = *experts.expert(chunk.expert).quantized();
    for (int64_t c = part * columns / parts; c < (part + 1) * columns / parts; ++c) {
      MultiplyColumn(matrix.column(c), inputs, rows, chunk, c * kColumnOutputs, out);
    }
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
