// Products of codes: activations in 8 or in 16 bits, and weights in at most 8, with a step for every group of
// 16 or 32 inputs of a row, as the weights of GGUF files have them. Codes of a group are multiplied and
// summed as integers, exactly; groups are summed in fp32, in order. So a row's result is the same bit for bit
// in whatever way and company it is computed. A large activation makes the others of its group coarse, not
// its row.
//
// Dettmers et al., "LLM.int8()", NeurIPS 2022, section 2.1, show why one step per row is too few.
//
// In 8 bits, four inputs' codes are one word. Words take the inputs in the order in which a column's planes
// give them with the fewest instructions (quantized_matrix.h): of every eight, 0 4 1 5 and 2 6 3 7. In 16
// bits a word is a pair of neighbours, of weights as of activations: twice the multiplications, and
// activations more exact than in bf16.
//
// A few rows in 16 bits are multiplied straight from a column as rows in 8 bits are, in two terms: code = 255
// * high + low. The column's codes are unpacked once for both, and the sums of a group are the same whole
// number as of pairs. Codes of more than 4 bits are expanded to pairs instead where bytes have no room for
// their products.
//
// A prompt's rows in 16 bits have wide groups, of up to kMostWideInputs inputs, in which every weight becomes
// a code of 12 bits and every activation one of 13, signs included: sums of a group still fit into 32 bits,
// and are scaled an eighth as often. There a row's result is the same in any company too, but another than
// with the file's codes; it is nearer to the exact one than in bf16 (docs/performance.md, "16 bits").
//
// Linear layers that tolerate it (WeightUsage) multiply a prompt's rows in 8 bits where the processor has
// kernels for that: asymmetric codes, with a step and a zero point for every 16 inputs, so that the most that
// a group holds and the least both have a code. Steps are small multiples of one step of the row, so that
// sums are added as integers, and what is small beside the row's largest is as coarse as in 16 bits at most.
// With VNNI both are of all 32 inputs of a group. Jacob et al., "Quantization and Training of Neural Networks
// for Efficient Integer-Arithmetic-Only Inference", CVPR 2018, section 2, have zero points; weights' sums,
// which these are multiplied by, are made with the block.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "kernels/cpu/linear/quantized_matrix.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Rows that BlockKernels::multiply takes at most, on any instruction set.
inline constexpr int64_t kMaxCodeRows = 6;
/// Inputs that a word of 8-bit codes holds.
inline constexpr int64_t kCodesPerWord = 4;

/// What the upper one of a 16-bit code's two terms counts. Odd, so that no code lies midway between two of
/// its multiples.
inline constexpr int32_t kTermBase = 255;

/// Four inputs' codes in 16 bits as two words of 8: code = kTermBase * high + low, terms of magnitude <= 127.
struct CodeTerms {
  int8_t high[kCodesPerWord], low[kCodesPerWord];
};

/// The largest magnitude of a code. Those of 16 bits are what two terms hold.
template <class Code>
inline constexpr int32_t kLargestRowCode = (kTermBase + 1) * 127;
template <>
inline constexpr int32_t kLargestRowCode<int8_t> = 127;

/// A group of 32 inputs in 8 bits, of which one half are the even ones and the other the odd ones; value =
/// the row's step * multiple * (code - zero point), multiple and zero point of its half.
struct AsymmetricGroup {
  static constexpr int64_t kInputs = 32, kHalfInputs = 16;
  static constexpr int32_t kLargestMultiple = 255;
  /// Of weights: sums of 16 bits hold the products of half a half's inputs (codes/asymmetric-inl.h).
  static constexpr int32_t kMostWeightBits = 5;

  int8_t codes[kInputs];  // in the order of words
  int16_t multiples[2];   // of the even and of the odd inputs, as the two sums of 16 bits that words have
  int16_t zeros[2];       // -multiple * zero point, which is -128 .. 127
};
static_assert(AsymmetricGroup::kLargestMultiple * 128 <= INT16_MAX);

/// The same with one step and one zero point for all 32 inputs; value = the group's step * (code - zero
/// point). Coarser than halves, and fewer instructions where one adds four products of bytes in 32 bits
/// (codes/whole_groups-inl.h).
struct AsymmetricWholeGroup {
  static constexpr int64_t kInputs = 32;
  /// Of weights: sums of a group's codes in fractions fit into 16 bits.
  static constexpr int32_t kMostWeightBits = 5;

  int8_t codes[kInputs];  // in the order of words
  int16_t zeros[2];       // -zero point, which is -128 .. 127, and the sum of codes - zero point
};

/// An activation's code in a wide group.
enum class WideCode : int16_t {};
inline constexpr int64_t kMostWideInputs = 256;
inline constexpr int32_t kLargestWideWeight = 2047;
template <>
inline constexpr int32_t kLargestRowCode<WideCode> = 4095;
static_assert(kMostWideInputs * kLargestWideWeight * kLargestRowCode<WideCode> <= INT32_MAX);

