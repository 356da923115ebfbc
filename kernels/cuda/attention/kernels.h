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

KVBLEND_DEVICE RowTile FindRowTile(const AttentionParams& p) {
  const TileOwner owner = FindTile(p.plan.num_sequences, BlockX(), kRowTile, [&](int s) {
    return (p.plan.row_indptr[s + 1] - p.plan.row_indptr[s]) * p.group.divisor;
  });
  return MakeRowTile(p, owner.sequence, owner.tile, BlockY());
}

/// kStatistics: leaves the rows' softmax statistics in the workspace, and computes no output.
template <int kHeadDim, bool kBf16, bool kStatistics>
KVBLEND_KERNEL(kAttentionThreads, kHeadDim <= 64 ? 3 : 2)
SelectiveAttentionKernel(AttentionParams p) {
  using Tile = AttentionTile<kHeadDim, kBf16>;
  SharedArena arena;
  SharedArray<uint16_t> queries = arena.Take<uint16_t>(Tile::kElements);
  SharedArray<uint16_t> keys = arena.Take<uint16_t>(Tile::kElements);
  SharedArray<uint16_t> values = kStatistics ? keys : arena.Take<uint16_t>(Tile::kElements);

  const RowTile tile = FindRowTile(p);
  const KeyRange range = KeyTilesOf(tile);
  const int begin = tile.first_visible, end = tile.max_position + 1;
  const int first_position = p.plan.positions[PlaceOf(p, tile, tile.first_row).token];
  OnlineSoftmax softmax;
  softmax.Init(p, tile);
  float out[kStatistics ? 1 : Tile::kColumnTiles][4] = {};

  if (range.begin < range.end) {
    Tile::StartKeys(p, tile.sequence, tile.kv_head, p.pages.k, range.begin * kKeyTile, begin, end, keys);
  }
  Tile::LoadQueries(p, tile, queries);
  for (int k = range.begin; k < range.end; ++k) {
    const int first_key = k * kKeyTile;
    CopyAsyncWait<0>();
    SyncThreads();  // the keys are there, and nobody reads the last values any more
    if constexpr (!kStatistics) {
      Tile::StartKeys(p, tile.sequence, tile.kv_head, p.pages.v, first_key, begin, end, values);
    }
    float scores[Tile::kKeyTiles][4];
    Tile::Scores(queries, keys, scores);
    SyncThreads();  // nobody reads the keys any more
    if (k + 1 < range.end) {
      Tile::StartKeys(p, tile.sequence, tile.kv_head, p.pages.k, first_key + kKeyTile, begin, end, keys);
    } else {
      CopyAsyncCommit();
    }
    CapScores(p, scores);
    if (first_key + kKeyTile - 1 > first_position || p.sliding_window != 0) {
      softmax.Mask(first_key, scores);
    }
    float rescale[2];
    softmax.Update(p.log2_scale, scores, rescale);
    if constexpr (!kStatistics) {
      CopyAsyncWait<1>();
      SyncThreads();  // the values are there
      KVBLEND_UNROLL
      for (int n = 0; n < Tile::kColumnTiles; ++n) {
        KVBLEND_UNROLL
        for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
      }
      Tile::AddValues(scores, values, out);
    }
  }
  CopyAsyncWait<0>();
  softmax.Finish();

  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = tile.first_row + Warp() * 16 + Lane() / 4 + 8 * i;
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
      for (int n = 0; n < Tile::kColumnTiles; ++n) {
        const int column = n * 8 + Lane() % 4 * 2;
        if (column < head_dim) StoreValue(to, dtype, at + column, out[n][2 * i] * inverse);
        if (column + 1 < head_dim) StoreValue(to, dtype, at + column + 1, out[n][2 * i + 1] * inverse);
      }
    }
  }
}

template <int kHeadDim, bool kBf16>
LaunchError LaunchTile(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params,
                       bool statistics) {
  using Tile = AttentionTile<kHeadDim, kBf16>;
  const LaunchShape launch{.blocks_x = shape.row_tiles,
                           .blocks_y = params.pages.num_kv_heads,
                           .blocks_z = shape.splits,
                           .threads = kAttentionThreads,
                           .shared_bytes = Tile::SharedBytes(statistics ? 2 : 3)};
  if (statistics) return Launch<SelectiveAttentionKernel<kHeadDim, kBf16, true>>(stream, launch, params);
  return Launch<SelectiveAttentionKernel<kHeadDim, kBf16, false>>(stream, launch, params);
}

}  // namespace kvblend::kernels::cuda
