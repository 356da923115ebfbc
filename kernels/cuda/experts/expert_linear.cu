// Products of rows with the experts that they are sent to. A block takes up to kTileRows rows of one expert,
// which lie anywhere, and kTileOutputs outputs; tiles of both operands come through a ring of stages in
// shared memory. Sums of a row are taken in the same order whatever else is in its tile.
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTileRows = 64;  // a warp takes 16 of them
constexpr int kTileOutputs = 64;
constexpr int kTileInputs = 64;
constexpr int kStages = 3;
constexpr int kStride = kTileInputs + 8;  // 16 bytes more: rows of a matrix lie in different banks
constexpr int kTileElements = kTileRows * kStride;
static_assert(kTileRows == kTileOutputs);
constexpr int kSharedBytes = (kTileRows * 2 + 2 * kStages * kTileElements) * 2;

struct ExpertLinearParams {
  const uint16_t* x;
  int64_t x_stride;
  const uint16_t* weights;  // [num_experts * outputs, weights_stride]
  int64_t weights_stride;
  int32_t inputs;
  int32_t outputs;
  GroupedRows grouped;
  FastDivisor share;
  float* out;
  int64_t out_stride;
};

/// Rows [begin, end) of GroupedRows::rows, all of one expert; the expert is -1 where there are no tiles left.
struct ExpertTile {
  int expert;
  int begin, end;
};

KVBLEND_DEVICE ExpertTile FindExpertTile(const GroupedRows& grouped, int tile) {
  int before = 0;
  for (int first = 0; first < grouped.num_experts; first += kWarpSize) {
    const int expert = first + Lane();
    const int begin = expert < grouped.num_experts ? grouped.begin[expert] : 0;
    const int end = expert < grouped.num_experts ? grouped.begin[expert + 1] : 0;
    const int tiles = (end - begin + kTileRows - 1) / kTileRows;
    const int through = before + WarpInclusiveSum(tiles);
    const uint32_t owners = Ballot(through > tile);
    if (owners != 0) {
      const int owner = FirstSet(owners);
      const int in_expert = tile - Shuffle(through - tiles, owner);
      const int from = Shuffle(begin, owner) + in_expert * kTileRows;
      return {first + owner, from, Min(from + kTileRows, Shuffle(end, owner))};
    }
    before = Shuffle(through, kWarpSize - 1);
  }
  return {-1, 0, 0};
}

/// What a block needs to bring its operands; `rows` [kTileRows] are rows of the output, -1 behind the last.
struct ExpertOperands {
  SharedArray<int32_t> rows;
  SharedArray<uint16_t> x, weights;  // [kStages][kTileRows][kStride]
  int64_t first_weight;              // row of the weights
  int num_outputs;                   // in this block

  /// Begins to copy inputs [step * kTileInputs, ...) into a stage; zeros where there is nothing.
  KVBLEND_DEVICE void Start(const ExpertLinearParams& p, int step) const {
    constexpr int kPieces = kTileInputs / 8;
    const int stage = step % kStages * kTileElements;
    for (int i = ThreadIndex(); i < kTileRows * kPieces; i += kThreads) {
      const int r = i / kPieces, column = step * kTileInputs + i % kPieces * 8;
      const int at = stage + r * kStride + i % kPieces * 8;
      const int row = rows[r];
      const bool has_x = row >= 0 && column < p.inputs;
      const uint16_t* from = p.x;
      if (has_x) from += Divide(p.share, row) * p.x_stride + column;
      if (has_x && column + 8 > p.inputs) {  // nobody may read beyond the row's end
        for (int j = 0; j < 8; ++j) x[at + j] = column + j < p.inputs ? from[j] : uint16_t{0};
      } else {
        CopyAsync16(x, at, from, has_x);
      }
      const bool has_weight = r < num_outputs && column < p.inputs;  // rows are padded with zeros
      const uint16_t* weight = p.weights;
      if (has_weight) weight += (first_weight + r) * p.weights_stride + column;
      CopyAsync16(weights, at, weight, has_weight);
    }
  }
};

