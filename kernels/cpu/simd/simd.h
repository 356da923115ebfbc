// The inner loops of the CPU backend, vectorised with Highway and chosen at run time for the processor. Plain
// functions over raw rows: callers have checked everything and split the work over threads. Thread-safe.
//
// bf16 and f16 are rounded to nearest even on every path; sums are carried in fp32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/kv_section.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::simd {

/// The instruction set in use, e.g. "AVX3".
std::string TargetName();

// --- tiles.cc ---

/// The vectors' tiles with bf16 operands where `wanted` is kBF16 and the processor multiplies them, those
/// with f32 operands otherwise.
const Tiles& GetTiles(DataType wanted);
/// All but the products of tiles of 16-bit codes, of which scores and probabilities are f32.
const Tiles& GetCodeWordTiles();

// --- tiles_int16.cc ---

/// Tiles of 16-bit codes; null where they would be no faster than those of f32.
const Tiles* GetInt16Tiles();
/// The same without vpdpwssd, which processors without VNNI lack. For tests.
const Tiles* GetInt16TilesWithoutVnni();
/// Rows as codes of 16 bits: a value is its row's step times its code. A row of zeros has step 0; one that
/// has a NaN or an infinity has NaN, and codes of 0.
struct CodedRowsView {
  int16_t* codes;
  int64_t code_stride;  // in codes, from row to row
  float* steps;
  int64_t step_stride;
};
/// scale * x as codes up to `limit`, to the nearest. x: f32, bf16 or f16 [rows, n]. REQUIRES:
/// GetInt16Tiles().
void CodeRows(const void* x, DataType dtype, int64_t rows, int64_t n, float scale, float limit,
              const CodedRowsView& out);

// --- rows.cc ---

/// out = x / sqrt(mean(x^2) + epsilon) * weight; `out` may be `x` when f32.
void RmsNormRow(const float* x, const float* weight, float epsilon, int64_t n, DataType out_dtype, void* out);
/// Backend::GatedActivation; rows of gate and up are `stride` apart. `out` may be `gate` or `up` when f32.
void GatedActivationRows(Activation activation, const float* gate, const float* up, int64_t stride,
                         const MatrixView& out);
void ConvertRow(const void* in, DataType in_dtype, void* out, DataType out_dtype, int64_t n);
/// out = in * scale
void ScaleRow(const float* in, float scale, void* out, DataType out_dtype, int64_t n);
/// x = cap * tanh(x / cap)
void SoftCapRow(float* x, float cap, int64_t n);
/// out += in * scale
void AddScaledRow(const float* in, float scale, float* out, int64_t n);
/// |fresh - cached|^2
float SquaredDistance(const float* fresh, const void* cached, DataType cached_dtype, int64_t n);
float SumOfSquares(const void* x, DataType dtype, int64_t n);
/// Adds the squares of x[0], x[2] .. to the first sum, those of x[1], x[3] .. to the second. x: bf16 [2 n]
void AddSquaresOfPairs(const uint16_t* x, int64_t n, float (&sums)[2]);

// --- rope.cc ---

/// Rotates the heads of one row in place. cos, sin: [head_dim / 2]
void RotateHeads(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim, int64_t num_heads,
                 float* x);
/// out[h * out_head_stride + d] = rotated(in)[h * head_dim + d], converted to out_dtype.
void RotateHeadsTo(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim, int64_t num_heads,
                   const void* in, DataType in_dtype, void* out, DataType out_dtype, int64_t out_head_stride);

/// The inverse of RotateHeads for one head in place; cos and sin may have a magnitude.
void UnrotateHead(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim, float* x);

// --- spread.cc: SpreadDeviation (kernels/backend.h) ---

/// What a token's K or V of one head is moved by: weighted sums of deviations, those of the rows before the
/// token and of the rows behind it.
struct TokenMove {
  const float* before = nullptr;  // [n]
  const float* after = nullptr;   // [n]
  float before_factor = 0;
  float after_factor = 0;
  float all_factor = 0;
};
/// out[t] = the factors of moves[t] times before, after and `all`. all: [n]; out: [tokens, n]
void SumMoves(const TokenMove* moves, int64_t tokens, const float* all, int64_t n, float* out);
// The following add, rounding once; where they add 0, no bit changes.
/// out += x
void AddToRow(const float* x, int64_t n, void* out, DataType out_dtype);
/// x[2 t] and x[2 t + 1] to pair t of values of layout kTiles. x: [2 pairs, n]; words: [pairs, n]
void AddToPairs(const float* x, int64_t pairs, int64_t n, uint32_t* words);
/// x[t] to column t of a tile of keys of layout kTiles. x: [kTileColumns, n], n even; column: the first
void AddToKeyColumns(const float* x, int64_t n, uint32_t* column);

