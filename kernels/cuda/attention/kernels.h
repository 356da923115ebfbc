// SelectiveAttention on tensor cores: the grid around tile.h. Block (x, y, z) takes row tile x of
// all sequences, kv head y, and share z of the keys that the tile sees. For .cu files, one per dtype.
#pragma once

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/attention/tile.h"

namespace kvblend::kernels::cuda {

/// Index of a row's entry in a workspace array of [splits, rows, heads].
KVBLEND_DEVICE int64_t WorkspaceRow(const AttentionParams& p, const RowPlace& place) {
  return (int64_t{BlockZ()} * p.plan.num_rows + place.token) * p.num_heads + place.head;
}

/// The last tiles see most keys: they begin first, so that no block of theirs is left over at the end.
KVBLEND_DEVICE RowTile FindRowTile(const AttentionParams& p, int rows) {
  const TileOwner owner = FindTile(p.plan.num_sequences, GridX() - 1 - BlockX(), rows, [&](int s) {
    return (p.plan.row_indptr[s + 1] - p.plan.row_indptr[s]) * p.group.divisor;
  });
  return MakeRowTile(p, owner.sequence, owner.tile, BlockY(), rows);
}

/// What was added up before, after the rows' maxima have grown; most tiles leave those of all of a warp's
/// rows as they are.
template <int kColumnTiles>
KVBLEND_DEVICE void Rescale(const float (&rescale)[2], float (&out)[kColumnTiles][4]) {
  if (Ballot(rescale[0] != 1 || rescale[1] != 1) == 0) return;
  KVBLEND_UNROLL
  for (int n = 0; n < kColumnTiles; ++n) {
    KVBLEND_UNROLL
    for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
  }
}

/// The lane's two rows of a strip: their output, or, where other blocks have a part in it, to the workspace.
template <bool kStatistics, int kColumnTiles>
KVBLEND_DEVICE void WriteRows(const AttentionParams& p, const RowTile& tile, const OnlineSoftmax& softmax,
                              const float (&out)[kColumnTiles][4]) {
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = softmax.row + 8 * i;
    if (row >= tile.num_rows) continue;
    const RowPlace place = PlaceOf(p, tile, row);
    const bool shared_row = kStatistics || GridZ() > 1;
    if (shared_row && Lane() % 4 == 0) {
      p.workspace.max[WorkspaceRow(p, place)] = softmax.max[i] * p.log2_scale;
      p.workspace.sum[WorkspaceRow(p, place)] = softmax.sum[i];
    }
    if constexpr (!kStatistics) {
      const int head_dim = p.pages.head_dim;
      const float sink = shared_row ? 0.0f : SinkTerm(p, place.head, softmax.max[i] * p.log2_scale);
      const float inverse = shared_row ? 1.0f : DivRn(1.0f, softmax.sum[i] + sink);
      void* to = shared_row ? p.workspace.out : p.out;
      const DataType dtype = shared_row ? DataType::kF32 : p.out_dtype;
      const int64_t at = shared_row ? WorkspaceRow(p, place) * head_dim
                                    : place.token * p.out_stride + int64_t{place.head} * head_dim;
      KVBLEND_UNROLL
      for (int n = 0; n < kColumnTiles; ++n) {
        const int column = n * 8 + Lane() % 4 * 2;
        if (column < head_dim) StoreValue(to, dtype, at + column, out[n][2 * i] * inverse);
        if (column + 1 < head_dim) StoreValue(to, dtype, at + column + 1, out[n][2 * i + 1] * inverse);
      }
    }
  }
}