KVBLEND_KERNEL(kThreads, 2) ExpertLinearKernel(ExpertLinearParams p) {
  const ExpertTile tile = FindExpertTile(p.grouped, BlockX());
  if (tile.expert < 0) return;
  const int first_output = BlockY() * kTileOutputs, count = tile.end - tile.begin;
  SharedArena arena;
  ExpertOperands operands;
  operands.rows = arena.Take<int32_t>(kTileRows);
  operands.x = arena.Take<uint16_t>(kStages * kTileElements);
  operands.weights = arena.Take<uint16_t>(kStages * kTileElements);
  operands.first_weight = int64_t{tile.expert} * p.outputs + first_output;
  operands.num_outputs = Min(kTileOutputs, p.outputs - first_output);
  for (int r = ThreadIndex(); r < kTileRows; r += kThreads) {
    operands.rows[r] = r < count ? p.grouped.rows[tile.begin + r] : -1;
  }
  SyncThreads();
  const int steps = (p.inputs + kTileInputs - 1) / kTileInputs;
  for (int step = 0; step < kStages - 1; ++step) {
    if (step < steps) operands.Start(p, step);
    CopyAsyncCommit();
  }
  float sums[kTileOutputs / 8][4] = {};
  const int matrix = Lane() / 8, r = Lane() % 8;
  const int x_at = (Warp() * 16 + matrix % 2 * 8 + r) * kStride + matrix / 2 * 8;
  const int weight_at = (matrix / 2 * 8 + r) * kStride + matrix % 2 * 8;
  const bool has_rows = Warp() * 16 < count;
  for (int step = 0; step < steps; ++step) {
    CopyAsyncWait<kStages - 2>();
    SyncThreads();  // all have it, and have finished with the stage that is filled next
    if (step + kStages - 1 < steps) operands.Start(p, step + kStages - 1);
    CopyAsyncCommit();
    if (!has_rows) continue;
    const int stage = step % kStages * kTileElements;
    KVBLEND_UNROLL
    for (int c = 0; c < kTileInputs; c += 16) {
      uint32_t a[4];
      LoadMatrix4(a, operands.x, stage + x_at + c);
      KVBLEND_UNROLL
      for (int n = 0; n < kTileOutputs / 8; n += 2) {
        uint32_t b[4];
        LoadMatrix4(b, operands.weights, stage + weight_at + n * 8 * kStride + c);
        MmaBf16(sums[n], a, b[0], b[1]);
        MmaBf16(sums[n + 1], a, b[2], b[3]);
      }
    }
  }
  CopyAsyncWait<0>();
  if (!has_rows) return;
  KVBLEND_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = operands.rows[Warp() * 16 + Lane() / 4 + 8 * half];
    if (row < 0) continue;
    float* out = p.out + row * p.out_stride + first_output;
    KVBLEND_UNROLL
    for (int n = 0; n < kTileOutputs / 8; ++n) {
      KVBLEND_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int output = n * 8 + Lane() % 4 * 2 + i;
        if (output < operands.num_outputs) out[output] = sums[n][2 * half + i];
      }
    }
  }
}

}  // namespace

LaunchError LaunchExpertLinear(StreamHandle stream, ConstMatrixView x, ConstMatrixView weights,
                               const GroupedRows& grouped, MatrixView out) {
  const int64_t max_tiles = out.rows / kTileRows + grouped.num_experts;
  const int64_t blocks_x = out.rows < max_tiles ? out.rows : max_tiles,
                blocks_y = CeilDiv(out.cols, kTileOutputs);
  if (blocks_y > 65535) return {kInvalidValue};
  const ExpertLinearParams params{.x = static_cast<const uint16_t*>(x.data),
                                  .x_stride = x.row_stride,
                                  .weights = static_cast<const uint16_t*>(weights.data),
                                  .weights_stride = weights.row_stride,
                                  .inputs = static_cast<int32_t>(x.cols),
                                  .outputs = static_cast<int32_t>(out.cols),
                                  .grouped = grouped,
                                  .share = FastDivisor::Of(static_cast<int32_t>(out.rows / x.rows)),
                                  .out = static_cast<float*>(out.data),
                                  .out_stride = out.row_stride};
  return Launch<ExpertLinearKernel>(
      stream, {.blocks_x = blocks_x, .blocks_y = blocks_y, .threads = kThreads, .shared_bytes = kSharedBytes},
      params);
}

}  // namespace kvblend::kernels::cuda
