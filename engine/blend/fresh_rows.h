// Keeps some rows of the KV that a prompt computes for chunks that the store lacks. Later the store computes
// the same chunks behind their anchor; what differs between the two is what a correction can be learned from
// (engine/kv/correction_learner.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/blend/paged_sequence.h"
#include "engine/blend/reuse_plan.h"
#include "engine/blend/selection_policy.h"
#include "engine/model/scratch.h"
#include "engine/model/transformer.h"
#include "engine/prompt/prompt_layout.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// The memory that all rows waiting to be learned from may take together. Thread-safe.
class FreshRowBudget {
 public:
  explicit FreshRowBudget(int64_t bytes) : left_(bytes) {}

  /// While it is closed, Take returns false.
  void Open(bool open) { open_.store(open, std::memory_order_relaxed); }
  /// Takes so many bytes if there are as many, and returns whether it did; they must then be returned.
  bool Take(int64_t bytes);
  void Return(int64_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t left() const { return left_.load(std::memory_order_relaxed); }

  /// Rows that were kept before a generation ended are not to be learned from.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  void EndGeneration() { generation_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  std::atomic<bool> open_ = true;
  std::atomic<int64_t> left_;
  std::atomic<uint64_t> generation_ = 0;
};

/// Which prompts keep rows.
struct FreshRowOptions {
  std::shared_ptr<FreshRowBudget> budget = nullptr;  // null: none do
  Anchoring anchoring = Anchoring::kAnchored;        // only prompts with this anchoring do

  bool WantedOf(const BlendOptions& options, const prompt::PromptLayout& layout) const {
    return budget != nullptr && options.store_misses && AnchoringOf(options, layout) == anchoring;
  }
};

/// The rows of one chunk that a prompt computed, kept to compare with what is stored.
class FreshRows {
 public:
  /// Takes over the bytes of `num_values` values, which were taken from the budget in this generation of it.
  /// The values are uninitialised.
  FreshRows(std::vector<int32_t> rows, int64_t num_values, std::shared_ptr<FreshRowBudget> budget,
            uint64_t generation)
      : rows(std::move(rows)),
        generation(generation),
        budget_(std::move(budget)),
        num_values_(num_values),
        values_(std::make_unique_for_overwrite<float[]>(num_values)) {}
  ~FreshRows() { budget_->Return(num_bytes()); }
  FreshRows(const FreshRows&) = delete;
  FreshRows& operator=(const FreshRows&) = delete;

  const std::vector<int32_t> rows;  // of the chunk, ascending
  const uint64_t generation;
  double weight = 1;  // share of the tokens before it whose KV was exact or computed
  // [layers, rows]: the weight that the question's attention gives each row (kv::WeightsOfMass), times the
  // number of tokens that the row stands for over the mean of that number.
  std::vector<float> row_weights;

  /// [layers, rows, 2 * num_kv_heads * head_dim]: K before RoPE, and V
  absl::Span<const float> values() const { return {values_.get(), static_cast<size_t>(num_values_)}; }
  float* data() { return values_.get(); }
  int64_t num_bytes() const { return num_values_ * static_cast<int64_t>(sizeof(float)); }

 private:
  const std::shared_ptr<FreshRowBudget> budget_;
  const int64_t num_values_;
  const std::unique_ptr<float[]> values_;
};

/// Which rows of a chunk with `num_tokens` tokens are kept: the first ones, which differ most, and others
/// evenly spread.
std::vector<int32_t> SampleRows(int32_t num_tokens, int32_t max_rows);
/// For each row of SampleRows: how many tokens it stands for, divided by the mean of that.
std::vector<float> RowWeights(int32_t num_tokens, int32_t num_rows);

/// Memory of the backend, used by one prompt after the other.
struct FreshRowMemory {
  model::ScratchMatrix rows = {}, mass = {};
};

/// Keeps the rows of one prompt. Not thread-safe.
class FreshRowCapture {
 public:
  static constexpr int32_t kMaxRows = 256;                      // of a chunk
  static constexpr int64_t kMaxChunkBytes = int64_t{16} << 20;  // fewer rows of a large model

  /// Looks for chunks of the plan that are computed behind other tokens than they will be stored behind.
  /// `device` is used until Finish; it grows to the largest prompt's rows.
  FreshRowCapture(const FreshRowOptions& options, const prompt::PromptLayout& layout, const ReusePlan& plan,
                  int32_t num_layers, int64_t channels, FreshRowMemory& device);

  bool empty() const { return chunks_.empty(); }

  /// Keeps rows of one layer. `kv` has K and V of the positions `active`, which include those of all missing
  /// chunks.
  absl::Status Keep(kernels::Backend& backend, kernels::Stream& stream, int32_t layer,
                    absl::Span<const int32_t> active, kernels::ConstMatrixView kv);
  /// Keeps the attention that the question's rows pay to every token of the prompt in this layer. Called
  /// after Keep of the layer, and only where that attention can be computed; other layers count as the layer
  /// before them.
  absl::Status KeepMass(const model::Transformer& transformer, kernels::Stream& stream, int32_t layer,
                        const PagedSequence& sequence, const model::PassState& state);
  /// Called when all layers are kept: begins to copy them to the host. They are there after Synchronize.
  absl::Status Download(kernels::Backend& backend, kernels::Stream& stream);
  /// After Synchronize: hands each missing entry of the plan its rows. `recomputed`: reused tokens,
  /// ascending.
  void Finish(absl::Span<const int32_t> recomputed, ReusePlan& plan);

 private:
  struct Chunk {
    size_t missing;  // index into plan.missing
    int32_t begin;
    std::vector<float> stands_for;  // RowWeights
    int64_t first_row;              // in kept_, where its rows of all layers stand together
    std::shared_ptr<FreshRows> fresh;
  };
  kernels::MatrixView RowsOf(const Chunk& chunk, int32_t layer, int32_t num_layers) const;

  /// WeightsOfMass of the chunks' tokens, of the last layer up to this one that has a mass.
  std::vector<float> MassWeights(int32_t layer) const;

  const int32_t num_layers_;
  const int64_t channels_;
  const int32_t chunks_begin_, question_begin_, num_tokens_;
  FreshRowMemory& device_;
  std::vector<Chunk> chunks_;
  int64_t num_rows_ = 0;      // of all chunks and layers
  kernels::MatrixView kept_;  // f32 [num_rows_, channels]
  kernels::MatrixView mass_;  // f32 [layers, num_tokens]
  std::vector<float> host_mass_;
  std::vector<bool> has_mass_;                    // layers
  std::unique_ptr<kernels::BatchPlan> question_;  // its rows
};

}  // namespace kvblend::blend
