// Query rows as attention's tiles take them: the rows of all heads that share a kv head, one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {

/// Rows [row_begin, row_end) of one sequence, ordered by position, for one kv head. Product row r is token
/// row_begin + r / group, head r % group of the group.
class TileQueries {
 public:
  TileQueries(const Tiles& tiles, const AttentionArgs& args, int64_t row_begin, int64_t row_end)
      : tiles_(tiles),
        args_(args),
        row_begin_(row_begin),
        num_products_((row_end - row_begin) * args.group()) {}

  int64_t num_products() const { return num_products_; }
  int64_t num_tiles() const { return (num_products_ + tiles_.rows - 1) / tiles_.rows; }
  int64_t padded_products() const { return num_tiles() * tiles_.rows; }
  int64_t steps() const { return tiles_.HeadSteps(args_.pages.head_dim); }
  int64_t words() const { return padded_products() * steps(); }
  int64_t row(int64_t product) const { return row_begin_ + product / args_.group(); }
  int64_t head(int32_t kv_head, int64_t product) const {
    return kv_head * args_.group() + product % args_.group();
  }

  /// Multiplied by scale * log2(e). out: [words()]
  void Gather(int32_t kv_head, uint32_t* out) const {
    const int64_t head_dim = args_.pages.head_dim;
    std::memset(out, 0, words() * sizeof(uint32_t));
    const float scale = args_.spec.scale * kLog2E;
    if (tiles_.codes) {
      // The query heads that share a kv head lie side by side.
      for (int64_t r = 0; r < num_products_; r += args_.group()) {
        uint32_t* words = out + r * steps();
        simd::CodeRows(args_.query(row(r), head(kv_head, r)), DataType::kF32, args_.group(), head_dim, scale,
                       CodeLimitsOf(head_dim).query,
                       {.codes = reinterpret_cast<int16_t*>(words),
                        .code_stride = 2 * steps(),
                        .steps = reinterpret_cast<float*>(words + steps() - 1),
                        .step_stride = steps()});
      }
      return;
    }
    for (int64_t r = 0; r < num_products_; ++r) {
      simd::ScaleRow(args_.query(row(r), head(kv_head, r)), scale, out + r * steps(), tiles_.dtype, head_dim);
    }
  }

  /// The keys, of the whole sequence, that any row of a tile sees.
  VisibleKeys KeysOfTile(int64_t tile) const {
    const int64_t first = tile * tiles_.rows, last = std::min(first + tiles_.rows, num_products_) - 1;
    return {KeysOf(first).begin, KeysOf(last).end};
  }

  /// The keys of the block [key, key + keys) that each row of a tile sees, counted from `key`.
  void KeysOfBlock(int64_t tile, int64_t key, int64_t keys, VisibleKeys (&visible)[kMaxTileRows]) const {
    const int64_t first = tile * tiles_.rows, last = first + tiles_.rows - 1;
    if (last < num_products_ && KeysOf(first).end >= key + keys && KeysOf(last).begin <= key) {  // most tiles
      std::fill_n(visible, tiles_.rows, VisibleKeys{0, keys});
      return;
    }
    for (int64_t r = 0; r < tiles_.rows; ++r) {
      visible[r] = {};
      const int64_t product = tile * tiles_.rows + r;
      if (product >= num_products_) continue;
      const VisibleKeys all = KeysOf(product);
      visible[r] = {std::max<int64_t>(all.begin - key, 0), std::min(all.end - key, keys)};
    }
  }

 private:
  VisibleKeys KeysOf(int64_t product) const {
    const int32_t position = args_.plan.position(row(product));
    return {args_.spec.FirstVisible(position), int64_t{position} + 1};
  }

  const Tiles& tiles_;
  const AttentionArgs& args_;
  const int64_t row_begin_;
  const int64_t num_products_;
};

}  // namespace kvblend::kernels
