// The decoder-only transformer, written once against kernels::Backend. Model families differ in a row of
// engine/model/architecture.h, and in which weights they have.
//
// A pass carries a set of token rows through the layers. Which rows, over which KV, and what happens between
// the projection and the attention of a layer (loading stored KV, selecting tokens, exporting fresh KV) is
// the caller's choice: full prefill, blended prefill, the query pass and decode are compositions of the steps
// below:
//
//   Begin             hidden = embedding of the tokens
//   per layer:
//     ProjectQkv      q, k, v of every row, normalised where the model does so, un-rotated
//     WriteKv         rotated k, and v -> pages
//     RotateQueries   q is rotated in place
//     Attend          selective attention over the pages
//     OutputAndMlp    output projection, MLP; hidden is updated
//   Logits            of chosen rows, or AllLogits
//
// The products work through tiles of rows, and attention may be given any run of rows at a time, so that a
// long pass can be interrupted within a layer.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/model/model_config.h"
#include "engine/model/model_weights.h"
#include "engine/model/scratch.h"
#include "kernels/backend.h"

namespace kvblend::model {

/// The rows of one pass: hidden states, projections and scratch. Reused between passes; not thread-safe.
struct PassState {
  kernels::MatrixView hidden;    // f32 [n, hidden_dim]
  kernels::MatrixView qkv;       // f32 [n, (num_heads + 2 num_kv_heads) * head_dim], columns q | k | v
  kernels::MatrixView attended;  // compute dtype [n, num_heads * head_dim]

  ScratchMatrix hidden_storage;
  ScratchMatrix hidden_gathered;
  ScratchMatrix qkv_storage;
  ScratchMatrix qkv_gathered;
  ScratchMatrix normed;
  ScratchMatrix attention;
  ScratchMatrix gate_up;
  ScratchMatrix activated;
  ScratchMatrix router_logits;
  ScratchIndices experts;
  ScratchMatrix expert_weights;
  ScratchMatrix expert_outputs;
  ScratchMatrix branch;  // the output of attention or the MLP, where it is changed before it is added
};

/// Immutable; any number of threads may run passes at once, each with its own PassState and stream.
/// Neither config, weights nor backend is owned; all must outlive it.
class Transformer {
 public:
  Transformer(const ModelConfig& config, const ModelWeights& weights, kernels::Backend& backend);

  const ModelConfig& config() const { return config_; }
  kernels::Backend& backend() const { return backend_; }

  /// state.hidden = embeddings of token_ids [n].
  absl::Status Begin(kernels::Stream& stream, absl::Span<const int32_t> token_ids, PassState& state) const;

  /// Tiles of rows that go through norm, projection and MLP together (kernels::RowUnits).
  int32_t NumTiles(int64_t rows) const { return static_cast<int32_t>((rows + row_tile_ - 1) / row_tile_); }

  /// state.qkv = projections of RMSNorm(state.hidden), with bias and norms of Q's and K's heads.
  absl::Status ProjectQkv(kernels::Stream& stream, int32_t layer, PassState& state) const;
  /// One tile of it; tile 0 first.
  absl::Status ProjectQkvTile(kernels::Stream& stream, int32_t layer, int32_t tile, PassState& state) const;

  /// Writes k (rotated) and v of state.qkv into the pages. REQUIRES: ProjectQkv of this layer; plan rows =
  /// state rows.
  absl::Status WriteKv(kernels::Stream& stream, int32_t layer, const kernels::BatchPlan& plan,
                       const PassState& state, kernels::KvPagesView pages) const;

  /// Rotates the queries of state.qkv in place. Separate from AttendAndMlp so that their attention mass can
  /// be measured.
  absl::Status RotateQueries(kernels::Stream& stream, int32_t layer, const kernels::BatchPlan& plan,
                             PassState& state) const;

  /// Attention over the pages of the rows [first_row, first_row + plan.num_rows()) of state, row 0 among the
  /// first ones of a layer. REQUIRES: RotateQueries.
  ///   mass: if given, receives the attention that these rows together pay to each position,
  ///         f32 [1, plan.total_kv_len]
  absl::Status Attend(kernels::Stream& stream, int32_t layer, const kernels::BatchPlan& plan,
                      int64_t first_row, kernels::KvPagesView pages, PassState& state,
                      std::optional<kernels::MatrixView> mass = std::nullopt) const;