// --- quantize.cc; kernels/kv_section.h defines the encodings ---

/// Smallest and largest value of each column. NaN as smallest where a column has a NaN or an infinity.
void ColumnRanges(const float* in, int64_t row_stride, int64_t rows, int64_t cols, float* low, float* high);
/// The same of one row.
void RowRange(const float* in, int64_t n, float* low, float* high);
/// codes[j] = round((x[j] - offsets[j]) * inverse_steps[j]), clamped to 0 .. max_code; 0 for NaN.
void QuantizeRow(const float* x, const float* offsets, const float* inverse_steps, float max_code, int64_t n,
                 uint8_t* codes);
/// The same with one offset and step.
void QuantizeGroup(const float* x, float offset, float inverse_step, float max_code, int64_t n,
                   uint8_t* codes);
/// out[j] = offsets[j] + steps[j] * codes[j]; offsets, steps: bf16
void DequantizeRow(const uint8_t* codes, const uint16_t* offsets, const uint16_t* steps, int64_t n,
                   float* out);
/// The same with one offset and step.
void DequantizeGroup(const uint8_t* codes, float offset, float step, int64_t n, float* out);
/// n codes below 16, two per byte, the first in the low nibble; the last high nibble is 0 when n is odd.
void PackNibbles(const uint8_t* codes, int64_t n, uint8_t* packed);
void UnpackNibbles(const uint8_t* packed, int64_t n, uint8_t* codes);

// --- fp8.cc: fp8 sections ---

/// codes[j] = E4M3 nearest to x[j] * inverse_steps[j]; 0x7F for NaN.
void QuantizeRowFp8(const float* x, const float* inverse_steps, int64_t n, uint8_t* codes);
/// The same with one step.
void QuantizeGroupFp8(const float* x, float inverse_step, int64_t n, uint8_t* codes);
/// out[j] = steps[j] * codes[j]; steps: bf16
void DequantizeRowFp8(const uint8_t* codes, const uint16_t* steps, int64_t n, float* out);
/// The same with one step.
void DequantizeGroupFp8(const uint8_t* codes, float step, int64_t n, float* out);

// --- page_codes.cc: heads of int8 pages (kernels/tensor.h) ---

/// codes: [head_dim], steps: [head_dim / kPageGroup, rounded up]
void QuantizeHead(const float* x, int64_t head_dim, int8_t* codes, uint16_t* steps);
/// `heads` of them, one after the other. out: bf16 or f32 [heads, head_dim]; next: as many codes that will be
/// read after these, fetched meanwhile, or null
void DequantizeHeads(const int8_t* codes, const uint16_t* steps, int64_t heads, int64_t head_dim,
                     DataType out_dtype, void* out, const int8_t* next);

// --- load_kv.cc: sections in bf16, int8, int4 or fp8 into bf16 pages of layout kRows ---

/// A correction without a map (kernels/kv_correction.h), of K's part or of V's: scale * x + offset of the
/// token's place, rounded to bf16. Of every kPairs pairs of channels the even ones come first, then the odd
/// ones.
struct ScaleAndOffset {
  static constexpr int64_t kPairs = 16;
  const float* scale = nullptr;   // [cols]
  const float* offset = nullptr;  // [kNumKvCorrectionPlaces rows of `stride`]
  int64_t stride = 0;

  const float* offset_of(int64_t token) const { return offset + KvCorrectionPlace(token) * stride; }
};

