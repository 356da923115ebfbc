// The kernels' host entries: each checks nothing, launches on `stream`, and returns the launch's error.
// Shapes, dtypes and meanings are those of kernels/backend.h; every pointer is device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"
#include "kernels/experts.h"
#include "kernels/kv_correction_place.h"
#include "kernels/kv_section.h"
#include "kernels/specs.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::cuda {

/// Division of 0 .. 2^31 - 1 by a number above 0 without dividing (Granlund, Montgomery, "Division by
/// Invariant Integers using Multiplication", PLDI 1994): with s = ceil(log2 d) and m = ceil(2^(31+s) / d),
/// n / d = (n m) >> (31 + s).
struct FastDivisor {
  uint32_t multiplier = 0;  // 0: the divisor is 1
  int32_t shift = 0;
  int32_t divisor = 1;

  static FastDivisor Of(int32_t divisor);
};

/// A BatchPlan's arrays in device memory.
struct PlanView {
  const int32_t* row_indptr = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* kv_len = nullptr;
  const int32_t* page_indptr = nullptr;
  const int32_t* page_indices = nullptr;
  const int32_t* sequence_of_row = nullptr;
  const int64_t* kv_offset = nullptr;  // where a sequence's keys begin when all are laid in a row
  int32_t num_sequences = 0;
  int32_t num_rows = 0;
  FastDivisor page_size;
};

struct RopeView {
  const float* table = nullptr;  // per position: head_dim / 2 cosines, head_dim / 2 sines
  int32_t head_dim = 0;
  bool interleaved = true;
};

/// A dense matrix or a section (kernels/kv_section.h) to read KV from.
struct KvSource {
  const unsigned char* data = nullptr;
  KvEncoding encoding = KvEncoding::kF32;
  bool per_channel = false;  // scales as K has them
  int64_t row_stride = 0;    // dense: elements; quantized: bytes of a row of codes
  int64_t scale_cols = 0;
  int64_t steps = 0;  // byte offsets, as in KvSectionLayout
  int64_t codes = 0;

  static KvSource Of(ConstMatrixView matrix);
  static KvSource Of(const KvSectionView& section);
};

/// Equals kMaxKvCorrectionRank; its header, kernels/kv_correction.h, needs Abseil, which device code cannot
/// include.
inline constexpr int kMaxCorrectionRank = 1024;

// Tiles of a correction (kernels/cuda/runtime/correction_tiles.h).
/// Ranks up to this one are multiplied as this one.
inline constexpr int kTileRank = 16;
/// Channels of a tile: K's columns, and V's, are a multiple of it.
inline constexpr int kTileChannels = 32;
/// Of a tile and lane.
inline constexpr int kTileWords = 8;

/// A KvCorrectionSpec's values.
struct KvCorrectionView {
  const float* scale = nullptr;
  const float* offset = nullptr;  // [kNumKvCorrectionPlaces, 2 * cols]
  const float* down = nullptr;
  const float* up = nullptr;
  // kernels/cuda/runtime/correction_tiles.h; null: it has none.
  const uint32_t* down_tiles = nullptr;
  const uint32_t* up_tiles = nullptr;
  int64_t cols = 0;
  int32_t rank = 0;  // up to kMaxCorrectionRank
};

/// Rows of a quantized weight, one behind the other.
struct CodedRows {
  const unsigned char* codes = nullptr;  // [rows, cols], a byte each or, of 4 bits, half a byte
  const float* scales = nullptr;         // [rows, cols / group]
  const float* minimums = nullptr;       // the same
  int64_t rows = 0;                      // up to 65535
  int64_t cols = 0;                      // a multiple of `group`
  int32_t group = 0;                     // a multiple of 8
  int32_t zero_point = 0;
  bool nibbles = false;
};

/// out: bf16, rows begin at multiples of 16 bytes
LaunchError LaunchDequantize(StreamHandle stream, const CodedRows& rows, uint16_t* out, int64_t row_stride);
LaunchError LaunchEmbed(StreamHandle stream, ConstMatrixView table, const int32_t* token_ids, float scale,
                        MatrixView out);
LaunchError LaunchRmsNorm(StreamHandle stream, ConstMatrixView x, ConstMatrixView weight, float epsilon,
                          MatrixView out);
LaunchError LaunchGatedActivation(StreamHandle stream, Activation activation, ConstMatrixView gate,
                                  ConstMatrixView up, MatrixView out);
