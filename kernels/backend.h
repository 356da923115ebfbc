// The compute interface that the model is written against. Three implementations: kernels/reference (plain
// fp32 loops, the definition), kernels/cpu and kernels/cuda.
//
// Memory: every pointer in a view lies in the backend's own memory (host memory for the CPU backends,
// device memory for a GPU); CopyFromHost and CopyToHost move bytes between the two. `absl::Span`
// arguments and everything inside a BatchSpec are host memory and are read before the call returns. The
// sections of KvLoad, CorrectKv, EncodeKv and KvDeviation may also lie in host memory, where the store keeps
// them; that memory must stay until Synchronize has returned, and EncodeKv's bytes are there then.
//
// Streams: operations on one stream run in order. A CPU backend runs them before it returns; a GPU backend
// enqueues them. Results are visible on the host after Synchronize(). One stream is used by one thread at a
// time; different streams may be used by different threads at once.
//
// Aliasing: unless an operation's comment says otherwise, an output may not overlap any input.
//
// Errors: every operation checks shapes, dtypes, overlap and ranges before it touches memory and returns
// kInvalidArgument naming the operation, the value and what is allowed. A failed check leaves outputs
// untouched. `n` may be 0. Plans, tables and weights must come from the backend they are used with.
//
// Numbers: softmax, norms and accumulations are carried out in fp32 whatever the storage dtype. NaN stays
// NaN, through softmax and limits too, so that what is damaged shows in the logits; SelectTopK, ChooseExperts
// and MassScores say what they make of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/batch_plan.h"
#include "kernels/experts.h"
#include "kernels/kv_correction.h"
#include "kernels/kv_section.h"
#include "kernels/sampling.h"
#include "kernels/specs.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"
#include "kernels/weight_source.h"

namespace kvblend::kernels {

/// Owns bytes in a backend's memory, aligned to 64 bytes; freed on destruction. Must not outlive its backend.
class Buffer {
 public:
  virtual ~Buffer() = default;
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  virtual void* data() const = 0;
  virtual int64_t size_bytes() const = 0;
};

/// What a weight matrix will be used for; an embedding that is tied to the output layer is both. Inputs of a
/// kTolerantLinear may be rounded to 8 bits where those of others are rounded to 16-bit codes, and of a
/// kVeryTolerantLinear also where they are rounded to bf16 (docs/performance.md, "8 bits where they cost
/// little").
enum class WeightUsage : uint8_t {
  kLinear,
  kTolerantLinear,
  kVeryTolerantLinear,
  kEmbedding,
  kLinearAndEmbedding
};

/// Whether rows are looked up in it.
constexpr bool IsEmbedding(WeightUsage usage) {
  return usage == WeightUsage::kEmbedding || usage == WeightUsage::kLinearAndEmbedding;
}

/// A weight matrix W [rows = out_features, cols = in_features] in the form that the backend's Linear wants,
/// opaque to callers. Immutable after creation, so any number of threads may use it.
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual WeightUsage usage() const = 0;
  /// In products of up to so many rows, each row gets the same bits as alone; with more rows, roundings may
  /// differ. 0: they may differ with two rows already.
  virtual int64_t rows_as_alone() const { return std::numeric_limits<int64_t>::max(); }
};

/// Which elements of a head form the pairs that RoPE rotates.
enum class RopeLayout : uint8_t {
  kInterleaved,  // (0,1), (2,3), ...: GGUF's `llama`
  kSplitHalf,    // (0,d/2), (1,d/2+1), ...: NeoX style
};

/// cos and sin of position * inv_freq[i], times a magnitude, for all positions below max_position. Immutable
/// after creation.
class RopeTable {
 public:
  virtual ~RopeTable() = default;
  virtual int64_t max_position() const = 0;
  virtual int64_t head_dim() const = 0;
};

struct RopeSpec {
  RopeLayout layout = RopeLayout::kInterleaved;
  int64_t head_dim = 0;              // even
  int64_t max_position = 0;          // positions 0 .. max_position-1 may be used
  absl::Span<const float> inv_freq;  // [head_dim / 2], scaling already applied; angles are computed in double
  /// Multiplies cos and sin: YaRN and LongRoPE make it more than 1. Pairs whose inv_freq is 0 stay all the
  /// same.
  float magnitude = 1;
};

