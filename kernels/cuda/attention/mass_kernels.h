// The second sweep of AttentionMass on tensor cores: block (x, y) takes key tile x of all sequences and kv
// head y, walks over the sequence's row tiles, and adds up the probabilities that its keys get. Nothing is
// added atomically, so equal inputs give equal bits. For .cu files, one per dtype.
#pragma once

#include "kernels/cuda/attention/launch.h"
#include "kernels/cuda/attention/tile.h"

namespace kvblend::kernels::cuda {

template <int kHeadDim, bool kBf16>
KVBLEND_KERNEL(kAttentionThreads, 2)
AttentionMassKernel(AttentionParams p) {
  using Tile = AttentionTile<kHeadDim, kBf16>;
  SharedArena arena;
  SharedArray<uint16_t> queries = arena.Take<uint16_t>(Tile::kQueryElements);
  SharedArray<uint16_t> keys = arena.Take<uint16_t>(Tile::kKeyElements);
  SharedArray<float> warp_sums = arena.Take<float>(kAttentionThreads / kWarpSize * kKeyTile);

  const TileOwner owner =
      FindTile(p.plan.num_sequences, BlockX(), kKeyTile, [&](int s) { return p.plan.kv_len[s]; });
  const int first_key = owner.tile * kKeyTile, kv_len = p.plan.kv_len[owner.sequence];
  const int num_rows =
      (p.plan.row_indptr[owner.sequence + 1] - p.plan.row_indptr[owner.sequence]) * p.group.divisor;
  Tile::StartKeys(p, owner.sequence, BlockY(), p.pages.k, first_key, 0, kv_len, keys);

  float mass[Tile::kKeyTiles][2] = {};
  for (int t = 0; t * kRowTile < num_rows; ++t) {
    const RowTile tile = MakeRowTile(p, owner.sequence, t, BlockY(), kRowTile);
    if (tile.max_position < first_key || tile.first_visible >= first_key + kKeyTile) continue;
    SyncThreads();  // nobody reads the last queries any more
    Tile::LoadQueries(p, tile, queries);
    const OnlineSoftmax rows{tile.first_row + Tile::LaneRow(0)};
    float log_sum[2];
    KVBLEND_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = rows.row + 8 * i;
      log_sum[i] = 0;
      if (row < tile.num_rows) {
        const RowPlace place = PlaceOf(p, tile, row);
        log_sum[i] = p.workspace.log_sum[int64_t{place.token} * p.num_heads + place.head];
      }
    }
    CopyAsyncWait<0>();
    SyncThreads();
    float strip[1][Tile::kKeyTiles][4];
    float(&scores)[Tile::kKeyTiles][4] = strip[0];
    Tile::Scores(queries, keys, strip);
    CapScores(p, scores);
    rows.Mask(p, tile, first_key, scores);
    KVBLEND_UNROLL
    for (int n = 0; n < Tile::kKeyTiles; ++n) {
      KVBLEND_UNROLL
      for (int i = 0; i < 4; ++i) {
        mass[n][i % 2] += Exp2(FmaRn(scores[n][i], p.log2_scale, -log_sum[i / 2]));
      }
    }
  }
  CopyAsyncWait<0>();

  KVBLEND_UNROLL
  for (int n = 0; n < Tile::kKeyTiles; ++n) {
    KVBLEND_UNROLL
    for (int i = 0; i < 2; ++i) {
      for (int mask = 4; mask < kWarpSize; mask *= 2) mass[n][i] += ShuffleXor(mass[n][i], mask);
      if (Lane() < 4) warp_sums[Warp() * kKeyTile + n * 8 + Lane() * 2 + i] = mass[n][i];
    }
  }
  SyncThreads();
  const int key = first_key + ThreadIndex();
  if (ThreadIndex() < kKeyTile && key < kv_len) {
    float sum = 0;
    for (int w = 0; w < kAttentionThreads / kWarpSize; ++w) sum += warp_sums[w * kKeyTile + ThreadIndex()];
    p.workspace.head_mass[BlockY() * p.total_kv_len + p.plan.kv_offset[owner.sequence] + key] = sum;
  }
}

template <int kHeadDim, bool kBf16>
LaunchError LaunchMassTile(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params) {
  using Tile = AttentionTile<kHeadDim, kBf16>;
  const int sums = kAttentionThreads / kWarpSize * kKeyTile * static_cast<int>(sizeof(float));
  return Launch<AttentionMassKernel<kHeadDim, kBf16>>(stream,
                                                      {.blocks_x = shape.key_tiles,
                                                       .blocks_y = params.pages.num_kv_heads,
                                                       .threads = kAttentionThreads,
                                                       .shared_bytes = Tile::SharedBytes(1) + sums},
                                                      params);
}

}  // namespace kvblend::kernels::cuda