  /// out = x W^T, or out += that when `accumulate`, W the layer's output projection, without bias and norm.
  ///   x: f32 or compute dtype [n, num_heads * head_dim];  out: f32 [n, hidden_dim]
  absl::Status ProjectOutput(kernels::Stream& stream, int32_t layer, kernels::ConstMatrixView x,
                             bool accumulate, kernels::MatrixView out) const;

  /// Output projection and MLP of one tile of rows. REQUIRES: Attend of all rows.
  absl::Status OutputAndMlpTile(kernels::Stream& stream, int32_t layer, int32_t tile, PassState& state) const;

  /// Attend and OutputAndMlpTile of all rows.
  absl::Status AttendAndMlp(kernels::Stream& stream, int32_t layer, const kernels::BatchPlan& plan,
                            kernels::KvPagesView pages, PassState& state,
                            std::optional<kernels::MatrixView> mass = std::nullopt) const;

  /// Keeps only the rows `row_indices` (ascending) of state.hidden and state.qkv.
  absl::Status KeepRows(kernels::Stream& stream, absl::Span<const int32_t> row_indices,
                        PassState& state) const;

  /// logits[i] = output layer of the row row_indices[i].  logits: f32 [row_indices.size(), vocab_size]
  absl::Status Logits(kernels::Stream& stream, absl::Span<const int32_t> row_indices, PassState& state,
                      kernels::MatrixView logits) const;

  /// The same for all rows.
  absl::Status AllLogits(kernels::Stream& stream, PassState& state, kernels::MatrixView logits) const;

  /// Views of the parts of state.qkv.
  kernels::MatrixView Queries(const PassState& state) const;
  kernels::MatrixView Keys(const PassState& state) const;
  kernels::MatrixView Values(const PassState& state) const;
  kernels::MatrixView KeysAndValues(const PassState& state) const;  // columns k | v

  /// How a layer attends, and how it rotates Q and K.
  kernels::AttentionSpec attention(int32_t layer) const;
  const kernels::RopeTable& rope(int32_t layer) const { return *weights_.ropes[config_.layers[layer].rope]; }

 private:
  /// Writes, or adds when `accumulate`, what attention or the MLP give to the residual stream.
  using Branch = absl::FunctionRef<absl::Status(bool accumulate, kernels::MatrixView out)>;
  /// hidden += `branch`, changed on the way as the model's norms, biases and scales want.
  absl::Status AddBranch(kernels::Stream& stream, Branch branch, const kernels::Buffer* bias,
                         const kernels::Buffer* post_norm, PassState& state,
                         kernels::MatrixView hidden) const;
  /// hidden += the layer's MLP, or its experts, of `normed`: as many rows, up to a tile.
  absl::Status AddMlp(kernels::Stream& stream, const LayerWeights& weights, kernels::ConstMatrixView normed,
                      PassState& state, kernels::MatrixView hidden) const;
  absl::Status AddExperts(kernels::Stream& stream, const LayerWeights& weights,
                          kernels::ConstMatrixView normed, PassState& state,
                          kernels::MatrixView hidden) const;
  /// logits = how well each expert suits each row of `normed`.
  absl::Status Route(kernels::Stream& stream, const LayerWeights& weights, kernels::ConstMatrixView normed,
                     kernels::MatrixView logits) const;
  /// out = the products of x with the experts, and their biases where there are any.
  absl::Status MultiplyExperts(kernels::Stream& stream, kernels::ConstMatrixView x,
                               const kernels::PackedExperts& weights, const kernels::Buffer* bias,
                               kernels::IndicesView experts, kernels::MatrixView out) const;
  /// activated = activation(gate) * up of both = gate|up.
  absl::Status Activate(kernels::Stream& stream, kernels::MatrixView both,
                        kernels::MatrixView activated) const;
  absl::Status LogitsOf(kernels::Stream& stream, kernels::ConstMatrixView hidden, PassState& state,
                        kernels::MatrixView logits) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  kernels::Backend& backend_;
  const int64_t row_tile_;
};

}  // namespace kvblend::model
