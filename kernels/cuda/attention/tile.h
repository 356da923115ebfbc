// The inner loop of attention, apart from any grid: a block of 4 warps holds kRowTile query rows and walks
// over key tiles with an online softmax (Milakov, Gimelshein, "Online normalizer calculation for softmax",
// 2018; Dao, "FlashAttention-2", 2023). Products run on the tensor cores as m16n8k16: each warp owns 16 rows,
// and a lane holds elements of rows `lane / 4` and `lane / 4 + 8` of them. For .cu files.
//
// A "row" is one query head of one token; the heads that share a kv head are neighbours, so that their keys
// are read once: row r of a sequence is token r / group, head r % group of the kv head's group.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/attention/score.h"
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {

inline constexpr int kAttentionThreads = 128;
inline constexpr float kNegativeInfinity = -__builtin_inff();

/// Which sequence a block's tile belongs to, when sequence s has CeilDiv(items(s), tile_size) tiles.
struct TileOwner {
  int sequence;
  int tile;  // of the sequence
};

template <typename Items>
KVBLEND_DEVICE TileOwner FindTile(int num_sequences, int tile, int tile_size, const Items& items) {
  int before = 0;
  for (int first = 0; first < num_sequences; first += kWarpSize) {
    const int s = first + Lane();
    const int count = s < num_sequences ? (items(s) + tile_size - 1) / tile_size : 0;
    const int through = before + WarpInclusiveSum(count);
    const uint32_t owners = Ballot(through > tile);
    if (owners != 0) {
      const int owner = FirstSet(owners);
      return {first + owner, tile - Shuffle(through - count, owner)};
    }
    before = Shuffle(through, kWarpSize - 1);
  }
  return {0, 0};
}

/// A tile of query rows of one sequence and kv head.
struct RowTile {
  int sequence;
  int kv_head;
  int first_row;    // in the sequence, of its num_rows * group
  int num_rows;     // of the sequence
  int first_token;  // in the batch: the sequence's first
  int max_position;
  int first_visible;  // the first key that any of its rows sees
};

KVBLEND_DEVICE int FirstVisible(const AttentionParams& p, int position) {
  return p.sliding_window == 0 ? 0 : Max(0, position - p.sliding_window + 1);
}

KVBLEND_DEVICE RowTile MakeRowTile(const AttentionParams& p, int sequence, int tile, int kv_head) {
  RowTile t;
  t.sequence = sequence;
  t.kv_head = kv_head;
  t.first_token = p.plan.row_indptr[sequence];
  t.num_rows = (p.plan.row_indptr[sequence + 1] - t.first_token) * p.group.divisor;
  t.first_row = tile * kRowTile;
  const int last_row = Min(t.first_row + kRowTile, t.num_rows) - 1;
  t.max_position = p.plan.positions[t.first_token + Divide(p.group, last_row)];
  t.first_visible = FirstVisible(p, p.plan.positions[t.first_token + Divide(p.group, t.first_row)]);
  return t;
}

/// The token (in the batch) and the query head of a row of the tile.
struct RowPlace {
  int token;
  int head;
};
KVBLEND_DEVICE RowPlace PlaceOf(const AttentionParams& p, const RowTile& tile, int row) {
  const int token = Divide(p.group, row);
  return {tile.first_token + token, tile.kv_head * p.group.divisor + row - token * p.group.divisor};
}

/// kHeadDim: the pages' head_dim, rounded up to a multiple of 16; columns in between are zeros.
template <int kHeadDim, bool kBf16>
struct AttentionTile {
  static constexpr int kStride = kHeadDim + 8;  // 16 bytes more: rows of a matrix lie in different banks
  static constexpr int kElements = kRowTile * kStride;
  static constexpr int kColumnTiles = kHeadDim / 8;  // of 8 columns
  static constexpr int kKeyTiles = kKeyTile / 8;
  static constexpr DataType kType = kBf16 ? DataType::kBF16 : DataType::kF16;

  static constexpr int SharedBytes(int matrices) { return matrices * kElements * 2; }

  KVBLEND_DEVICE static uint32_t PackPair(float low, float high) {
    if constexpr (kBf16) {
      return PackBf16(low, high);
    } else {
      return PackF16(low, high);
    }
  }
  KVBLEND_DEVICE static void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kBf16) {
      MmaBf16(d, a, b0, b1);
    } else {
      MmaF16(d, a, b0, b1);
    }
  }
  // The largest f16 is 65504: queries beyond it stay finite.
  KVBLEND_DEVICE static float Fit(float x) {
    if constexpr (kBf16) {
      return x;
    } else {
      return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
    }
  }

  /// Rounds the tile's queries to 16 bits. Rows that do not exist become zeros.
  KVBLEND_DEVICE static void LoadQueries(const AttentionParams& p, const RowTile& tile,
                                         SharedArray<uint16_t> queries) {
    constexpr int kPieces = kHeadDim / 8;
    const int head_dim = p.pages.head_dim;
    for (int i = ThreadIndex(); i < kRowTile * kPieces; i += kAttentionThreads) {
      const int r = i / kPieces, column = i % kPieces * 8, row = tile.first_row + r;
      float x[8] = {};
      if (row < tile.num_rows && column < head_dim) {
        const RowPlace place = PlaceOf(p, tile, row);
        const float* from = p.q + place.token * p.q_stride + int64_t{place.head} * head_dim + column;
        if (p.q_vectorises) {
          LoadValues(from, DataType::kF32, 0, x);
        } else {
          for (int j = 0; j < 8; ++j) x[j] = column + j < head_dim ? from[j] : 0.0f;
        }
        for (int j = 0; j < 8; ++j) x[j] = Fit(p.negate ? -x[j] : x[j]);
      }
      StoreShared128(
          queries, r * kStride + column,
          {{PackPair(x[0], x[1]), PackPair(x[2], x[3]), PackPair(x[4], x[5]), PackPair(x[6], x[7])}});
    }
  }

  /// Begins to copy keys or values [first_key, first_key + kKeyTile) of `pages` (pages.k or pages.v); keys
  /// outside [begin, end) become zeros: nobody may have written them. Ends with a CopyAsyncCommit.
  KVBLEND_DEVICE static void StartKeys(const AttentionParams& p, int sequence, int kv_head, const void* pages,
                                       int first_key, int begin, int end, SharedArray<uint16_t> keys) {
    constexpr int kPieces = kHeadDim / 8;
    const int head_dim = p.pages.head_dim;
    const int32_t* page_indices = p.plan.page_indices + p.plan.page_indptr[sequence];
    for (int i = ThreadIndex(); i < kKeyTile * kPieces; i += kAttentionThreads) {
      const int r = i / kPieces, column = i % kPieces * 8, key = first_key + r;
      const bool valid = key >= begin && key < end && column < head_dim;
      const uint16_t* from = static_cast<const uint16_t*>(pages);
      if (valid) {
        const int page_of_sequence = Divide(p.plan.page_size, key);
        const int slot = key - page_of_sequence * p.plan.page_size.divisor;
        const int64_t page = page_indices[page_of_sequence];
        from +=
            ((page * p.pages.num_kv_heads + kv_head) * p.plan.page_size.divisor + slot) * head_dim + column;
      }
      if (p.kv_vectorises) {
        CopyAsync16(keys, r * kStride + column, from, valid ? 16 : 0);
      } else {
        for (int j = 0; j < 8; ++j) {
          keys[r * kStride + column + j] = valid && column + j < head_dim ? from[j] : uint16_t{0};
        }
      }
    }
    CopyAsyncCommit();
  }

  /// scores[n] = queries of this warp times keys 8 n .. 8 n + 7, unscaled.
  KVBLEND_DEVICE static void Scores(SharedArray<uint16_t> queries, SharedArray<uint16_t> keys,
                                    float (&scores)[kKeyTiles][4]) {
    KVBLEND_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      KVBLEND_UNROLL
      for (int i = 0; i < 4; ++i) scores[n][i] = 0;
    }
    const int matrix = Lane() / 8, r = Lane() % 8;
    const int query_at = (Warp() * 16 + matrix % 2 * 8 + r) * kStride + matrix / 2 * 8;
    const int key_at = (matrix / 2 * 8 + r) * kStride + matrix % 2 * 8;
    KVBLEND_UNROLL
    for (int d = 0; d < kHeadDim; d += 16) {
      uint32_t a[4];
      LoadMatrix4(a, queries, query_at + d);
      KVBLEND_UNROLL
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        LoadMatrix4(b, keys, key_at + n * 8 * kStride + d);
        Mma(scores[n], a, b[0], b[1]);
        Mma(scores[n + 1], a, b[2], b[3]);
      }
    }
  }

  /// out += probabilities times values.
  KVBLEND_DEVICE static void AddValues(const float (&probabilities)[kKeyTiles][4],
                                       SharedArray<uint16_t> values, float (&out)[kColumnTiles][4]) {
    const int matrix = Lane() / 8, r = Lane() % 8;
    const int value_at = (matrix % 2 * 8 + r) * kStride + matrix / 2 * 8;
    KVBLEND_UNROLL
    for (int k = 0; k < kKeyTiles; k += 2) {
      const uint32_t a[4] = {PackPair(probabilities[k][0], probabilities[k][1]),
                             PackPair(probabilities[k][2], probabilities[k][3]),
                             PackPair(probabilities[k + 1][0], probabilities[k + 1][1]),
                             PackPair(probabilities[k + 1][2], probabilities[k + 1][3])};
      KVBLEND_UNROLL
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(b, values, value_at + k * 8 * kStride + n * 8);
        Mma(out[n], a, b[0], b[1]);
        Mma(out[n + 1], a, b[2], b[3]);
      }
    }
  }
};