LaunchError LaunchAddScaled(StreamHandle stream, ConstMatrixView x, float scale, MatrixView out);
LaunchError LaunchSoftCap(StreamHandle stream, float cap, MatrixView x);

/// The rows of an ExpertLinear's output by expert, ascending: those of expert e are rows[begin[e]] ..
/// rows[begin[e + 1] - 1]. Rows with no number of an expert are in none.
struct GroupedRows {
  int32_t* begin = nullptr;  // [num_experts + 1]
  int32_t* rows = nullptr;   // [num_rows]
  int32_t num_experts = 0;
  int32_t num_rows = 0;
};
/// experts: [logits.rows * spec.num_chosen]
LaunchError LaunchChooseExperts(StreamHandle stream, ConstMatrixView logits, const RoutingSpec& spec,
                                int32_t* experts, MatrixView weights);
/// experts: [out.num_rows]
LaunchError LaunchGroupRows(StreamHandle stream, const int32_t* experts, const GroupedRows& out);
/// x: bf16, rows begin at multiples of 16 bytes;  weights: likewise, [num_experts * out.cols, x.cols]
LaunchError LaunchExpertLinear(StreamHandle stream, ConstMatrixView x, ConstMatrixView weights,
                               const GroupedRows& grouped, MatrixView out);
/// experts: [out.rows]
LaunchError LaunchAddExpertBias(StreamHandle stream, ConstMatrixView bias, const int32_t* experts,
                                MatrixView out);
LaunchError LaunchSumExperts(StreamHandle stream, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                             MatrixView out);

/// key_tiles: as of AttentionShape; out: [the plan's total_kv_len]
LaunchError LaunchValueLengths(StreamHandle stream, const PlanView& plan, int64_t key_tiles,
                               const KvPagesView& pages, float* out);
/// A range of positions with the plan's rows in it, at least one.
struct SpreadRange {
  int32_t begin = 0, end = 0;
  int32_t first_row = 0, num_rows = 0;
  int32_t first_sum = 0;  // where its rows' sums begin in the workspace
};
/// Several that one launch works on.
inline constexpr int kMaxSpreadRanges = 32;
struct SpreadRanges {
  SpreadRange items[kMaxSpreadRanges];
  int32_t count = 0;
};
/// Sums of the rows' deviations, those of K and behind them those of V: for each row those of the rows up to
/// it and of the rows from it on, faded by how far away they are, and for each range of all rows alike.
struct SpreadWorkspace {
  int32_t num_rows = 0;             // of all ranges of the launch
  float* before = nullptr;          // [2, num_rows, cols]
  float* after = nullptr;           // the same
  float* all = nullptr;             // [2, kMaxSpreadRanges, cols]
  float* before_weights = nullptr;  // [2, num_rows]
  float* after_weights = nullptr;   // the same
};
/// k, v: f32
LaunchError LaunchSpreadDeviation(StreamHandle stream, const PlanView& plan, const RopeView& rope,
                                  const SpreadRanges& ranges, const DeviationSpread& keys,
                                  const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                  const SpreadWorkspace& workspace, const KvPagesView& pages);
LaunchError LaunchKvDeviation(StreamHandle stream, ConstMatrixView fresh, const KvSource& stored, float* out);
/// totals: scratch, [kMassTotals, mass.rows]; columns: [out.cols]
inline constexpr int kMassTotals = 3;
LaunchError LaunchMassScores(StreamHandle stream, ConstMatrixView mass, ConstMatrixView lengths,
                             const ColumnRange* counted, int32_t num_counted, const int32_t* columns,
                             double* totals, MatrixView out);
LaunchError LaunchSelectTopK(StreamHandle stream, const float* scores, int64_t n, IndicesView out);
LaunchError LaunchGatherRows(StreamHandle stream, ConstMatrixView in, const int32_t* row_indices,
                             MatrixView out);
/// out = in, element by element converted to out.dtype
LaunchError LaunchConvert(StreamHandle stream, ConstMatrixView in, MatrixView out);

LaunchError LaunchRope(StreamHandle stream, const PlanView& plan, const RopeView& rope, int32_t num_heads,
                       MatrixView x);
/// KV to be placed, a row for every row of the plan.
struct KvPlacement {
  PlanView plan;
  KvSource k, v;
};
/// Several, none into slots of another, that one launch places.
inline constexpr int kMaxKvPlacements = 16;
struct KvPlacements {
  KvPlacement items[kMaxKvPlacements];
  int32_t count = 0;

