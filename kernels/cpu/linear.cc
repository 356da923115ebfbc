#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "kernels/cpu/simd.h"

namespace kvblend::kernels {
namespace {

// Rows of one product. From 32 rows on oneDNN runs at full speed; 64 rows of a few hundred bf16 columns and
// their results fit beside a weight panel in the second-level cache.
constexpr int64_t kRowBlock = 64;

// The numbers of rows for which products are prepared; other counts are padded to the next of them.
constexpr int64_t kRowClasses[] = {8, 16, 24, 32, 48, kRowBlock};

int64_t RowClass(int64_t rows) {
  return *std::lower_bound(std::begin(kRowClasses), std::end(kRowClasses), rows);
}

absl::Status NoMemory(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("Linear: no memory for ", what));
}

absl::Status MatVec(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                    MatrixView out) {
  const int64_t k = weights.mat_vec_k();
  ScratchPool::Lease lease = context.scratch.Borrow(x.rows * k * sizeof(float));
  if (!lease) return NoMemory("its input");
  auto* input = reinterpret_cast<float*>(lease.data());
  for (int64_t r = 0; r < x.rows; ++r) {
    simd::ConvertRow(x.Rows(r, 1).data, x.dtype, input + r * k, DataType::kF32, x.cols);
    std::fill(input + r * k + x.cols, input + (r + 1) * k, 0.0f);
  }
  const auto& panels = weights.panels();
  context.pool.ParallelFor(static_cast<int64_t>(panels.size()), [&](int64_t i) {
    const CpuWeights::Panel& panel = panels[i];
    simd::PackedMatVec(panel.memory.get_data_handle(), weights.dtype(), k, panel.count, input, x.rows,
                       accumulate, static_cast<float*>(out.data) + panel.first, out.row_stride);
  });
  return absl::OkStatus();
}

// One row block: where its input lies and which product computes it.
struct RowBlock {
  int64_t first, count;  // rows of x and out
  int64_t padded;        // rows of the product
};

}  // namespace

absl::Status CpuLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                       MatrixView out) {
  if (x.rows == 0) return absl::OkStatus();
  if (x.rows <= simd::kMaxMatVecRows && weights.mat_vec_k() > 0) {
    return MatVec(context, x, weights, accumulate, out);
  }
  const DataType dtype = weights.dtype();
  const auto& panels = weights.panels();
  std::vector<RowBlock> blocks;
  for (int64_t first = 0; first < x.rows; first += kRowBlock) {
    const int64_t count = std::min(kRowBlock, x.rows - first);
    blocks.push_back({first, count, RowClass(count)});
  }
  const RowBlock last = blocks.back();
  const bool tail = last.padded != last.count;

  // The input in the GEMM's type, padded rows zero. What already fits is used where it is, but for a tail.
  const bool convert = x.dtype != dtype;
  const int64_t first_copied = convert ? 0 : tail ? last.first : x.rows;
  const int64_t row_bytes = x.cols * SizeOf(dtype);
  const int64_t copied_rows = first_copied == x.rows ? 0 : last.first + last.padded - first_copied;
  ScratchPool::Lease lease = context.scratch.Borrow(copied_rows * row_bytes);
  if (!lease) return NoMemory("its input");
  ForRows(context.pool, copied_rows, x.cols * SizeOf(x.dtype) + row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::byte* target = lease.data() + r * row_bytes;
      if (first_copied + r < x.rows) {
        simd::ConvertRow(x.Rows(first_copied + r, 1).data, x.dtype, target, dtype, x.cols);
      } else {
        std::memset(target, 0, row_bytes);
      }
    }
  });

  // Prepare the few products before the loop: [full or last block][full or last panel].
  const auto gemm_for = [&](const RowBlock& block, const CpuWeights::Panel& panel, bool copied) {
    const bool padded = block.padded != block.count;
    return context.gemms.Get({.dtype = dtype,
                              .layout = GemmLayout::kPacked,
                              .accumulate = accumulate && !padded,
                              .m = block.padded,
                              .n = panel.count,
                              .k = x.cols,
                              .lda = copied ? x.cols : x.row_stride,
                              .ldb = 0,
                              .ldc = padded ? panel.count : out.row_stride});
  };
  std::shared_ptr<const Gemm> gemms[2][2];
  for (const bool last_block : {false, true}) {
    for (const bool last_panel : {false, true}) {
      const RowBlock& block = last_block ? last : blocks.front();
      auto gemm = gemm_for(block, last_panel ? panels.back() : panels.front(), block.first >= first_copied);
      if (!gemm.ok()) return gemm.status();
      gemms[last_block][last_panel] = *std::move(gemm);
    }
  }

  // Panel by panel, so that the threads share a panel while it is in their caches.
  FirstError error;
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  context.pool.ParallelFor(num_blocks * static_cast<int64_t>(panels.size()), [&](int64_t i) {
    if (!error.ok()) return;
    const CpuWeights::Panel& panel = panels[i / num_blocks];
    const RowBlock& block = blocks[i % num_blocks];
    const Gemm& gemm = *gemms[i % num_blocks == num_blocks - 1][&panel == &panels.back()];
    const void* input = block.first >= first_copied ? lease.data() + (block.first - first_copied) * row_bytes
                                                    : x.Rows(block.first, 1).data;
    auto* target = static_cast<float*>(out.data) + block.first * out.row_stride + panel.first;
    if (block.padded == block.count) {
      error.Update(gemm.Run(input, panel.memory, target));
      return;
    }
    auto* padded = ThreadScratch<float>(ScratchSlot::kOutput, block.padded * panel.count);
    error.Update(gemm.Run(input, panel.memory, padded));
    for (int64_t r = 0; r < block.count; ++r) {
      const float* from = padded + r * panel.count;
      float* to = target + r * out.row_stride;
      if (accumulate) {
        simd::AddScaledRow(from, 1.0f, to, panel.count);
      } else {
        std::memcpy(to, from, panel.count * sizeof(float));
      }
    }
  });
  return error.status();
}

}  // namespace kvblend::kernels