/// The memory of a device that has its own: the bytes that this process and others use, and all there are.
struct DeviceMemory {
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
};

/// How many rows of a prompt are best given to a backend at once: enough to keep it busy, but few enough that
/// it is done in 10 to 20 ms with a model of usual size, because nothing else has a turn meanwhile.
struct RowUnits {
  int64_t products =
      1024;  // for norms, products and MLPs: their widest activation has 2 ffn_dim floats per row
  int64_t attention = 512;
};

/// A part of what Backend::KvLoadAll loads.
struct KvLoadItem {
  const BatchPlan* plan = nullptr;
  KvSectionView k = {}, v = {};
  const KvCorrection* correction = nullptr;           // null: as they are
  MutableKvSectionView k_memory = {}, v_memory = {};  // as KvLoadCorrected has them; items may share them
};

/// Thread-safe: different threads may call different operations at once on different streams.
class Backend {
 public:
  virtual ~Backend() = default;

  /// "reference", "cpu", ...
  virtual std::string_view name() const = 0;
  /// One line for people: instruction sets, threads, GEMM dtype.
  virtual std::string Describe() const = 0;
  /// The name that the device reports.
  virtual std::string device_name() const { return "CPU"; }
  /// nullopt if the backend computes in the process's own memory, or the device does not report it.
  virtual std::optional<DeviceMemory> device_memory() const { return std::nullopt; }
  /// dtype in which GEMM inputs are best given (kF32 or kBF16). RmsNorm, SelectiveAttention and
  /// GatedActivation write it.
  virtual DataType compute_dtype() const = 0;
  /// The type of KV pages that is as exact as the backend's products, and the fastest of those.
  virtual DataType best_page_dtype() const { return compute_dtype(); }
  /// The default suits processors: the widest activation stays in the last-level cache.
  virtual RowUnits row_units() const { return {}; }
  /// Whether KV pages may be int8 (KvPagesView); f32, bf16 and f16 always may.
  virtual bool has_int8_pages() const { return false; }
  /// The fastest layout for pages with these properties, which may be any; kRows is always allowed.
  virtual PageLayout best_page_layout(DataType /*dtype*/, int32_t /*page_size*/, int32_t /*head_dim*/) const {
    return PageLayout::kRows;
  }

  // --- memory ---------------------------------------------------------------------------------------------

  /// kResourceExhausted when there is not enough memory, naming the bytes asked for.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) = 0;
  /// Host memory that copies from and to the device are fastest with: page-locked where the device has its
  /// own. Aligned to 4096 bytes; null when there is not enough. Thread-safe. REQUIRES: bytes > 0
  virtual void* AllocateHost(int64_t bytes);
  /// `bytes` as given to AllocateHost. REQUIRES: nothing that is still enqueued uses the memory.
  virtual void FreeHost(void* data, int64_t bytes);
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::Status CopyFromHost(Stream& stream, void* dst, const void* src, int64_t bytes) = 0;
  virtual absl::Status CopyToHost(Stream& stream, void* dst, const void* src, int64_t bytes) = 0;
  /// Waits until everything enqueued on the stream is done; returns the first asynchronous error.
  virtual absl::Status Synchronize(Stream& stream) = 0;
  /// The default asks the host's clock, for streams that run operations before they return.
  virtual std::unique_ptr<StreamClock> CreateStreamClock(Stream& stream);
  /// The default runs the operations every time.
  virtual std::unique_ptr<RepeatedStep> CreateRepeatedStep(Stream& stream);

  // --- preparation ----------------------------------------------------------------------------------------

  /// A backend may keep the source's codes instead of their values; the source is not needed afterwards.
  absl::StatusOr<std::unique_ptr<PackedWeights>> PackWeights(int64_t rows, int64_t cols, WeightUsage usage,
                                                             const WeightSource& source);
  /// The same for the experts of a layer; row e * rows + r of the source is row r of expert e.
  absl::StatusOr<std::unique_ptr<PackedExperts>> PackExperts(int32_t num_experts, int64_t rows, int64_t cols,
                                                             const WeightSource& source);
  absl::StatusOr<std::unique_ptr<RopeTable>> CreateRopeTable(const RopeSpec& spec);
  absl::StatusOr<std::unique_ptr<BatchPlan>> PlanBatch(const BatchSpec& spec);
  absl::StatusOr<std::unique_ptr<KvCorrection>> CreateKvCorrection(const KvCorrectionSpec& spec);

