// The inner loop of attention, apart from any grid: a block of 4 warps holds one or two times kRowTile query
// rows and walks over key tiles with an online softmax (Milakov, Gimelshein, "Online normalizer calculation
// for softmax", 2018; Dao, "FlashAttention-2", 2023). Products run on the tensor cores as m16n8k16: each warp
// owns one or two strips of 16 rows, and a lane holds elements of rows `lane / 4` and `lane / 4 + 8` of each.
// With two strips what is read of keys and values feeds two products, which shared memory is then quick
// enough for. For .cu files.
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

/// `rows`: of a tile.
KVBLEND_DEVICE RowTile MakeRowTile(const AttentionParams& p, int sequence, int tile, int kv_head, int rows) {
  RowTile t;
  t.sequence = sequence;
  t.kv_head = kv_head;
  t.first_token = p.plan.row_indptr[sequence];
  t.num_rows = (p.plan.row_indptr[sequence + 1] - t.first_token) * p.group.divisor;
  t.first_row = tile * rows;
  const int last_row = Min(t.first_row + rows, t.num_rows) - 1;
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

/// kHeadDim: the pages' head_dim, rounded up to a multiple of 16; columns in between are zeros. kStrips: of a
/// warp. kKeys: of a tile.
template <int kHeadDim, bool kBf16, int kStrips = 1, int kKeys = kKeyTile>
struct AttentionTile {
  static constexpr int kStride = kHeadDim + 8;  // 16 bytes more: rows of a matrix lie in different banks
  static constexpr int kRows = kStrips * kRowTile;
  static constexpr int kQueryElements = kRows * kStride;
  static constexpr int kKeyElements = kKeys * kStride;  // and values'
  static constexpr int kColumnTiles = kHeadDim / 8;     // of 8 columns
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr DataType kType = kBf16 ? DataType::kBF16 : DataType::kF16;

  /// `key_matrices`: of keys or of values.
  static constexpr int SharedBytes(int key_matrices) {
    return (kQueryElements + key_matrices * kKeyElements) * 2;
  }
  /// Row of the tile that the lane holds elements of, and the one 8 further on.
  KVBLEND_DEVICE static int LaneRow(int strip) { return (Warp() * kStrips + strip) * 16 + Lane() / 4; }

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
    for (int i = ThreadIndex(); i < kRows * kPieces; i += kAttentionThreads) {
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

  /// Begins to copy keys or values [first_key, first_key + kKeys) of `pages` (pages.k or pages.v); keys
  /// outside [begin, end) become zeros: nobody may have written them. Ends with a CopyAsyncCommit.
  KVBLEND_DEVICE static void StartKeys(const AttentionParams& p, int sequence, int kv_head, const void* pages,
                                       int first_key, int begin, int end, SharedArray<uint16_t> keys) {
    constexpr int kPieces = kHeadDim / 8;
    const int head_dim = p.pages.head_dim;
    const int32_t* page_indices = p.plan.page_indices + p.plan.page_indptr[sequence];
    for (int i = ThreadIndex(); i < kKeys * kPieces; i += kAttentionThreads) {
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
        CopyAsync16(keys, r * kStride + column, from, valid);
      } else {
        for (int j = 0; j < 8; ++j) {
          keys[r * kStride + column + j] = valid && column + j < head_dim ? from[j] : uint16_t{0};
        }
      }
    }
    CopyAsyncCommit();
  }

  /// Whether every tile lies in one page, and StartWholeTile may take the place of StartKeys.
  KVBLEND_DEVICE static bool HasWholeTiles(const AttentionParams& p) {
    return kAttentionThreads % (kHeadDim / 8) == 0 && p.kv_vectorises && p.pages.head_dim == kHeadDim &&
           p.plan.page_size.divisor % kKeys == 0;
  }
  /// The page of the tile, to be looked up ahead of StartWholeTile; any where the tile is behind the last
  /// key.
  KVBLEND_DEVICE static int PageOf(const AttentionParams& p, int sequence, int first_key, int end) {
    if (first_key >= end) return 0;
    return p.plan.page_indices[p.plan.page_indptr[sequence] + Divide(p.plan.page_size, first_key)];
  }
  KVBLEND_DEVICE static void StartWholeTile(const AttentionParams& p, int page, int kv_head,
                                            const void* pages, int first_key, int begin, int end,
                                            SharedArray<uint16_t> keys) {
    constexpr int kPieces = kHeadDim / 8, kAtOnce = kAttentionThreads / kPieces;
    const int page_size = p.plan.page_size.divisor, row = ThreadIndex() / kPieces,
              column = ThreadIndex() % kPieces * 8;
    const int slot = first_key - Divide(p.plan.page_size, first_key) * page_size + row;
    const uint16_t* from = static_cast<const uint16_t*>(pages) +
                           ((int64_t{page} * p.pages.num_kv_heads + kv_head) * page_size + slot) * kHeadDim +
                           column;
    const bool is_whole = first_key >= begin && first_key + kKeys <= end;
    KVBLEND_UNROLL
    for (int r = 0; r < kKeys; r += kAtOnce) {
      const int key = first_key + row + r;
      CopyAsync16(keys, (row + r) * kStride + column, from + r * kHeadDim,
                  is_whole || (key >= begin && key < end));
    }
    CopyAsyncCommit();
  }

  /// scores[m][n] = queries of strip m times keys 8 n .. 8 n + 7, unscaled.
  KVBLEND_DEVICE static void Scores(SharedArray<uint16_t> queries, SharedArray<uint16_t> keys,
                                    float (&scores)[kStrips][kKeyTiles][4]) {
    KVBLEND_UNROLL
    for (int m = 0; m < kStrips; ++m) {
      KVBLEND_UNROLL
      for (int n = 0; n < kKeyTiles; ++n) {
        KVBLEND_UNROLL
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
      }
    }
    const int matrix = Lane() / 8, r = Lane() % 8;
    const int query_at = (Warp() * kStrips * 16 + matrix % 2 * 8 + r) * kStride + matrix / 2 * 8;
    const int key_at = (matrix / 2 * 8 + r) * kStride + matrix % 2 * 8;
    KVBLEND_UNROLL
    for (int d = 0; d < kHeadDim; d += 16) {
      uint32_t a[kStrips][4];
      KVBLEND_UNROLL
      for (int m = 0; m < kStrips; ++m) LoadMatrix4(a[m], queries, query_at + m * 16 * kStride + d);
      KVBLEND_UNROLL
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        LoadMatrix4(b, keys, key_at + n * 8 * kStride + d);
        KVBLEND_UNROLL
        for (int m = 0; m < kStrips; ++m) {
          Mma(scores[m][n], a[m], b[0], b[1]);
          Mma(scores[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  /// out += probabilities times values.
  KVBLEND_DEVICE static void AddValues(const float (&probabilities)[kStrips][kKeyTiles][4],
                                       SharedArray<uint16_t> values, float (&out)[kStrips][kColumnTiles][4]) {
    const int matrix = Lane() / 8, r = Lane() % 8;
    const int value_at = (matrix % 2 * 8 + r) * kStride + matrix / 2 * 8;
    KVBLEND_UNROLL
    for (int k = 0; k < kKeyTiles; k += 2) {
      uint32_t a[kStrips][4];
      KVBLEND_UNROLL
      for (int m = 0; m < kStrips; ++m) {
        KVBLEND_UNROLL
        for (int i = 0; i < 4; ++i) {
          a[m][i] =
              PackPair(probabilities[m][k + i / 2][i % 2 * 2], probabilities[m][k + i / 2][i % 2 * 2 + 1]);
        }
      }
      KVBLEND_UNROLL
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(b, values, value_at + k * 8 * kStride + n * 8);
        KVBLEND_UNROLL
        for (int m = 0; m < kStrips; ++m) {
          Mma(out[m][n], a[m], b[0], b[1]);
          Mma(out[m][n + 1], a[m], b[2], b[3]);
        }
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

/// The running softmax of a lane's two rows of a strip: scores in units of 1 / log2_scale.
struct OnlineSoftmax {
  int row;  // of the sequence; the other is 8 further on
  float max[2] = {kNegativeInfinity, kNegativeInfinity};
  float sum[2] = {0, 0};  // over this lane's columns only, until Finish

  /// Masks by position: key j of the tile is first_key + j. Rows that do not exist see nothing.
  template <int kTiles>
  KVBLEND_DEVICE void Mask(const AttentionParams& p, const RowTile& tile, int first_key,
                           float (&scores)[kTiles][4]) const {
    int position[2], first_visible[2];
    KVBLEND_UNROLL
    for (int i = 0; i < 2; ++i) {
      position[i] = row + 8 * i < tile.num_rows ? p.plan.positions[PlaceOf(p, tile, row + 8 * i).token] : -1;
      first_visible[i] = FirstVisible(p, position[i]);
    }
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
    for (int which = 0; which < 2; ++which) {
      float new_max = max[which];
      KVBLEND_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        new_max = MaxNumber(new_max, scores[n][2 * which]);
        new_max = MaxNumber(new_max, scores[n][2 * which + 1]);
      }
      new_max = MaxNumber(new_max, ShuffleXor(new_max, 1));
      new_max = MaxNumber(new_max, ShuffleXor(new_max, 2));
      // A row that has seen nothing yet has no maximum: keep exponents away from infinity - infinity.
      const float base = new_max == kNegativeInfinity ? 0.0f : new_max;
      const float base_exponent = base * log2_scale;
      rescale[which] = Exp2(FmaRn(max[which], log2_scale, -base_exponent));
      max[which] = new_max;
      float tile_sum = 0;
      KVBLEND_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        KVBLEND_UNROLL
        for (int i = 2 * which; i < 2 * which + 2; ++i) {
          scores[n][i] = Exp2(FmaRn(scores[n][i], log2_scale, -base_exponent));
          tile_sum += scores[n][i];
        }
      }
      sum[which] = sum[which] * rescale[which] + tile_sum;
    }
  }

  /// Adds the lanes' sums up.
  KVBLEND_DEVICE void Finish() {
    for (int which = 0; which < 2; ++which) {
      sum[which] += ShuffleXor(sum[which], 1);
      sum[which] += ShuffleXor(sum[which], 2);
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