  int64_t max_rows() const;
};

/// KvScatter and KvLoad: one kernel, whatever the KV comes from.
LaunchError LaunchKvScatter(StreamHandle stream, const KvPlacements& placements, const RopeView& rope,
                            KvPagesView pages);
LaunchError LaunchCorrectKv(StreamHandle stream, const KvSource& k, const KvSource& v,
                            const KvCorrectionView& correction, MutableKvSectionView k_out,
                            MutableKvSectionView v_out);
/// Whether LaunchCorrectKvInTiles and LaunchKvLoadCorrected can be called with these.
bool CorrectsInTiles(const KvSource& k, const KvSource& v, const KvCorrectionView& correction);
bool LoadsCorrectedInTiles(const KvSource& k, const KvSource& v, const KvCorrectionView& correction,
                           const RopeView& rope, const KvPagesView& pages);
/// LaunchCorrectKv on tensor cores.
LaunchError LaunchCorrectKvInTiles(StreamHandle stream, const KvSource& k, const KvSource& v,
                                   const KvCorrectionView& correction, MutableKvSectionView k_out,
                                   MutableKvSectionView v_out);
/// LaunchCorrectKvInTiles to sections of type `rounded_to` and LaunchKvScatter from there, bit for bit. All
/// of one encoding.
LaunchError LaunchKvLoadCorrected(StreamHandle stream, const KvPlacements& placements, const RopeView& rope,
                                  const KvCorrectionView& correction, DataType rounded_to, KvPagesView pages);
/// Writes everything but the padding of quantized sections.
LaunchError LaunchEncodeKv(StreamHandle stream, ConstMatrixView in, MutableKvSectionView out);

struct AttentionShape {
  int32_t num_heads = 0;
  int32_t group = 0;      // query heads per kv head
  bool is_tall = false;   // a row tile has kTallStrips times kRowTile rows
  int64_t row_tiles = 0;  // of all sequences
  int64_t key_tiles = 0;  // likewise, of kKeyTile
  int64_t total_kv_len = 0;
  int32_t splits = 1;  // blocks that share the keys of one row tile
};

/// Rows of (token, head of a group), and keys, that one block works on.
inline constexpr int kRowTile = 64;
/// A tall one: rows in kRowTile, and keys.
inline constexpr int kTallStrips = 2;
inline constexpr int kTallKeys = 32;
/// Whether there are tall tiles for a head_dim, rounded up to that of a kernel: the usual ones up to what
/// registers hold.
constexpr bool HasTallTiles(int head_dim) {
  return (head_dim > 32 && head_dim <= 64) || (head_dim > 96 && head_dim <= 128);
}
inline constexpr int kKeyTile = 64;

/// Largest head_dim that tensor cores are used for; beyond it, and for f32 pages, plain fp32 kernels run.
inline constexpr int kMaxTensorHeadDim = 256;
inline constexpr int kMaxHeadDim = 3152;  // what the plain kernels' shared memory holds
constexpr bool UsesTensorCores(const KvPagesView& pages) {
  return pages.dtype != DataType::kF32 && pages.head_dim <= kMaxTensorHeadDim;
}

/// What the attention kernels leave behind when splits > 1, or for AttentionMass: f32 each.
struct AttentionWorkspace {
  float* out = nullptr;        // [splits, rows, heads, head_dim], unnormalised
  float* max = nullptr;        // [splits, rows, heads], of scores in base 2
  float* sum = nullptr;        // [splits, rows, heads]
  float* log_sum = nullptr;    // [rows, heads]: log2 of the sum of 2^score over all keys
  float* head_mass = nullptr;  // [kv heads, total_kv_len]
};

LaunchError LaunchSelectiveAttention(StreamHandle stream, const PlanView& plan, ConstMatrixView q,
                                     const AttentionShape& shape, const AttentionSpec& spec,
                                     const KvPagesView& pages, const AttentionWorkspace& workspace,
                                     MatrixView out);
LaunchError LaunchAttentionMass(StreamHandle stream, const PlanView& plan, ConstMatrixView q,
                                const AttentionShape& shape, const AttentionSpec& spec,
                                const KvPagesView& pages, const AttentionWorkspace& workspace, float* out);

}  // namespace kvblend::kernels::cuda
