// CorrectKv. A block takes kRows tokens and goes over their channels, K's and then V's, twice: for the inner
// values x down, which stay in shared memory, and for y. So weights are read once for all tokens of a block,
// neighbouring threads read neighbouring ones, and no number of channels is too large. All sums are fp32, in
// an order that other rows do not change.
#include <algorithm>

#include "kernels/cuda/kv/source.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 8;
constexpr int kTile = 512;  // channels of x that lie in shared memory at a time

/// One value for each token of the block.
struct alignas(16) OfRows {
  float row[kRows];
};

// What any GPU gives without being asked for more.
constexpr int kMaxSums = kMaxCorrectionRank > kThreads ? kMaxCorrectionRank : kThreads;
static_assert((kMaxSums + kTile) * sizeof(OfRows) <= 48 * 1024);

struct CorrectKvParams {
  KvSource k, v;
  KvCorrectionView correction;
  void* k_out;
  void* v_out;
  DataType out_dtype;
  int64_t rows;
  int32_t parts;  // a tile's channels are split over that many sums of each inner value
};

KVBLEND_DEVICE OfRows LoadChannel(const CorrectKvParams& p, int64_t first_row, int64_t channel) {
  const int64_t cols = p.correction.cols;
  const bool is_key = channel < cols;
  const KvSource source = is_key ? p.k : p.v;
  OfRows x;
  KVBLEND_UNROLL
  for (int i = 0; i < kRows; ++i) {
    float value[1] = {0};
    if (first_row + i < p.rows) LoadKv(source, first_row + i, is_key ? channel : channel - cols, value);
    x.row[i] = value[0];
  }
  return x;
}

KVBLEND_DEVICE void AddProducts(OfRows& sum, const OfRows& values, float weight) {
  KVBLEND_UNROLL
  for (int i = 0; i < kRows; ++i) sum.row[i] += values.row[i] * weight;
}

/// x down. Sum j is that of part j / rank of inner value j % rank, so that threads read `down` as it lies in
/// memory.
KVBLEND_DEVICE void SumInner(const CorrectKvParams& p, int64_t first_row, SharedArray<OfRows> tile,
                             SharedArray<OfRows> inner) {
  const int rank = p.correction.rank;
  const int64_t channels = 2 * p.correction.cols;
  for (int64_t begin = 0; begin < channels; begin += kTile) {
    const int count = channels - begin < kTile ? static_cast<int>(channels - begin) : kTile;
    SyncThreads();  // the tile before has been read
    for (int c = ThreadIndex(); c < count; c += kThreads) tile[c] = LoadChannel(p, first_row, begin + c);
    SyncThreads();
    for (int j = ThreadIndex(); j < p.parts * rank; j += kThreads) {
      OfRows sum{};
      if (begin > 0) sum = inner[j];
      const int part = j / rank;
      const float* down = p.correction.down + begin * rank + (j - part * rank);
      for (int c = part; c < count; c += p.parts) AddProducts(sum, tile[c], down[int64_t{c} * rank]);
      inner[j] = sum;
    }
  }
  SyncThreads();
  for (int r = ThreadIndex(); r < rank; r += kThreads) {
    OfRows sum = inner[r];
    for (int part = 1; part < p.parts; ++part) AddProducts(sum, inner[part * rank + r], 1.0f);
    inner[r] = sum;
  }
  SyncThreads();
}

/// Only a chunk's first block has rows of several places: all later places begin at multiples of kRows.
static_assert(kRows == 8 && KvCorrectionPlace(8) == KvCorrectionPlace(15));
KVBLEND_DEVICE int PlaceInFirstBlock(int row) { return static_cast<int>(KvCorrectionPlace(row)); }

KVBLEND_KERNEL(kThreads, 4) CorrectKvKernel(CorrectKvParams p) {
  const KvCorrectionView& w = p.correction;
  const int64_t first_row = int64_t{BlockX()} * kRows, channels = 2 * w.cols;
  const int block_place = static_cast<int>(KvCorrectionPlace(first_row));
  SharedArena arena;
  SharedArray<OfRows> inner;
  if (w.rank > 0) {
    inner = arena.Take<OfRows>(p.parts * w.rank);
    SumInner(p, first_row, arena.Take<OfRows>(kTile), inner);
  }
  for (int64_t channel = ThreadIndex(); channel < channels; channel += kThreads) {
    OfRows sum{};
    for (int r = 0; r < w.rank; ++r) AddProducts(sum, inner[r], w.up[r * channels + channel]);
    const OfRows x = LoadChannel(p, first_row, channel);
    const float scale = w.scale[channel];
    const bool is_key = channel < w.cols;
    void* out = is_key ? p.k_out : p.v_out;
    const int64_t col = is_key ? channel : channel - w.cols;
    KVBLEND_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (first_row + i >= p.rows) break;
      const int place = first_row == 0 ? PlaceInFirstBlock(i) : block_place;
      const float offset = w.offset[place * channels + channel];
      StoreValue(out, p.out_dtype, (first_row + i) * w.cols + col, scale * x.row[i] + offset + sum.row[i]);
    }
  }
}

}  // namespace

LaunchError LaunchCorrectKv(StreamHandle stream, const KvSource& k, const KvSource& v,
                            const KvCorrectionView& correction, MutableKvSectionView k_out,
                            MutableKvSectionView v_out) {
  const int32_t parts = std::max(kThreads / std::max(correction.rank, 1), 1);
  const CorrectKvParams params{.k = k,
                               .v = v,
                               .correction = correction,
                               .k_out = k_out.data,
                               .v_out = v_out.data,
                               .out_dtype = DenseType(k_out.encoding),
                               .rows = k_out.rows,
                               .parts = parts};
  const int values = correction.rank == 0 ? 0 : parts * correction.rank + kTile;
  return Launch<CorrectKvKernel>(stream,
                                 {.blocks_x = CeilDiv(k_out.rows, kRows),
                                  .threads = kThreads,
                                  .shared_bytes = values * static_cast<int>(sizeof(OfRows))},
                                 params);
}

}  // namespace kvblend::kernels::cuda