/// kStatistics: leaves the rows' softmax statistics in the workspace, and computes no output.
template <int kHeadDim, bool kBf16, bool kStatistics>
KVBLEND_KERNEL(kAttentionThreads, kHeadDim <= 64 ? 3 : 2)
SelectiveAttentionKernel(AttentionParams p) {
  using Tile = AttentionTile<kHeadDim, kBf16>;
  SharedArena arena;
  SharedArray<uint16_t> queries = arena.Take<uint16_t>(Tile::kQueryElements);
  SharedArray<uint16_t> keys = arena.Take<uint16_t>(Tile::kKeyElements);
  SharedArray<uint16_t> values = kStatistics ? keys : arena.Take<uint16_t>(Tile::kKeyElements);

  const RowTile tile = FindRowTile(p, Tile::kRows);
  const KeyRange range = KeyTilesOf(tile);
  const int begin = tile.first_visible, end = tile.max_position + 1;
  const int first_position = p.plan.positions[PlaceOf(p, tile, tile.first_row).token];
  OnlineSoftmax softmax{tile.first_row + Tile::LaneRow(0)};
  float out[1][kStatistics ? 1 : Tile::kColumnTiles][4] = {};

  const bool whole_tiles = Tile::HasWholeTiles(p);
  const auto start = [&](const void* pages, int page, int first_key, SharedArray<uint16_t> to) {
    if (whole_tiles) {
      Tile::StartWholeTile(p, page, tile.kv_head, pages, first_key, begin, end, to);
    } else {
      Tile::StartKeys(p, tile.sequence, tile.kv_head, pages, first_key, begin, end, to);
    }
  };
  // Looked up a tile ahead.
  int page = Tile::PageOf(p, tile.sequence, range.begin * kKeyTile, end), next_page = 0;
  if (range.begin < range.end) start(p.pages.k, page, range.begin * kKeyTile, keys);
  Tile::LoadQueries(p, tile, queries);
  for (int k = range.begin; k < range.end; ++k) {
    const int first_key = k * kKeyTile;
    next_page = Tile::PageOf(p, tile.sequence, first_key + kKeyTile, end);
    CopyAsyncWait<0>();
    SyncThreads();  // the keys are there, and nobody reads the last values any more
    if constexpr (!kStatistics) start(p.pages.v, page, first_key, values);
    float scores[1][Tile::kKeyTiles][4];
    Tile::Scores(queries, keys, scores);
    SyncThreads();  // nobody reads the keys any more
    if (k + 1 < range.end) {
      start(p.pages.k, next_page, first_key + kKeyTile, keys);
    } else {
      CopyAsyncCommit();
    }
    page = next_page;
    CapScores(p, scores[0]);
    if (first_key + kKeyTile - 1 > first_position || p.sliding_window != 0) {
      softmax.Mask(p, tile, first_key, scores[0]);
    }
    float rescale[2];
    softmax.Update(p.log2_scale, scores[0], rescale);
    if constexpr (!kStatistics) {
      Rescale(rescale, out[0]);
      CopyAsyncWait<1>();
      SyncThreads();  // the values are there
      Tile::AddValues(scores, values, out);
    }
  }
  CopyAsyncWait<0>();
  softmax.Finish();
  WriteRows<kStatistics>(p, tile, softmax, out[0]);
}