/// Ahead of the mask: the soft cap, where there is one.
template <int kTiles>
KVBLEND_DEVICE void CapScores(const AttentionParams& p, float (&scores)[kTiles][4]) {
  if (p.soft_cap == 0) return;
  KVBLEND_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    KVBLEND_UNROLL
    for (int i = 0; i < 4; ++i) scores[n][i] = CappedScore(p, scores[n][i]);
  }
}

/// The running softmax of a lane's two rows: scores in units of 1 / log2_scale.
struct OnlineSoftmax {
  int position[2];  // -1: no such row
  int first_visible[2];
  float max[2];
  float sum[2];  // over this lane's columns only, until Finish

  KVBLEND_DEVICE void Init(const AttentionParams& p, const RowTile& tile) {
    for (int i = 0; i < 2; ++i) {
      const int row = tile.first_row + Warp() * 16 + Lane() / 4 + 8 * i;
      position[i] = -1;
      if (row < tile.num_rows) position[i] = p.plan.positions[PlaceOf(p, tile, row).token];
      first_visible[i] = FirstVisible(p, position[i]);
      max[i] = kNegativeInfinity;
      sum[i] = 0;
    }
  }

  /// Masks by position: key j of the tile is first_key + j.
  template <int kTiles>
  KVBLEND_DEVICE void Mask(int first_key, float (&scores)[kTiles][4]) const {
    KVBLEND_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      KVBLEND_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + n * 8 + Lane() % 4 * 2 + i % 2;
        if (key > position[i / 2] || key < first_visible[i / 2]) scores[n][i] = kNegativeInfinity;
      }
    }
  }

  /// Turns scores into probabilities relative to the new maximum; what was added up before is to be
  /// multiplied by `rescale`.
  template <int kTiles>
  KVBLEND_DEVICE void Update(float log2_scale, float (&scores)[kTiles][4], float (&rescale)[2]) {
    KVBLEND_UNROLL
    for (int row = 0; row < 2; ++row) {
      float new_max = max[row];
      KVBLEND_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        new_max = Max(new_max, scores[n][2 * row]);
        new_max = Max(new_max, scores[n][2 * row + 1]);
      }
      new_max = Max(new_max, ShuffleXor(new_max, 1));
      new_max = Max(new_max, ShuffleXor(new_max, 2));
      // A row that has seen nothing yet has no maximum: keep exponents away from infinity - infinity.
      const float base = new_max == kNegativeInfinity ? 0.0f : new_max;
      rescale[row] = Exp2((max[row] - base) * log2_scale);
      max[row] = new_max;
      float tile_sum = 0;
      KVBLEND_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        KVBLEND_UNROLL
        for (int i = 2 * row; i < 2 * row + 2; ++i) {
          scores[n][i] = Exp2((scores[n][i] - base) * log2_scale);
          tile_sum += scores[n][i];
        }
      }
      sum[row] = sum[row] * rescale[row] + tile_sum;
    }
  }

  /// Adds the lanes' sums up.
  KVBLEND_DEVICE void Finish() {
    for (int row = 0; row < 2; ++row) {
      sum[row] += ShuffleXor(sum[row], 1);
      sum[row] += ShuffleXor(sum[row], 2);
    }
  }
};

/// The key tiles that this block (one of `splits` along z) walks over for a row tile: [begin, end).
struct KeyRange {
  int begin, end;
};
KVBLEND_DEVICE KeyRange KeyTilesOf(const RowTile& tile) {
  const int begin = tile.first_visible / kKeyTile, end = tile.max_position / kKeyTile + 1;
  const int per_split = (end - begin + GridZ() - 1) / GridZ();
  return {Min(begin + BlockZ() * per_split, end), Min(begin + (BlockZ() + 1) * per_split, end)};
}

}  // namespace kvblend::kernels::cuda
