// CorrectKv and KvLoad of what it makes, in one kernel on the tensor cores, for the ranks and shapes that
// there are tiles for (kernels/cuda/runtime/correction_tiles.h). A block takes 16 tokens. Its warps share the
// channels of x down, add their parts up in shared memory, and then share the channels of the result: decoded
// once more (from the L1 cache), scaled, moved, corrected, and written to sections, or rotated and written
// into pages. A row's sums are taken in the same order whatever stands beside it.
//
// A chunk of some hundred tokens makes a few dozen blocks, so the time is that of a block: many warps, and
// loads that do not wait for each other. That is why the usual encoding is known when the kernel is compiled,
// and K's tiles and V's have loops of their own: with branches around them, each load would be waited for
// before the next one begins.
#include "kernels/cuda/device/page_slot.h"
#include "kernels/cuda/kv/source.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 384;  // as many as there are registers for
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kTokens = 16;
constexpr int kSums = 8;  // of x down in a lane: two tiles of four

struct CorrectTilesParams {
  // Row y of blocks works on placement y. Sections have one placement, whose plan has num_rows alone.
  KvPlacements placements;
  KvCorrectionView correction;
  DataType out_dtype;  // what corrected values are rounded to
  // Where sections are written:
  void* k_out;
  void* v_out;
  // Where pages are written:
  RopeView rope;
  KvPagesView pages;
};

/// Eight neighbouring channels of the lane's two rows, Lane() / 4 and Lane() / 4 + 8.
struct Pair {
  float row[2][8];
};

/// What a kernel is compiled for: int8 sections, or any.
template <bool kInt8, bool kIsKey>
KVBLEND_DEVICE KvSource SourceOf(const KvPlacement& from) {
  KvSource source = kIsKey ? from.k : from.v;
  if (kInt8) source.encoding = KvEncoding::kInt8;
  source.per_channel = kIsKey;
  return source;
}

/// The first of the lane's eight columns in a tile of K or of V.
KVBLEND_DEVICE int64_t ColumnOf(int tile) { return int64_t{tile} * kTileChannels + Lane() % 4 * 8; }

/// Rows that do not exist have what the last one has, and are not written.
template <bool kInt8, bool kIsKey>
KVBLEND_DEVICE Pair LoadPair(const KvPlacement& from, int first_row, int64_t col) {
  const KvSource source = SourceOf<kInt8, kIsKey>(from);
  Pair x;
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + Lane() / 4 + 8 * i;
    LoadKv(source, row < from.plan.num_rows ? row : from.plan.num_rows - 1, col, x.row[i]);
  }
  return x;
}

struct TileWords {
  Bytes16 half[2];
};
KVBLEND_DEVICE TileWords LoadTile(const uint32_t* tiles, int tile) {
  const uint32_t* from = tiles + (int64_t{tile} * kWarpSize + Lane()) * kTileWords;
  return {{Load128(from), Load128(from + 4)}};
}

template <bool kInt8, bool kIsKey>
KVBLEND_DEVICE void AddTile(const CorrectTilesParams& p, const KvPlacement& from, int first_row, int tile,
                            float (&sums)[2][4]) {
  const Pair x = LoadPair<kInt8, kIsKey>(from, first_row, ColumnOf(tile));
  const int key_tiles = static_cast<int>(p.correction.cols / kTileChannels);
  const TileWords down = LoadTile(p.correction.down_tiles, kIsKey ? tile : key_tiles + tile);
  KVBLEND_UNROLL
  for (int s = 0; s < 2; ++s) {
    uint32_t a[4];
    KVBLEND_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float(&row)[8] = x.row[i % 2];
      a[i] = PackBf16(row[4 * s + i / 2 * 2], row[4 * s + i / 2 * 2 + 1]);
    }
    MmaBf16(sums[0], a, down.half[s].words[0], down.half[s].words[1]);
    MmaBf16(sums[1], a, down.half[s].words[2], down.half[s].words[3]);
  }
}