/// Where there are rows enough: a block holds twice as many, so that what it reads of keys and values feeds
/// two products each, and brings half as many keys at a time, the next ones while it works with these. No
/// splits.
template <int kHeadDim, bool kBf16>
KVBLEND_KERNEL(kAttentionThreads, 2)
TallAttentionKernel(AttentionParams p) {
  using Tile = AttentionTile<kHeadDim, kBf16, kTallStrips, kTallKeys>;
  SharedArena arena;
  SharedArray<uint16_t> queries = arena.Take<uint16_t>(Tile::kQueryElements);
  SharedArray<uint16_t> keys = arena.Take<uint16_t>(2 * Tile::kKeyElements);
  SharedArray<uint16_t> values = arena.Take<uint16_t>(2 * Tile::kKeyElements);

  const RowTile tile = FindRowTile(p, Tile::kRows);
  const int begin = tile.first_visible, end = tile.max_position + 1;
  const int first_position = p.plan.positions[PlaceOf(p, tile, tile.first_row).token];
  OnlineSoftmax softmax[kTallStrips];
  KVBLEND_UNROLL
  for (int m = 0; m < kTallStrips; ++m) softmax[m].row = tile.first_row + Tile::LaneRow(m);
  float out[kTallStrips][Tile::kColumnTiles][4] = {};

  const bool whole_tiles = Tile::HasWholeTiles(p);
  const auto start = [&](int page, int first_key, int stage) {
    const SharedArray<uint16_t> to_keys = keys.Slice(stage * Tile::kKeyElements, Tile::kKeyElements),
                                to_values = values.Slice(stage * Tile::kKeyElements, Tile::kKeyElements);
    if (whole_tiles) {
      Tile::StartWholeTile(p, page, tile.kv_head, p.pages.k, first_key, begin, end, to_keys);
      Tile::StartWholeTile(p, page, tile.kv_head, p.pages.v, first_key, begin, end, to_values);
    } else {
      Tile::StartKeys(p, tile.sequence, tile.kv_head, p.pages.k, first_key, begin, end, to_keys);
      Tile::StartKeys(p, tile.sequence, tile.kv_head, p.pages.v, first_key, begin, end, to_values);
    }
  };
  int stage = 0, first_key = begin / kTallKeys * kTallKeys;
  start(Tile::PageOf(p, tile.sequence, first_key, end), first_key, stage);
  int next_page = Tile::PageOf(p, tile.sequence, first_key + kTallKeys, end);  // looked up a tile ahead
  Tile::LoadQueries(p, tile, queries);
  for (; first_key < end; first_key += kTallKeys, stage ^= 1) {
    CopyAsyncWait<0>();
    SyncThreads();  // this stage is there, and nobody reads the other one any more
    if (first_key + kTallKeys < end) start(next_page, first_key + kTallKeys, stage ^ 1);
    next_page = Tile::PageOf(p, tile.sequence, first_key + 2 * kTallKeys, end);
    const int at = stage * Tile::kKeyElements;
    float scores[kTallStrips][Tile::kKeyTiles][4];
    Tile::Scores(queries, keys.Slice(at, Tile::kKeyElements), scores);
    KVBLEND_UNROLL
    for (int m = 0; m < kTallStrips; ++m) {
      CapScores(p, scores[m]);
      if (first_key + kTallKeys - 1 > first_position || p.sliding_window != 0) {
        softmax[m].Mask(p, tile, first_key, scores[m]);
      }
      float rescale[2];
      softmax[m].Update(p.log2_scale, scores[m], rescale);
      Rescale(rescale, out[m]);
    }
    Tile::AddValues(scores, values.Slice(at, Tile::kKeyElements), out);
  }
  CopyAsyncWait<0>();
  KVBLEND_UNROLL
  for (int m = 0; m < kTallStrips; ++m) {
    softmax[m].Finish();
    WriteRows<false>(p, tile, softmax[m], out[m]);
  }
}

template <int kHeadDim, bool kBf16>
LaunchError LaunchTile(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params,
                       bool statistics) {
  LaunchShape launch{.blocks_x = shape.row_tiles,
                     .blocks_y = params.pages.num_kv_heads,
                     .blocks_z = shape.splits,
                     .threads = kAttentionThreads};
  if constexpr (HasTallTiles(kHeadDim)) {
    if (shape.is_tall && !statistics) {
      launch.shared_bytes = AttentionTile<kHeadDim, kBf16, kTallStrips, kTallKeys>::SharedBytes(4);
      return Launch<TallAttentionKernel<kHeadDim, kBf16>>(stream, launch, params);
    }
  }
  launch.shared_bytes = AttentionTile<kHeadDim, kBf16>::SharedBytes(statistics ? 1 : 2);
  if (statistics) return Launch<SelectiveAttentionKernel<kHeadDim, kBf16, true>>(stream, launch, params);
  return Launch<SelectiveAttentionKernel<kHeadDim, kBf16, false>>(stream, launch, params);
}

}  // namespace kvblend::kernels::cuda