  // --- operations -----------------------------------------------------------------------------------------

  /// out[i] = scale * row token_ids[i] of an embedding.
  ///   token_ids: host [n], each in 0 .. table.rows-1;  out: f32 [n, table.cols]
  absl::Status Embed(Stream& stream, const PackedWeights& table, absl::Span<const int32_t> token_ids,
                     float scale, MatrixView out);

  /// out[i] = x[i] / sqrt(mean(x[i]^2) + epsilon) * weight, for every run of d columns on its own: one run is
  /// a whole row, or a head of it.
  ///   x: f32 [n, k d];  weight: f32 [1, d];
  ///   out: f32 or compute dtype [n, k d], may be x when both are f32
  absl::Status RmsNorm(Stream& stream, ConstMatrixView x, ConstMatrixView weight, float epsilon,
                       MatrixView out);

  /// out = x W^T, or out += x W^T when `accumulate`.
  ///   x: f32 or compute dtype [n, W.cols];  out: f32 [n, W.rows]
  absl::Status Linear(Stream& stream, ConstMatrixView x, const PackedWeights& weights, bool accumulate,
                      MatrixView out);

  /// The spec.num_chosen experts with the highest logits of every row, from high to low, and their weights
  /// (kernels/experts.h). Equal logits: the lower expert; NaN counts as -infinity. Weights are NaN where no
  /// logit of the row is finite.
  ///   logits: f32 [n, experts], 1 .. kMaxExperts columns;
  ///   experts: [n * num_chosen];  weights: f32 [n, num_chosen]
  absl::Status ChooseExperts(Stream& stream, ConstMatrixView logits, const RoutingSpec& spec,
                             IndicesView experts, MatrixView weights);

  /// out[i] = x[i / share] W_e^T with e = experts[i], share = out.rows / x.rows: each row of x, `share` times
  /// in a row. A result depends on the row, on the expert and on how many rows there are, but not on what the
  /// other rows are nor on the experts that they go to.
  ///   x: f32 or compute dtype [r, W.cols], r dividing n;
  ///   experts: [n], as ChooseExperts gives them: with any other a backend in host memory answers
  ///   kInvalidArgument, and one on a device leaves the row as it is;
  ///   out: f32 [n, W.rows]
  absl::Status ExpertLinear(Stream& stream, ConstMatrixView x, const PackedExperts& weights,
                            IndicesView experts, MatrixView out);

  /// out[i] = sum over j of weights[i][j] * x[i * k + j], or out[i] += that when `accumulate`; added one by
  /// one, j ascending.
  ///   x: f32 [n * k, d];  weights: f32 [n, k], k at least 1;  out: f32 [n, d]
  absl::Status SumExperts(Stream& stream, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                          MatrixView out);

  /// out[i] += bias[experts[i]].
  ///   bias: f32 [num_experts, d], up to kMaxExperts rows;
  ///   experts: [n], as of ExpertLinear, with what it says of other numbers;  out: f32 [n, d]
  absl::Status AddExpertBias(Stream& stream, ConstMatrixView bias, IndicesView experts, MatrixView out);

  /// out = activation(gate) * up; kClampedSilu changes `up` too (kernels/specs.h).
  ///   gate, up: f32 [n, d];  out: f32 or compute dtype [n, d]; out may be gate or up when f32
  absl::Status GatedActivation(Stream& stream, Activation activation, ConstMatrixView gate,
                               ConstMatrixView up, MatrixView out);

  /// out = activation(x G^T) * x U^T, as Linear and GatedActivation one after the other, or at once where
  /// that is faster. The rows of `weights` are those of G and, behind them, as many of U.
  ///   x: f32 or compute dtype [n, W.cols];  both: f32 [n, W.rows], memory to work in;
  ///   out: f32 or compute dtype [n, W.rows / 2]
  absl::Status GatedLinear(Stream& stream, ConstMatrixView x, const PackedWeights& weights,
                           Activation activation, MatrixView both, MatrixView out);

