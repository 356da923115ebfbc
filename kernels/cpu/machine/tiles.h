// Products of a tile of rows at a time, whose sums stay in registers, and the softmax between attention's
// two. One set of functions per instruction set and type of operand.
//
// Operands are 32-bit words: one f32, or a pair of bf16 (the even element in the lower half). A product's
// inner dimension is counted in words ("steps"), so that both types share their layouts:
//   queries, probabilities  [rows of the tile][steps]
//   keys                    panels of kPanelKeys keys, each [steps = head_dim in words][kPanelKeys]
//   values                  panels of kPanelKeys keys, each [steps = keys in words][columns],
//                           columns = head_dim rounded up to kKeyStep
//   weights                 blocks of kPackedBlock outputs, each [steps][kPackedBlock] (onednn.h)
// With `codes` a word is a pair of codes of 16 bits, and value = step * code, with an f32 step for each query
// row, key and value: those of queries and keys are the last step of their rows and panels
// ([head_steps][kPanelKeys]), those of values lie behind their panel's words, kPanelKeys of them.
// Probabilities are f32 then. Codes are as large as sums in 32 bits allow (CodeLimits).
//
// Panels lie anywhere: functions take pointers to as many as there are keys. Those of bf16 are what pages of
// layout kTiles hold (kernels/tensor.h). Scores and outputs are f32; sums are carried in fp32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Rows that a tile of any kind has at most.
inline constexpr int64_t kMaxTileRows = 32;
inline constexpr int64_t kPanelKeys = kPageTile;
/// Columns, and numbers of keys, are multiples of this: the widest vector.
inline constexpr int64_t kKeyStep = 16;
/// Keys that a tile's scores are computed for at once: they stay in the first-level cache, while keys and
/// values of a block (2 * 512 * 64 bf16) are read from the second-level one for every tile.
inline constexpr int64_t kKeyBlock = 512;

/// Outputs per block of packed weights.
inline constexpr int64_t kPackedBlock = 64;

inline constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Groups of values with a smaller maximum get codes of 0: the inverse of their step need not be finite.
inline constexpr float kSmallestCoded = 0x1p-110f;
/// The largest magnitudes of codes: head_dim products of a query's and a key's, and kKeyBlock of a weight's
/// (a probability times the step of its value) and a value's, stay below 2^31. Those of queries and keys are
/// at least twelve bits where heads have up to 128 channels.
struct CodeLimits {
  float query, key;
};
inline constexpr CodeLimits CodeLimitsOf(int64_t head_dim) {
  int bits = 30;  // two codes of fifteen, and a sign each
  for (int64_t size = 2; size < head_dim; size *= 2) --bits;
  const int64_t key_bits = bits / 2;
  return {static_cast<float>((int64_t{1} << (bits - key_bits)) - 1),
          static_cast<float>((int64_t{1} << key_bits) - 1)};
}
/// Of a weight, of all of a row's and a block's together, and of a value.
inline constexpr float kWeightLimit = 32767, kWeightSumLimit = 524000, kValueLimit = 4095;
static_assert(CodeLimitsOf(64).query == 8191 && CodeLimitsOf(64).key == 4095);
static_assert((524000ll + kKeyBlock / 2) * 4095 < (1ll << 31));  // each code is rounded
/// More channels would leave too few bits.
inline constexpr int64_t kMaxCodeHeadDim = 512;

/// Which keys of a block a row sees: [begin, end), none when begin >= end.
struct VisibleKeys {
  int64_t begin = 0, end = 0;
};

/// What a product fetches for the one behind it, if anything: its rows, which lie one behind the other, and
/// the rows that its results go to.
struct NextTile {
  const uint32_t* rows = nullptr;
  const void* out = nullptr;
  int64_t out_stride = 0;  // bytes
};

/// Thread-safe functions over raw memory that callers have checked. `keys`: what KeysOfProduct gives, at most
/// kKeyBlock; `steps`: what Steps gives. Rows of scores and of probabilities are kKeyBlock elements apart. A
/// thread multiplies within a TileScope.
struct Tiles {
  std::string_view name;  // "f32", "int16", "int16_vnni", "avx512_bf16", "amx_bf16"
  DataType dtype;         // of the operands, or with `codes` of what they are made from: kF32 or kBF16
  bool codes = false;     // operands are codes of 16 bits; there is no `linear`
  int64_t rows;           // of a tile; callers pad theirs with zeros
  int64_t step_unit;      // products take this many steps at once; callers pad theirs with zeros

