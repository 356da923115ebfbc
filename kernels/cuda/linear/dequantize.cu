// Weights that come as codes, to bf16: value = scale * (code - zero_point) + minimum, each step rounded on
// its own, as the host reads them.
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCodes = 8;  // per thread: the groups are multiples of it

struct DequantizeParams {
  CodedRows rows;
  uint16_t* out;
  int64_t row_stride;
};

// Codes of 4 bits lie two in a byte, the first in the low half; others take a byte each.
KVBLEND_KERNEL(kThreads, 4) DequantizeKernel(DequantizeParams p) {
  const int64_t pieces = p.rows.cols / kCodes;
  const int64_t piece = int64_t{BlockX()} * kThreads + ThreadIndex();
  if (piece >= pieces) return;
  const int64_t row = BlockY(), first = row * p.rows.cols + piece * kCodes;
  const int64_t group = row * (p.rows.cols / p.rows.group) + piece * kCodes / p.rows.group;
  const float scale = p.rows.scales[group], minimum = p.rows.minimums[group];
  uint32_t low, high = 0;
  const int bits = p.rows.nibbles ? 4 : 8;
  if (p.rows.nibbles) {
    low = *reinterpret_cast<const uint32_t*>(p.rows.codes + first / 2);
  } else {
    const auto* words = reinterpret_cast<const uint32_t*>(p.rows.codes + first);
    low = words[0];
    high = words[1];
  }
  float values[kCodes];
  KVBLEND_UNROLL
  for (int i = 0; i < kCodes; ++i) {
    const uint32_t word = bits == 4 || i < 4 ? low : high;
    const int place = bits == 4 ? i * 4 : i % 4 * 8;
    const int code = static_cast<int>(word >> place & ((1u << bits) - 1));
    values[i] = AddRn(MulRn(scale, static_cast<float>(code - p.rows.zero_point)), minimum);
  }
  StoreValues(p.out, DataType::kBF16, row * p.row_stride + piece * kCodes, values);
}

}  // namespace

LaunchError LaunchDequantize(StreamHandle stream, const CodedRows& rows, uint16_t* out, int64_t row_stride) {
  return Launch<DequantizeKernel>(
      stream, {.blocks_x = CeilDiv(rows.cols / kCodes, kThreads), .blocks_y = rows.rows, .threads = kThreads},
      DequantizeParams{rows, out, row_stride});
}

}  // namespace kvblend::kernels::cuda