/// Successive rows of a section; of quantized K, all of one group of tokens, and of corrected K all of one
/// place.
struct StoredRows {
  KvEncoding encoding = KvEncoding::kBF16;
  const std::byte* codes = nullptr;   // of the first row
  int64_t row_bytes = 0;              // of codes
  const uint16_t* offsets = nullptr;  // of the first row; null for bf16 and fp8
  const uint16_t* steps = nullptr;    // of the first row; null for bf16
  int64_t scale_cols = 0;
  int64_t rows = 0;
  const ScaleAndOffset* correction = nullptr;  // to be applied on the way; null: none
  int64_t first_token = 0;  // of the chunk, where the first row stands; counts where corrected
};
/// Where they go: row r of head h to pages[h * head_stride + slots[r] ..]
struct PageRows {
  uint16_t* pages = nullptr;
  const int64_t* slots = nullptr;
  int64_t head_stride = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
};
/// Whether heads are whole cache lines whose vectors have one scale.
constexpr bool LoadsHeads(int64_t head_dim) { return head_dim % 64 == 0; }
/// Both write past the caches: other threads may read the pages after this one called FinishLoads().
/// REQUIRES: LoadsHeads(out.head_dim), pages aligned to 64 bytes.
///   cos: per row head_dim / 2 cosines, then as many sines
void LoadKeys(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageRows& out);
void LoadValues(const StoredRows& rows, const PageRows& out);
void FinishLoads();

// --- load_codes.cc: the same into int8 pages ---

/// Where they go: row r of head h to codes[h * head_stride + slots[r] ..], its steps to steps[(the same) /
/// kPageGroup ..]
struct PageCodes {
  int8_t* codes = nullptr;
  uint16_t* steps = nullptr;  // bf16
  const int64_t* slots = nullptr;
  int64_t head_stride = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
};
/// Whether heads, and the halves that are rotated with each other, are whole groups of both stored values and
/// pages.
constexpr bool LoadsCodes(int64_t head_dim, RopeLayout layout) {
  static_assert(kPageGroup == kKvGroup);
  return head_dim % (layout == RopeLayout::kSplitHalf ? 2 * kPageGroup : kPageGroup) == 0;
}
/// REQUIRES: LoadsCodes(out.head_dim, the rotation's layout). cos: as LoadKeys
void LoadKeyCodes(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageCodes& out);
void LoadValueCodes(const StoredRows& rows, const PageCodes& out);

// --- load_tiles.cc: the same into pages of layout kTiles ---

/// Keys of a sequence that follow each other, within kTileColumns of a tile that begin at a multiple of it.
inline constexpr int64_t kTileColumns = 16;
struct TileKeys {
  uint32_t* column = nullptr;  // the first of the kTileColumns, of head 0
  int64_t first = 0;           // which of them the first key is
  int64_t head_stride = 0;     // words
  int64_t num_heads = 0;
  int64_t head_dim = 0;
};
/// Values of tokens of a sequence that follow each other.
struct TileValues {
  uint32_t* pair = nullptr;  // of the first token, of head 0
  bool odd = false;          // whether the first token is the second of its pair
  int64_t head_stride = 0;   // words
  int64_t num_heads = 0;
  int64_t head_dim = 0;
};
/// As LoadKeys and LoadValues. parts: rows of one kind that follow each other, at most kTileColumns - first
/// in all; cos: one per row of all parts. REQUIRES: HasBf16Dots(), LoadsHeads(out.head_dim), pages aligned to
/// 64 bytes.
void LoadKeyTile(absl::Span<const StoredRows> parts, RopeLayout layout, const float* const* cos,
                 const TileKeys& out);
void LoadValuePairs(const StoredRows& rows, const TileValues& out);

// --- correct_kv.cc, correct_kv_bf16.cc; kernels/kv_correction.h defines it ---

/// Row strides and ranks are multiples of this; so many rows are corrected at once.
inline constexpr int64_t kCorrectionLanes = 16;
inline constexpr int64_t kCorrectionBlock = 8;
struct CorrectionWeights {
  const float* scale = nullptr;          // [row_stride]
  const float* offset = nullptr;         // [kNumKvCorrectionPlaces, row_stride]
  const float* down = nullptr;           // [channels, rank]
  const float* up = nullptr;             // [rank, row_stride]
  const uint32_t* down_pairs = nullptr;  // [channels / 2, rank]: pairs of channels in bf16
  const uint32_t* up_pairs = nullptr;    // [rank / 2, row_stride]: pairs of ranks in bf16
  int64_t channels = 0;
  int64_t row_stride = 0;
  int64_t rank = 0;      // padded
  int64_t map_rank = 0;  // what is not padding, a multiple of 8