  /// out[i] += scale * x[i], or scale * x[0] where x is one row: a bias.
  ///   out: f32 [n, d];  x: f32 [n, d] or [1, d]
  absl::Status AddScaled(Stream& stream, ConstMatrixView x, float scale, MatrixView out);

  /// x[i] = cap * tanh(x[i] / cap), in place: logits as Gemma 2 bounds them.
  ///   cap: above 0;  x: f32 [n, d]
  absl::Status SoftCap(Stream& stream, float cap, MatrixView x);

  /// Rotates every head of row i to position plan.positions[i], in place.
  ///   x: f32 [plan.num_rows, num_heads * rope.head_dim]
  absl::Status Rope(Stream& stream, const BatchPlan& plan, const RopeTable& rope, int32_t num_heads,
                    MatrixView x);

  /// Writes fresh KV of row i into its sequence's page slot, K rotated to positions[i] on the way.
  ///   k (un-rotated), v: f32 or pages.dtype (not int8) [plan.num_rows, num_kv_heads * head_dim], both of one
  ///   dtype
  absl::Status KvScatter(Stream& stream, const BatchPlan& plan, const RopeTable& rope, ConstMatrixView k,
                         ConstMatrixView v, KvPagesView pages);

  /// As KvScatter for stored KV, in one pass: decode, rotate, scatter (docs/algorithm.md, "What is stored": K
  /// before RoPE). Row i of the sections goes to row i of the plan.
  ///   k: kKey, v: kValue [plan.num_rows, num_kv_heads * head_dim], both of one encoding, any
  absl::Status KvLoad(Stream& stream, const BatchPlan& plan, const RopeTable& rope, KvSectionView k,
                      KvSectionView v, KvPagesView pages);

  /// What `correction` makes of stored KV, for KvLoad (kernels/kv_correction.h). Sums are carried in fp32. A
  /// backend may round to its compute dtype what the map of low rank multiplies, and with bf16 outputs what
  /// is scaled as well.
  ///   k: kKey, v: kValue [n, correction.cols()], both of one encoding, any
  ///   k_out, v_out: the same shapes, both f32, or both bf16; not host memory
  absl::Status CorrectKv(Stream& stream, KvSectionView k, KvSectionView v, const KvCorrection& correction,
                         MutableKvSectionView k_out, MutableKvSectionView v_out);

  /// KvLoad of what CorrectKv makes of k and v, the same values to the last bit.
  ///   k_memory, v_memory: as CorrectKv's k_out and v_out, where a backend may put it meanwhile; undefined
  ///   afterwards
  absl::Status KvLoadCorrected(Stream& stream, const BatchPlan& plan, const RopeTable& rope, KvSectionView k,
                               KvSectionView v, const KvCorrection& correction, MutableKvSectionView k_memory,
                               MutableKvSectionView v_memory, KvPagesView pages);

  /// KvLoad or, where there is a correction, KvLoadCorrected of every item into the pages of one layer. A
  /// device does that for many at once. Where an item is refused, none is loaded. REQUIRES: no item writes a
  /// slot of another.
  absl::Status KvLoadAll(Stream& stream, absl::Span<const KvLoadItem> items, const RopeTable& rope,
                         KvPagesView pages);

  /// Writes K (un-rotated) or V in its stored form; padding between planes becomes zero, so that equal values
  /// give equal bytes. kernels/kv_section.h defines the encodings.
  ///   in: f32 [out.rows, out.cols]
  absl::Status EncodeKv(Stream& stream, ConstMatrixView in, MutableKvSectionView out);

  /// Attention of gathered rows, each masked by its *own position*: row i of sequence s sees the keys at
  /// positions k <= positions[i] (and within spec.sliding_window). Full prefill, blended prefill, chunked
  /// prefill and decode are this one operation. GQA: query head h reads kv head h / (num_heads /
  /// num_kv_heads).
  ///   q: f32, rotated [plan.num_rows, num_heads * head_dim];  out: f32 or compute dtype, same shape
  absl::Status SelectiveAttention(Stream& stream, const BatchPlan& plan, ConstMatrixView q,
                                  const AttentionSpec& spec, KvPagesView pages, MatrixView out);