/// x down of the block's tokens, rounded to bf16, as the left operand of the product with up: every warp has
/// all of it.
template <bool kInt8>
KVBLEND_DEVICE void SumInner(const CorrectTilesParams& p, const KvPlacement& from, int first_row,
                             SharedArray<float> parts, uint32_t (&inner)[4]) {
  float sums[2][4] = {};
  const int tiles = static_cast<int>(p.correction.cols / kTileChannels);
  for (int tile = Warp(); tile < tiles; tile += kWarps) {
    AddTile<kInt8, true>(p, from, first_row, tile, sums);
    AddTile<kInt8, false>(p, from, first_row, tile, sums);
  }
  KVBLEND_UNROLL
  for (int i = 0; i < kSums; ++i) parts[(Warp() * kSums + i) * kWarpSize + Lane()] = sums[i / 4][i % 4];
  SyncThreads();
  KVBLEND_UNROLL
  for (int i = 0; i < kSums; i += 2) {
    float low = 0, high = 0;
    KVBLEND_UNROLL
    for (int warp = 0; warp < kWarps; ++warp) {
      low += parts[(warp * kSums + i) * kWarpSize + Lane()];
      high += parts[(warp * kSums + i + 1) * kWarpSize + Lane()];
    }
    inner[i / 2] = PackBf16(low, high);
  }
}

/// y of the lane's eight channels of a tile of K or of V, rounded to the type of the output.
template <bool kInt8, bool kIsKey>
KVBLEND_DEVICE Pair Corrected(const CorrectTilesParams& p, const KvPlacement& from, int first_row, int tile,
                              const uint32_t (&inner)[4]) {
  const KvCorrectionView& w = p.correction;
  const int64_t channel = (kIsKey ? 0 : w.cols) + ColumnOf(tile);
  Pair y = LoadPair<kInt8, kIsKey>(from, first_row, ColumnOf(tile));
  float sums[4][4] = {};  // channels 2 t and 2 t + 1 of both rows
  if (w.rank > 0) {
    const TileWords up =
        LoadTile(w.up_tiles, kIsKey ? tile : static_cast<int>(w.cols / kTileChannels) + tile);
    KVBLEND_UNROLL
    for (int t = 0; t < 4; ++t) {
      const Bytes16& words = up.half[t / 2];
      MmaBf16(sums[t], inner, words.words[t % 2 * 2], words.words[t % 2 * 2 + 1]);
    }
  }
  float scale[8];
  LoadValues(w.scale, DataType::kF32, channel, scale);
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + Lane() / 4 + 8 * i;
    float offset[8];
    LoadValues(w.offset, DataType::kF32, KvCorrectionPlace(row) * 2 * w.cols + channel, offset);
    KVBLEND_UNROLL
    for (int c = 0; c < 8; ++c) {
      const float value = FmaRn(scale[c], y.row[i][c], AddRn(offset[c], sums[c / 2][2 * i + c % 2]));
      y.row[i][c] = p.out_dtype == DataType::kBF16 ? FromBf16(ToBf16(value)) : value;
    }
  }
  return y;
}

/// Writes the lane's eight columns from `col` on of both rows to a section.
KVBLEND_DEVICE void WriteSection(const CorrectTilesParams& p, const KvPlacement& from, int first_row,
                                 void* section, int64_t col, const Pair& y) {
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + Lane() / 4 + 8 * i;
    if (row < from.plan.num_rows)
      StoreValues(section, p.out_dtype, int64_t{row} * p.correction.cols + col, y.row[i]);
  }
}

template <bool kInt8>
KVBLEND_DEVICE void WriteSections(const CorrectTilesParams& p, const KvPlacement& from, int first_row,
                                  const uint32_t (&inner)[4]) {
  const int tiles = static_cast<int>(p.correction.cols / kTileChannels);
  for (int tile = Warp(); tile < tiles; tile += kWarps) {
    const Pair k = Corrected<kInt8, true>(p, from, first_row, tile, inner),
               v = Corrected<kInt8, false>(p, from, first_row, tile, inner);
    WriteSection(p, from, first_row, p.k_out, ColumnOf(tile), k);
    WriteSection(p, from, first_row, p.v_out, ColumnOf(tile), v);
  }
}

