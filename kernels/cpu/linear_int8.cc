// Many rows in 8 bits: activations with a scale per row (found when they come), weights with one per output.
// oneDNN multiplies the codes, in AVX512-VNNI or AMX. The weights' codes are made anew for every call, some
// outputs at a time, so that weights lie in memory once.
//
// Xiao et al., "SmoothQuant", ICML 2023, section 2, call this per-token and per-channel quantisation.
#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/linear.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/simd.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kRowBlock = 64;
// Codes of weights at a time: they stay in the last-level cache.
constexpr int64_t kMaxCodeBytes = int64_t{8} << 20;

// x in 8 bits, padded with zeros to whole row blocks.
struct Activations {
  ScratchPool::Lease codes_lease, scales_lease;

  const uint8_t* codes() const { return reinterpret_cast<const uint8_t*>(codes_lease.data()); }
  float* scales() const { return reinterpret_cast<float*>(scales_lease.data()); }
};

absl::StatusOr<Activations> Quantise(CpuContext& context, ConstMatrixView x) {
  const int64_t padded = RoundUp(x.rows, kRowBlock);
  Activations result{context.scratch.Borrow(padded * x.cols), context.scratch.Borrow(x.rows * sizeof(float))};
  if (!result.codes_lease || !result.scales_lease) return NoMemoryForLinear("its input in 8 bits");
  auto* codes = reinterpret_cast<uint8_t*>(result.codes_lease.data());
  ForRows(context.pool, x.rows, 4 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      result.scales()[r] = simd::QuantiseActivations(x.Rows(r, 1).data, x.dtype, x.cols, codes + r * x.cols);
    }
  });
  std::memset(codes + x.rows * x.cols, 0, (padded - x.rows) * x.cols);
  return result;
}

// Some outputs' weights in 8 bits.
struct Codes {
  const WeightPanels& panels;
  const float* scales;     // per output
  const int32_t* offsets;  // the same
};

absl::Status Multiply(CpuContext& context, const Activations& x, int64_t rows, int64_t cols,
                      const Codes& weights, bool accumulate, MatrixView out) {
  const auto& panels = weights.panels.panels;
  std::shared_ptr<const Gemm> gemms[2];  // [is the last panel]
  for (const bool last : {false, true}) {
    auto gemm = context.gemms.Get({.types = GemmTypes::kInt8,
                                   .m = kRowBlock,
                                   .n = (last ? panels.back() : panels.front()).count,
                                   .k = cols});
    if (!gemm.ok()) return gemm.status();
    gemms[last] = *std::move(gemm);
  }
  FirstError error;
  const int64_t num_blocks = (rows + kRowBlock - 1) / kRowBlock;
  // Panel by panel, so that the threads share a panel while it is in their caches.
  context.pool.ParallelFor(num_blocks * static_cast<int64_t>(panels.size()), [&](int64_t i) {
    if (!error.ok()) return;
    const WeightPanel& panel = panels[i / num_blocks];
    const int64_t first = i % num_blocks * kRowBlock, end = std::min(rows, first + kRowBlock);
    auto* sums = ThreadScratch<int32_t>(ScratchSlot::kOutput, kRowBlock * panel.count);
    error.Update(gemms[&panel == &panels.back()]->Run(x.codes() + first * cols, panel.memory, sums));
    for (int64_t r = first; r < end; ++r) {
      simd::ScaleSums(sums + (r - first) * panel.count, weights.offsets + panel.first,
                      weights.scales + panel.first, x.scales()[r], accumulate, panel.count,
                      static_cast<float*>(out.data) + r * out.row_stride + panel.first);
    }
  });
  return error.status();
}

absl::Status MultiplyByCodes(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                             bool accumulate, MatrixView out) {
  absl::StatusOr<Activations> activations = Quantise(context, x);
  if (!activations.ok()) return activations.status();
  const DataType dtype = weights.dtype();
  const int64_t block_bytes = PackedColumns(GemmTypes::kInt8, x.cols) * kPackedBlock;
  const int64_t quads = block_bytes / (kPackedBlock * 4);
  const int64_t word_elements = dtype == DataType::kBF16 ? 2 : 1;
  const int64_t steps = PackedColumns(dtype, x.cols) / word_elements;
  const int64_t num_blocks = (weights.rows() + kPackedBlock - 1) / kPackedBlock;
  const int64_t blocks_at_once = std::clamp<int64_t>(kMaxCodeBytes / block_bytes, 1, num_blocks);
  const ScratchPool::Lease codes = context.scratch.Borrow(blocks_at_once * block_bytes),
                           scales = context.scratch.Borrow(blocks_at_once * kPackedBlock * sizeof(float)),
                           offsets = context.scratch.Borrow(blocks_at_once * kPackedBlock * sizeof(int32_t));
  if (!codes || !scales || !offsets) return NoMemoryForLinear("weights in 8 bits");
  auto* scale_of = reinterpret_cast<float*>(scales.data());
  auto* offset_of = reinterpret_cast<int32_t*>(offsets.data());
  for (int64_t block = 0; block < num_blocks; block += blocks_at_once) {
    const int64_t first = block * kPackedBlock,
                  outputs = std::min(blocks_at_once * kPackedBlock, weights.rows() - first);
    const WeightPanels panels = WeightPanels::Over(GemmTypes::kInt8, outputs, x.cols, codes.data());
    context.pool.ParallelFor((outputs + kPackedBlock - 1) / kPackedBlock, [&](int64_t i) {
      auto* scratch = ThreadScratch<uint32_t>(ScratchSlot::kWeights, steps * kPackedBlock);
      simd::QuantiseWeightBlock(weights.Block(block + i, scratch), dtype, steps, quads,
                                reinterpret_cast<uint32_t*>(codes.data() + i * block_bytes),
                                scale_of + i * kPackedBlock, offset_of + i * kPackedBlock);
    });
    absl::Status status = Multiply(context, *activations, x.rows, x.cols, {panels, scale_of, offset_of},
                                   accumulate, out.Columns(first, outputs));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Int8Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                        MatrixView out) {
  try {
    return MultiplyByCodes(context, x, weights, accumulate, out);
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("Linear: oneDNN: ", error.what()));
  }
}

}  // namespace kvblend::kernels