/// Inputs of a wide group, a multiple of kChunkInputs: as few groups as there can be, of equal size.
constexpr int64_t WideGroup(int64_t cols) {
  const int64_t groups = (cols + kMostWideInputs - 1) / kMostWideInputs;
  return RoundUp((cols + groups - 1) / groups, kChunkInputs);
}

/// Rows of activations; value = step * code. Columns are padded to kChunkInputs and whole groups with zeros.
/// Rows that are multiplied together are a tile: one stream of memory, in which their codes of a group lie
/// behind each other. Asymmetric rows have one step each, that of their first group, and sums in such steps.
template <class Code>
struct CodedRows {
  static constexpr bool kAsymmetric =
      std::is_same_v<Code, AsymmetricGroup> || std::is_same_v<Code, AsymmetricWholeGroup>;
  /// Inputs that one element of `codes` holds.
  static constexpr int64_t kInputs = kAsymmetric                       ? AsymmetricGroup::kInputs
                                     : std::is_same_v<Code, CodeTerms> ? kCodesPerWord
                                                                       : 1;
  /// Inputs that a word holds, of rows as of weights.
  static constexpr int64_t kPerWord =
      kAsymmetric ? kCodesPerWord : static_cast<int64_t>(kInputs * sizeof(uint32_t) / sizeof(Code));
  /// Words of a block's output for so many inputs; asymmetric ones have one more per group, with the sums of
  /// its halves' codes.
  static constexpr int64_t BlockWords(int64_t inputs) {
    return inputs / kPerWord + (kAsymmetric ? inputs / AsymmetricGroup::kInputs : 0);
  }

  // [rows / tile_rows, groups, tile_rows, group / kInputs] of magnitude <= kLargestRowCode, in the order of
  // words
  Code* codes = nullptr;
  float* steps = nullptr;  // [rows / tile_rows, groups, tile_rows]
  float* sums = nullptr;   // like steps: sums of a group's values
  int64_t cols = 0;
  int64_t group = 0;  // inputs: 16 or 32, or a WideGroup
  int64_t tile_rows = 1;

  int64_t groups() const { return cols / group; }
  int64_t group_codes() const { return group / kInputs; }
  /// From one group of a row to its next, in `codes`; in steps and sums it is tile_rows.
  int64_t group_stride() const { return tile_rows * group_codes(); }
  /// Row `index` and what lies behind it: a tile, where `index` is the first of one.
  CodedRows Row(int64_t index) const {
    const int64_t scale = index / tile_rows * groups() * tile_rows + index % tile_rows;
    return {codes + scale * group_codes(), steps + scale, sums + scale, cols, group, tile_rows};
  }
  /// A tile of `rows` rows among tiles of other sizes, with `before` rows in those before it.
  CodedRows Tile(int64_t before, int64_t rows) const {
    const int64_t scale = before * groups();
    return {codes + scale * group_codes(), steps + scale, sums + scale, cols, group, rows};
  }
};
using RowCodes = CodedRows<int8_t>;
using RowPairs = CodedRows<int16_t>;
using RowTerms = CodedRows<CodeTerms>;
using WideRows = CodedRows<WideCode>;
using AsymmetricRows = CodedRows<AsymmetricGroup>;
using WholeGroupRows = CodedRows<AsymmetricWholeGroup>;

/// A block of kPackedBlock outputs; value = step * code + minimum. Outputs behind the last are zeros.
struct BlockCodes {
  // [kPackedBlock / width][words][width] words of codes, as the kernels want them
  uint32_t* codes = nullptr;
  float* steps = nullptr;        // [groups][kPackedBlock]
  float* minimums = nullptr;     // [groups][kPackedBlock]; unused of wide groups, whose codes hold them
  int64_t words = 0;             // CodedRows::BlockWords(cols)
  int64_t width = kPackedBlock;  // outputs whose words lie beside each other: BlockKernels::width
  int32_t bits = 4;              // the most of any of its columns

  BlockCodes Output(int64_t index) const {
    return {codes + index / width * words * width + index % width,
            steps + index,
            minimums + index,
            words,
            width,
            bits};
  }
};

/// Writes one row as codes: simd::QuantizeActivations, below, or what an instruction set has in its place.
template <class Code>
using RowQuantizer = void (*)(const void* x, DataType dtype, int64_t n, const CodedRows<Code>& out);

/// Products of many rows of activations in one size of codes, by blocks of weights. Thread-safe functions
/// over memory that callers have checked.
template <class Code>
struct BlockKernels {
  int64_t rows = 0;   // of multiply; at most kMaxCodeRows
  int64_t width = 0;  // of BlockCodes

  RowQuantizer<Code> quantize = nullptr;
  /// The codes of a column, for its sixteen outputs; out.bits is the block's already. REQUIRES:
  /// column.format.group is a multiple of `group`, or that is a wide group
  void (*expand)(const QuantizedColumn& column, int64_t group, const BlockCodes& out) = nullptr;
  /// out[r * out_stride + j] = (its value, where `accumulate`, or 0) + row r . output j over groups
  /// [first_group, first_group + num_groups), r < rows, j < kPackedBlock. REQUIRES: block came from expand;
  /// rows.tile_rows == rows
  void (*multiply)(const CodedRows<Code>& rows, const BlockCodes& block, int64_t first_group,
                   int64_t num_groups, bool accumulate, float* out, int64_t out_stride) = nullptr;
};