  /// The attention that the rows of each sequence pay to each cached position:
  /// out[j] = sum over rows i of the mean over heads of the probability that row i gives key j in
  /// SelectiveAttention: of softmax(q_i k^T * spec.scale)[j] with its mask, its soft cap and its sinks, which
  /// leave less than 1 for the keys of a row.
  ///   q: as there;  out: f32 [1, plan.total_kv_len], sequences one after the other
  absl::Status AttentionMass(Stream& stream, const BatchPlan& plan, ConstMatrixView q,
                             const AttentionSpec& spec, KvPagesView pages, MatrixView out);

  /// Both at once: `out` is what SelectiveAttention gives, bit for bit; `mass` sums the probabilities as they
  /// are multiplied with the values (rounded to the compute dtype).
  ///   q, out: as of SelectiveAttention;  mass: as AttentionMass's out
  absl::Status SelectiveAttentionWithMass(Stream& stream, const BatchPlan& plan, ConstMatrixView q,
                                          const AttentionSpec& spec, KvPagesView pages, MatrixView out,
                                          MatrixView mass);

  /// out[i] = the squared distance of fresh[i] from row i of what is stored, which is decoded as it is read
  /// (CacheBlend, EuroSys 2025, section 4.3).
  ///   fresh: f32 [n, d];  stored: [n, d], either part, any encoding;  out: f32 [1, n]
  absl::Status KvDeviation(Stream& stream, ConstMatrixView fresh, KvSectionView stored, MatrixView out);

  /// Moves what the pages hold of the tokens of each range by how the fresh KV of the plan's rows in it
  /// deviates from what the pages hold of these: d_i = fresh - held, K before RoPE. A token without a row
  /// takes on the sum over the rows of w_i d_i / (reserve + sum of w_i), with the weights of `keys` for K and
  /// of `values` for V (docs/algorithm.md, "Deviations are passed on"). What the rows' own slots hold
  /// afterwards is undefined; ranges with a row for every token, or with none, stay as they are.
  ///   plan: of one sequence;  ranges: host, positions of it, ascending, none twice;
  ///   k (un-rotated), v: f32 [plan.num_rows, num_kv_heads * head_dim]
  absl::Status SpreadDeviation(Stream& stream, const BatchPlan& plan, const RopeTable& rope,
                               absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                               const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                               KvPagesView pages);

  /// How long the value vector of each cached position is: out[j] = the root of the sum of squares of what
  /// position j has in pages.v, all kv heads together. Sums are carried in fp32. What was never written gives
  /// whatever the pages hold.
  ///   out: f32 [1, plan.total_kv_len], sequences one after the other
  absl::Status ValueLengths(Stream& stream, const BatchPlan& plan, KvPagesView pages, MatrixView out);

  /// How much the wanted columns contribute to the rows that attend in a query pass, row r of `mass` and of
  /// `lengths` being layer r's attention mass and value lengths: out[i] = sum over rows r of the square of
  /// (mass[r][c_i] / sum of mass[r]) * (lengths[r][c_i] / mean of lengths[r]), where sum and mean are those
  /// over the columns of `counted` whose mass is above 0, and c_i is the i-th column of `wanted`. A row whose
  /// attention goes to short values counts for less. Lengths count only where there is attention: elsewhere
  /// KV may not have been loaded. Sums over columns are taken in double, column by column within a range,
  /// range by range; those over rows in fp32, in their order.
  /// Rows whose sums are not above 0 are left out, and so are terms that are not above 0; out is at least 0.
  ///   mass, lengths: f32 [n, cols];  counted, wanted: host, each within 0 .. cols;
  ///   out: f32 [1, columns of `wanted`]
  absl::Status MassScores(Stream& stream, ConstMatrixView mass, ConstMatrixView lengths,
                          absl::Span<const ColumnRange> counted, absl::Span<const ColumnRange> wanted,
                          MatrixView out);