  int64_t elements_per_word() const { return dtype == DataType::kF32 && !codes ? 1 : 2; }
  /// Words that `elements` fill.
  int64_t Words(int64_t elements) const { return (elements + elements_per_word() - 1) / elements_per_word(); }
  /// Steps of a product over `elements`.
  int64_t Steps(int64_t elements) const { return RoundUp(Words(elements), step_unit); }
  /// Words of a query row, and rows of a panel of keys.
  int64_t HeadSteps(int64_t head_dim) const { return Steps(head_dim) + (codes ? 1 : 0); }
  /// Words of a panel of values.
  int64_t ValueWords(int64_t columns) const { return Words(kPanelKeys) * columns + (codes ? kPanelKeys : 0); }
  /// Words that a row's probabilities of `keys` keys take.
  int64_t ProbabilityWords(int64_t keys) const {
    return keys * SizeOf(dtype) / static_cast<int64_t>(sizeof(uint32_t));
  }
  /// Keys that products over `keys` take.
  int64_t KeysOfProduct(int64_t keys) const {
    return RoundUp(keys, std::max(kKeyStep, step_unit * elements_per_word()));
  }

  /// Prepare the calling thread for products, and end that; null where there is nothing to do.
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;

  /// out = rows * block, or out += where `accumulate`, for some steps of one block of weights. rows: [rows],
  /// row_stride words apart; out: [rows][kPackedBlock], out_stride apart. `prefetch`: the block is read for
  /// the first time, from memory. Null where there is linear_pair.
  void (*linear)(const uint32_t* rows, int64_t row_stride, const uint32_t* block, int64_t steps,
                 bool accumulate, bool prefetch, float* out, int64_t out_stride);
  /// The same with two columns of 16 outputs, each [steps] rows of 16 words, column_stride words apart. out:
  /// [rows][left's 16 results, then right's]. Null where blocks are multiplied.
  void (*linear_pair)(const uint32_t* rows, int64_t row_stride, const uint32_t* left, const uint32_t* right,
                      int64_t column_stride, int64_t steps, bool accumulate, float* out, int64_t out_stride,
                      const NextTile& next) = nullptr;

  /// scores = queries * keys^T.
  void (*scores)(const uint32_t* queries, const uint32_t* const* panels, int64_t steps, int64_t keys,
                 float* scores);
  /// One row of an online softmax in base 2; scores are multiplied by log2(e) already. Raises *max to the new
  /// maximum, *sum becomes *sum * alpha + the new terms, and 2^(score - *max), 0 where invisible, becomes row
  /// of probabilities (in f32 over the scores; then they are the same memory). Returns alpha = 2^(old max -
  /// new max). *max starts at -infinity; REQUIRES: something is visible.
  float (*softmax)(float* scores, VisibleKeys visible, int64_t keys, float* max, float* sum,
                   void* probabilities);
  /// out[row] = out[row] * alphas[row] + probabilities[row] * values. out: [rows][columns]
  void (*add_values)(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps,
                     int64_t columns, const float* alphas, float* out);

  /// mass[j] += sum over `count` rows of weights[row] * probabilities[row][j]. keys: a multiple of kKeyStep
  void (*add_weighted)(const uint32_t* probabilities, const float* weights, int64_t count, int64_t keys,
                       float* mass);
  /// As `softmax`, without the probabilities.
  void (*max_and_sum)(const float* scores, VisibleKeys visible, float* max, float* sum);
  /// mass[j] += sum over `count` rows, where they see key j, of 2^(scores[row][j] - offsets[row]).
  void (*add_mass)(const float* scores, const VisibleKeys* visible, const float* offsets, int64_t count,
                   int64_t keys, float* mass);
};

/// Prepares the calling thread for the products of one task, as long as the scope lives. Nothing within it
/// may call oneDNN, which leaves the registers in another state.
class TileScope {
 public:
  explicit TileScope(const Tiles& tiles) : tiles_(tiles) {
    if (tiles_.enter != nullptr) tiles_.enter();
  }
  ~TileScope() {
    if (tiles_.leave != nullptr) tiles_.leave();
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  const Tiles& tiles_;
};

}  // namespace kvblend::kernels
