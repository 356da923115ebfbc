// out (+)= x w^T, bf16 products with fp32 sums: what runs where cuBLASLt does not (in the emulation). A block
// of 4 warps computes 64 x 64 elements, two stages of cp.async ahead of the tensor cores.
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = 64;
constexpr int kDepth = 32;           // of one stage
constexpr int kStride = kDepth + 8;  // rows in different banks
constexpr int kStage = kTile * kStride;

struct MatmulParams {
  ConstMatrixView x;  // [n, k]
  ConstMatrixView w;  // [m, k]
  MatrixView out;     // [n, m]
  bool accumulate;
};

// Rows beyond the matrix and columns beyond its depth become zeros.
KVBLEND_DEVICE void StartStage(const ConstMatrixView& matrix, int64_t first_row, int64_t first_col,
                               SharedArray<uint16_t> stage) {
  for (int i = ThreadIndex(); i < kTile * kDepth / 8; i += kThreads) {
    const int r = i / (kDepth / 8), c = i % (kDepth / 8) * 8;
    const int64_t row = first_row + r, left = matrix.cols - first_col - c;
    const bool valid = row < matrix.rows && left > 0;
    const auto* from = static_cast<const uint16_t*>(matrix.data);
    if (valid) from += row * matrix.row_stride + first_col + c;
    CopyAsync16(stage, r * kStride + c, from, valid ? (left < 8 ? static_cast<int>(left) * 2 : 16) : 0);
  }
}

KVBLEND_KERNEL(kThreads, 4) MatmulKernel(MatmulParams p) {
  SharedArena arena;
  SharedArray<uint16_t> x = arena.Take<uint16_t>(2 * kStage), w = arena.Take<uint16_t>(2 * kStage);
  const int64_t first_row = int64_t{BlockY()} * kTile, first_col = int64_t{BlockX()} * kTile;
  const int steps = static_cast<int>((p.x.cols + kDepth - 1) / kDepth);
  // Each warp computes a quarter: 32 x 32.
  const int warp_row = Warp() / 2 * 32, warp_col = Warp() % 2 * 32;
  const int matrix = Lane() / 8, r = Lane() % 8;
  float sums[2][4][4] = {};

  StartStage(p.x, first_row, 0, x.Slice(0, kStage));
  StartStage(p.w, first_col, 0, w.Slice(0, kStage));
  CopyAsyncCommit();
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2 * kStage;
    CopyAsyncWait<0>();
    SyncThreads();  // this stage is there, and nobody reads the other one any more
    if (step + 1 < steps) {
      StartStage(p.x, first_row, int64_t{step + 1} * kDepth, x.Slice(kStage - stage, kStage));
      StartStage(p.w, first_col, int64_t{step + 1} * kDepth, w.Slice(kStage - stage, kStage));
    }
    CopyAsyncCommit();
    KVBLEND_UNROLL
    for (int d = 0; d < kDepth; d += 16) {
      uint32_t a[2][4], b[2][4];
      KVBLEND_UNROLL
      for (int i = 0; i < 2; ++i) {
        LoadMatrix4(a[i], x, stage + (warp_row + i * 16 + matrix % 2 * 8 + r) * kStride + d + matrix / 2 * 8);
        LoadMatrix4(b[i], w, stage + (warp_col + i * 16 + matrix / 2 * 8 + r) * kStride + d + matrix % 2 * 8);
      }
      KVBLEND_UNROLL
      for (int i = 0; i < 2; ++i) {
        KVBLEND_UNROLL
        for (int j = 0; j < 4; ++j) MmaBf16(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
  CopyAsyncWait<0>();

  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    KVBLEND_UNROLL
    for (int j = 0; j < 4; ++j) {
      KVBLEND_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int64_t row = first_row + warp_row + i * 16 + Lane() / 4 + e / 2 * 8;
        const int64_t col = first_col + warp_col + j * 8 + Lane() % 4 * 2 + e % 2;
        if (row >= p.out.rows || col >= p.out.cols) continue;
        float* out = static_cast<float*>(p.out.data) + row * p.out.row_stride + col;
        *out = p.accumulate ? *out + sums[i][j][e] : sums[i][j][e];
      }
    }
  }
}

}  // namespace

LaunchError LaunchMatmul(StreamHandle stream, ConstMatrixView x, ConstMatrixView w, bool accumulate,
                         MatrixView out) {
  return Launch<MatmulKernel>(stream,
                              {.blocks_x = CeilDiv(out.cols, kTile),
                               .blocks_y = CeilDiv(out.rows, kTile),
                               .threads = kThreads,
                               .shared_bytes = 4 * kStage * static_cast<int>(sizeof(uint16_t))},
                              MatmulParams{x, w, out, accumulate});
}

}  // namespace kvblend::kernels::cuda