  /// The columns of the out.size highest scores, ascending. Equal scores: the lower column; NaN counts as
  /// -infinity.
  ///   scores: f32 [1, n];  out: up to n of them
  absl::Status SelectTopK(Stream& stream, ConstMatrixView scores, IndicesView out);

  /// A token from every row of logits, with what its log-probability follows from (kernels/sampling.h).
  ///   logits: f32 [n, vocab_size], 1 .. kMaxSampledVocab columns;  specs: host [n]
  ///   out: host memory [n], filled after Synchronize; must stay until then
  absl::Status SampleTokens(Stream& stream, ConstMatrixView logits, absl::Span<const SamplingSpec> specs,
                            absl::Span<SampledToken> out);

  /// out[i] = in[row_indices[i]]; indices may repeat.
  ///   row_indices: host [n], each < in.rows;  in, out: same dtype and cols
  absl::Status GatherRows(Stream& stream, ConstMatrixView in, absl::Span<const int32_t> row_indices,
                          MatrixView out);

 protected:
  // The checked entries above validate and call these; implementations may rely on every precondition.
  virtual absl::StatusOr<std::unique_ptr<PackedWeights>> DoPackWeights(int64_t rows, int64_t cols,
                                                                       WeightUsage usage,
                                                                       const WeightSource& source) = 0;
  virtual absl::StatusOr<std::unique_ptr<PackedExperts>> DoPackExperts(int32_t num_experts, int64_t rows,
                                                                       int64_t cols,
                                                                       const WeightSource& source) = 0;
  virtual absl::StatusOr<std::unique_ptr<RopeTable>> DoCreateRopeTable(const RopeSpec& spec) = 0;
  virtual absl::StatusOr<std::unique_ptr<BatchPlan>> DoPlanBatch(const BatchSpec& spec) = 0;
  virtual absl::Status DoEmbed(Stream&, const PackedWeights&, absl::Span<const int32_t>, float,
                               MatrixView) = 0;
  virtual absl::Status DoRmsNorm(Stream&, ConstMatrixView, ConstMatrixView, float, MatrixView) = 0;
  virtual absl::Status DoLinear(Stream&, ConstMatrixView, const PackedWeights&, bool, MatrixView) = 0;
  virtual absl::Status DoChooseExperts(Stream&, ConstMatrixView, const RoutingSpec&, IndicesView,
                                       MatrixView) = 0;
  virtual absl::Status DoExpertLinear(Stream&, ConstMatrixView, const PackedExperts&, IndicesView,
                                      MatrixView) = 0;
  virtual absl::Status DoSumExperts(Stream&, ConstMatrixView, ConstMatrixView, bool, MatrixView) = 0;
  virtual absl::Status DoAddExpertBias(Stream&, ConstMatrixView bias, IndicesView, MatrixView) = 0;
  /// Linear, then GatedActivation, unless a backend knows better.
  virtual absl::Status DoGatedLinear(Stream& stream, ConstMatrixView x, const PackedWeights& weights,
                                     Activation activation, MatrixView both, MatrixView out);
  virtual absl::Status DoGatedActivation(Stream&, Activation, ConstMatrixView, ConstMatrixView,
                                         MatrixView) = 0;
  virtual absl::Status DoAddScaled(Stream&, ConstMatrixView, float, MatrixView) = 0;
  virtual absl::Status DoSoftCap(Stream&, float, MatrixView) = 0;
  virtual absl::Status DoRope(Stream&, const BatchPlan&, const RopeTable&, int32_t, MatrixView) = 0;
  virtual absl::Status DoKvScatter(Stream&, const BatchPlan&, const RopeTable&, ConstMatrixView,
                                   ConstMatrixView, KvPagesView) = 0;
  virtual absl::Status DoKvLoad(Stream&, const BatchPlan&, const RopeTable&, KvSectionView, KvSectionView,
                                KvPagesView) = 0;
  virtual absl::StatusOr<std::unique_ptr<KvCorrection>> DoCreateKvCorrection(
      const KvCorrectionSpec& spec) = 0;
  virtual absl::Status DoCorrectKv(Stream&, KvSectionView, KvSectionView, const KvCorrection&,
                                   MutableKvSectionView, MutableKvSectionView) = 0;
  /// CorrectKv, then KvLoad, unless a backend knows better.
  virtual absl::Status DoKvLoadCorrected(Stream&, const BatchPlan&, const RopeTable&, KvSectionView k,
                                         KvSectionView v, const KvCorrection&, MutableKvSectionView k_memory,
                                         MutableKvSectionView v_memory, KvPagesView);
  /// The default does one after the other.
  virtual absl::Status DoKvLoadAll(Stream& stream, absl::Span<const KvLoadItem> items, const RopeTable& rope,
                                   KvPagesView pages);
  virtual absl::Status DoEncodeKv(Stream&, ConstMatrixView, MutableKvSectionView) = 0;
  virtual absl::Status DoSelectiveAttention(Stream&, const BatchPlan&, ConstMatrixView, const AttentionSpec&,
                                            KvPagesView, MatrixView) = 0;
  virtual absl::Status DoAttentionMass(Stream&, const BatchPlan&, ConstMatrixView, const AttentionSpec&,
                                       KvPagesView, MatrixView) = 0;
  /// One after the other, unless a backend knows better.
  virtual absl::Status DoSelectiveAttentionWithMass(Stream&, const BatchPlan&, ConstMatrixView,
                                                    const AttentionSpec&, KvPagesView, MatrixView out,
                                                    MatrixView mass);
  virtual absl::Status DoKvDeviation(Stream&, ConstMatrixView, KvSectionView, MatrixView) = 0;
  virtual absl::Status DoSpreadDeviation(Stream&, const BatchPlan&, const RopeTable&,
                                         absl::Span<const ColumnRange>, const DeviationSpread& keys,
                                         const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                         KvPagesView) = 0;
  virtual absl::Status DoValueLengths(Stream&, const BatchPlan&, KvPagesView, MatrixView) = 0;
  virtual absl::Status DoMassScores(Stream&, ConstMatrixView mass, ConstMatrixView lengths,
                                    absl::Span<const ColumnRange> counted,
                                    absl::Span<const ColumnRange> wanted, MatrixView) = 0;
  virtual absl::Status DoSelectTopK(Stream&, ConstMatrixView, IndicesView) = 0;
  virtual absl::Status DoSampleTokens(Stream&, ConstMatrixView, absl::Span<const SamplingSpec>,
                                      absl::Span<SampledToken>) = 0;
  virtual absl::Status DoGatherRows(Stream&, ConstMatrixView, absl::Span<const int32_t>, MatrixView) = 0;
};