  const float* offset_of(int64_t token) const { return offset + KvCorrectionPlace(token) * row_stride; }
  /// The floats of scratch memory that CorrectRows needs.
  int64_t scratch_floats() const { return kCorrectionBlock * (rank + row_stride); }
};
/// Corrects rows of x in place, those of a chunk's tokens from `first_token` on; x: [rows, row_stride], zeros
/// behind `channels`
void CorrectRows(const CorrectionWeights& weights, int64_t first_token, int64_t rows, float* scratch,
                 float* x);
/// Corrects stored rows, a chunk's tokens from `first_token` on, into dense rows of bf16, with products in
/// bf16. Unlike elsewhere k may be of several groups; its steps and offsets are those of the first. Not of
/// f32 or f16.
/// REQUIRES: HasBf16Dots(), a map, cols a multiple of 32. k_out, v_out: [rows, cols]
void CorrectStoredRowsBf16(const CorrectionWeights& weights, int64_t first_token, const StoredRows& k,
                           const StoredRows& v, int64_t cols, uint32_t* scratch, uint16_t* k_out,
                           uint16_t* v_out);

// --- pack_kv.cc; tiles.h describes the layout, `rows` have its type and are head_dim apart ---

/// Keys as columns [column, column + num_keys) of a panel; all of them lie within it.
void PackKeys(const void* rows, int64_t num_keys, int64_t head_dim, int64_t elements_per_word,
              uint32_t* panel, int64_t column);
/// The values of num_keys keys, an even number unless they are the last. out: where the first of them belongs
void PackValues(const void* rows, int64_t num_keys, int64_t head_dim, int64_t elements_per_word,
                uint32_t* out, int64_t columns);

// --- dots.cc, dots_bf16.cc, tiled_dots_bf16.cc, packed_mat_vec.cc ---

/// scores[g * scores_stride + j] = q[g] . keys[j] for g < group, j < num_keys.
/// q: f32 [group, head_dim]; keys: [num_keys, head_dim] contiguous; next: as many rows that are read after
/// these, fetched meanwhile; null: those behind them
void KeyDots(const float* q, int64_t group, const void* keys, DataType dtype, const void* next,
             int64_t num_keys, int64_t head_dim, float* scores, int64_t scores_stride);
/// out[g] += sum over j of weights[g * weights_stride + j] * values[j]. out: f32 [group, head_dim]; next: as
/// KeyDots
void AddWeightedValues(const float* weights, int64_t weights_stride, int64_t group, const void* values,
                       DataType dtype, const void* next, int64_t num_keys, int64_t head_dim, float* out);

/// Whether the two products below exist: where the processor multiplies bf16 vectors.
bool HasBf16Dots();
/// KeyDots and AddWeightedValues with bf16 operands, sums in f32; weights are rounded to bf16.
/// REQUIRES: HasBf16Dots, head_dim % 32 == 0. q: bf16 [group, head_dim]; keys, values: bf16; next: as many
/// rows that are read after these, fetched meanwhile; null: those behind them
void KeyDotsBf16(const void* q, int64_t group, const void* keys, const void* next, int64_t num_keys,
                 int64_t head_dim, float* scores, int64_t scores_stride);
void AddWeightedValuesBf16(const float* weights, int64_t weights_stride, int64_t group, const void* values,
                           const void* next, int64_t num_keys, int64_t head_dim, float* out);

/// The same over the first num_keys keys of one tile of pages of layout kTiles, and over its values.
/// next: the tile that is read afterwards; null: there is none
void TileKeyDotsBf16(const void* q, int64_t group, const void* tile, const void* next, int64_t num_keys,
                     int64_t head_dim, float* scores, int64_t scores_stride);
void AddWeightedTileBf16(const float* weights, int64_t weights_stride, int64_t group, const void* tile,
                         const void* next, int64_t num_keys, int64_t head_dim, float* out);

/// Rows that PackedMatVec takes at most.
inline constexpr int64_t kMaxMatVecRows = 4;
/// out[r * out_stride + j] (+)= x[r] . W[j] for r < rows <= kMaxMatVecRows, j < n, streaming once over
/// weights that lie in blocks of 64 outputs: f32 [n / 64][k_padded][64], bf16 [n / 64][k_padded / 2][64][2],
/// padded with zeros.
///   x: f32 [rows, k_padded], zero-padded
void PackedMatVec(const void* weights, DataType dtype, int64_t k_padded, int64_t n, const float* x,
                  int64_t rows, bool accumulate, float* out, int64_t out_stride);

}  // namespace kvblend::kernels::simd