/// Writes the lane's eight columns from `col` on of both rows.
KVBLEND_DEVICE void WritePages(const CorrectTilesParams& p, const KvPlacement& from, int first_row,
                               void* pages, int64_t col, const Pair& y) {
  const int head = static_cast<int>(col) / p.pages.head_dim;
  const int64_t in_head = col - int64_t{head} * p.pages.head_dim;
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + Lane() / 4 + 8 * i;
    if (row < from.plan.num_rows) {
      StoreValues(pages, p.pages.dtype, PageSlot(from.plan, p.pages, row, head) + in_head, y.row[i]);
    }
  }
}

/// Rotates and writes K's columns of both rows whose pairs are (a[i], b[i]), b half a head behind a, which
/// begins at `col`.
KVBLEND_DEVICE void WriteRotatedPairs(const CorrectTilesParams& p, const KvPlacement& from, int first_row,
                                      int64_t col, Pair& a, Pair& b) {
  const int head_dim = p.pages.head_dim, head = static_cast<int>(col) / head_dim,
            in_head = static_cast<int>(col) - head * head_dim;
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + Lane() / 4 + 8 * i;
    if (row >= from.plan.num_rows) continue;
    const float* angles = p.rope.table + int64_t{from.plan.positions[row]} * head_dim + in_head;
    KVBLEND_UNROLL
    for (int c = 0; c < 8; c += 4) {
      const Bytes16 cos = Load128(angles + c), sin = Load128(angles + head_dim / 2 + c);
      KVBLEND_UNROLL
      for (int j = 0; j < 4; ++j) {
        RotatePair(a.row[i][c + j], b.row[i][c + j], FloatFromBits(cos.words[j]),
                   FloatFromBits(sin.words[j]));
      }
    }
    const int64_t to = PageSlot(from.plan, p.pages, row, head) + in_head;
    StoreValues(p.pages.k, p.pages.dtype, to, a.row[i]);
    StoreValues(p.pages.k, p.pages.dtype, to + head_dim / 2, b.row[i]);
  }
}

/// Rotates pairs that are neighbours, whose angles begin with number `first`.
KVBLEND_DEVICE void RotateNeighbours(const CorrectTilesParams& p, const KvPlacement& from, int first_row,
                                     int first, Pair& a) {
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + Lane() / 4 + 8 * i;
    if (row >= from.plan.num_rows) continue;
    const int head_dim = p.pages.head_dim;
    const float* cos = p.rope.table + int64_t{from.plan.positions[row]} * head_dim + first;
    const float* sin = cos + head_dim / 2;
    KVBLEND_UNROLL
    for (int c = 0; c < 4; ++c) RotatePair(a.row[i][2 * c], a.row[i][2 * c + 1], cos[c], sin[c]);
  }
}

/// K's tiles whose pairs lie half a head apart are taken two at a time.
template <bool kInt8>
KVBLEND_DEVICE void WriteIntoPages(const CorrectTilesParams& p, const KvPlacement& from, int first_row,
                                   const uint32_t (&inner)[4]) {
  const int head_dim = p.pages.head_dim, tiles_of_half = head_dim / 2 / kTileChannels;
  const int tiles = static_cast<int>(p.correction.cols / kTileChannels);
  if (p.rope.interleaved) {
    for (int tile = Warp(); tile < tiles; tile += kWarps) {
      Pair k = Corrected<kInt8, true>(p, from, first_row, tile, inner);
      RotateNeighbours(p, from, first_row, static_cast<int>(ColumnOf(tile)) % head_dim / 2, k);
      WritePages(p, from, first_row, p.pages.k, ColumnOf(tile), k);
    }
  } else {
    for (int unit = Warp(); unit < tiles / 2; unit += kWarps) {
      const int tile = unit + unit / tiles_of_half * tiles_of_half, other = tile + tiles_of_half;
      Pair a = Corrected<kInt8, true>(p, from, first_row, tile, inner),
           b = Corrected<kInt8, true>(p, from, first_row, other, inner);
      WriteRotatedPairs(p, from, first_row, ColumnOf(tile), a, b);
    }
  }
  for (int tile = Warp(); tile < tiles; tile += kWarps) {
    const Pair v = Corrected<kInt8, false>(p, from, first_row, tile, inner);
    WritePages(p, from, first_row, p.pages.v, ColumnOf(tile), v);
  }
}