/// The definition of every operation: plain fp32 loops, single-threaded.
std::unique_ptr<Backend> CreateReferenceBackend();

struct CpuBackendOptions {
  int num_threads = 0;  // 0: one per available processor
  enum class Gemm : uint8_t {
    // kBF16 where nothing but 8 bits is faster, with few rows as in kInt16 where vectors multiply such codes;
    // else kInt16 where that is faster than kF32, and weights that are no codes in bf16 where the CPU has
    // that. Tolerant layers (WeightUsage) in 8 bits where that is faster.
    kAuto,
    kF32,
    kBF16,
    // Products of weights in 8 bits: activations are rounded in groups of 32 inputs, a file's codes stay as
    // they are; everything else as kAuto. Needs AVX2; faster with AVX-VNNI or AVX512-VNNI.
    kInt8,
    // The same with activations in 16 bits, more exact than bf16, and f32 where weights are no codes.
    // Attention over pages that are not f32 takes codes of 12 and 13 bits. Needs AVX2.
    kInt16,
  } gemm = Gemm::kAuto;
  /// Where files for packed weights are made and mapped (cpu/machine/weight_arena.h); empty: they are in
  /// memory.
  std::string weights_folder = {};
};

/// oneDNN GEMMs, own attention, SIMD chosen at run time; the environment's KVBLEND_CPU (portable, avx2,
/// avx_vnni, avx512, amx) limits it to fewer instructions. kFailedPrecondition: the processor lacks those, or
/// those that `gemm` needs. kResourceExhausted: not so many threads can be started.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options);

/// By the name of a device, as ChooseDevice (kernels/device_choice.h) takes it, with its errors.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view device, int num_threads);

}  // namespace kvblend::kernels