/// Rows that a ColumnProduct takes at most, padding included.
inline constexpr int64_t kMaxColumnRows = 8;

/// A few rows lie in tiles of 1, 2, 4 and 8 rows, at most `most`, the largest first. Returns how many rows
/// the first tile of num_rows rows has. One row may lack in a tile of 4 or 8, which takes about as long as
/// the smaller tiles that three or seven rows would fill; tiles of 1 and 2 are full.
constexpr int64_t FirstTileRows(int64_t num_rows, int64_t most) {
  int64_t tile_rows = 1;
  while (tile_rows < most && 2 * tile_rows <= num_rows + (tile_rows > 1 ? 1 : 0)) tile_rows *= 2;
  return tile_rows;
}

/// A place in the tiles that lie one behind the other, and which row of activations it is for.
struct TiledRow {
  int32_t source = -1;  // -1: none, its tile lacks this row
  int32_t before = 0;   // rows in the tiles before its own
  int32_t tile_rows = 1;
  int32_t index = 0;  // in its tile
};

/// Appends the places of `count` rows in tiles of at most `tile_rows` (FirstTileRows) to `places`, which are
/// whole tiles; row i of them is source_of(i).
template <class Places, class SourceOf>
void AppendTiledRows(int64_t count, int64_t tile_rows, Places& places, SourceOf source_of) {
  for (int64_t first = 0; first < count;) {
    const int64_t rows = FirstTileRows(count - first, tile_rows);
    const auto before = static_cast<int32_t>(places.size());
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t source = first + i < count ? source_of(first + i) : -1;
      places.push_back(
          {static_cast<int32_t>(source), before, static_cast<int32_t>(rows), static_cast<int32_t>(i)});
    }
    first += rows;
  }
}

/// A few rows straight from a column, over all groups, for its sixteen outputs: out[r][j], r < num_rows <=
/// kMaxColumnRows. rows: in tiles (FirstTileRows) of at most ColumnKernels::tile_rows, of which each is a
/// `rows.Tile`
template <class Code>
using ColumnProduct = void (*)(const QuantizedColumn& column, const CodedRows<Code>& rows, int64_t num_rows,
                               bool accumulate, float* const* out);

/// Products of a few rows in one kind of codes.
template <class Code>
struct ColumnKernels {
  int64_t tile_rows = 0;  // of the largest tile: 2, 4 or 8
  RowQuantizer<Code> quantize = nullptr;
  ColumnProduct<Code> multiply = nullptr;
};

/// The products on one instruction set.
struct CodeKernels {
  std::string_view name;  // "avx2", "avx_vnni", "avx512_vnni"
  BlockKernels<int8_t> bytes;
  BlockKernels<int16_t> pairs;
  BlockKernels<WideCode> wide;
  /// Of weights in at most 5 bits, in groups of 32: in one of the two ways, or in none.
  BlockKernels<AsymmetricGroup> asymmetric = {};
  BlockKernels<AsymmetricWholeGroup> whole_groups = {};
  ColumnKernels<int8_t> few_rows;          // bit for bit what `bytes` computes
  ColumnKernels<CodeTerms> few_term_rows;  // bit for bit what `pairs` computes, of the same codes
  /// The same for weights of more than 4 bits; without functions where terms are as fast.
  ColumnKernels<int16_t> few_pair_rows;

  bool HasAsymmetric() const { return asymmetric.multiply != nullptr || whole_groups.multiply != nullptr; }
  /// Whether few rows in 16 bits should be pairs, not terms, for weights whose codes have at least so many
  /// bits.
  bool FewRowsAsPairs(int32_t smallest_bits) const {
    return smallest_bits > 4 && few_pair_rows.multiply != nullptr;
  }
};

/// The best that the processor has and KVBLEND_CPU allows; null where there are none.
const CodeKernels* BestCodeKernels();

/// Those whose products with activations in 16 bits are faster than f32's on this processor and under
/// KVBLEND_CPU; null where there are none: AVX-512 without VNNI multiplies as many f32.
const CodeKernels* FasterThanF32Kernels();

/// Those of every instruction set that the processor has and KVBLEND_CPU allows, the best first; null behind
/// the last. For tests. Returns their number.
inline constexpr int kMaxCodeKernels = 3;
int AllCodeKernels(const CodeKernels* (&out)[kMaxCodeKernels]);

namespace simd {

/// One row. A group of zeros has step 0, one that has a NaN or an infinity has NaN. x: f32 or bf16 [n];
/// out.cols: n rounded up to kChunkInputs and to whole groups
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowCodes& out);
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowPairs& out);
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const WideRows& out);

}  // namespace simd
}  // namespace kvblend::kernels