template <bool kIntoPages, bool kInt8>
KVBLEND_KERNEL(kThreads, 1)
CorrectTilesKernel(CorrectTilesParams p) {
  const KvPlacement& from = p.placements.items[BlockY()];
  const int first_row = BlockX() * kTokens;
  if (first_row >= from.plan.num_rows) return;
  SharedArena arena;
  uint32_t inner[4] = {};
  if (p.correction.rank > 0) {
    SumInner<kInt8>(p, from, first_row, arena.Take<float>(kWarps * kSums * kWarpSize), inner);
  }
  if constexpr (kIntoPages) {
    WriteIntoPages<kInt8>(p, from, first_row, inner);
  } else {
    WriteSections<kInt8>(p, from, first_row, inner);
  }
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

template <bool kIntoPages>
LaunchError LaunchTiles(StreamHandle stream, const CorrectTilesParams& params) {
  const int floats = params.correction.rank > 0 ? kWarps * kSums * kWarpSize : 0;
  const LaunchShape shape{.blocks_x = CeilDiv(params.placements.max_rows(), kTokens),
                          .blocks_y = params.placements.count,
                          .threads = kThreads,
                          .shared_bytes = floats * static_cast<int>(sizeof(float))};
  return params.placements.items[0].k.encoding == KvEncoding::kInt8
             ? Launch<CorrectTilesKernel<kIntoPages, true>>(stream, shape, params)
             : Launch<CorrectTilesKernel<kIntoPages, false>>(stream, shape, params);
}

}  // namespace

bool CorrectsInTiles(const KvSource& k, const KvSource& v, const KvCorrectionView& correction) {
  const bool fits = correction.rank == 0 || correction.down_tiles != nullptr;
  return fits && k.encoding == v.encoding && correction.cols % kTileChannels == 0 &&
         Aligned(correction.scale) && VectorisesSource(k, correction.cols) &&
         VectorisesSource(v, correction.cols);
}

bool LoadsCorrectedInTiles(const KvSource& k, const KvSource& v, const KvCorrectionView& correction,
                           const RopeView& rope, const KvPagesView& pages) {
  const int columns = rope.interleaved ? kTileChannels : 2 * kTileChannels;
  return CorrectsInTiles(k, v, correction) && pages.head_dim % columns == 0 && Aligned(pages.k) &&
         Aligned(pages.v) && Aligned(rope.table);
}

LaunchError LaunchCorrectKvInTiles(StreamHandle stream, const KvSource& k, const KvSource& v,
                                   const KvCorrectionView& correction, MutableKvSectionView k_out,
                                   MutableKvSectionView v_out) {
  CorrectTilesParams params{};
  params.placements.items[0] = {.plan = {}, .k = k, .v = v};
  params.placements.items[0].plan.num_rows = static_cast<int32_t>(k_out.rows);
  params.placements.count = 1;
  params.correction = correction;
  params.out_dtype = DenseType(k_out.encoding);
  params.k_out = k_out.data;
  params.v_out = v_out.data;
  return LaunchTiles<false>(stream, params);
}

LaunchError LaunchKvLoadCorrected(StreamHandle stream, const KvPlacements& placements, const RopeView& rope,
                                  const KvCorrectionView& correction, DataType rounded_to,
                                  KvPagesView pages) {
  CorrectTilesParams params{};
  params.placements = placements;
  params.correction = correction;
  params.out_dtype = rounded_to;
  params.rope = rope;
  params.pages = pages;
  return LaunchTiles<true>(stream, params);
}

}  // namespace kvblend::kernels::cuda
