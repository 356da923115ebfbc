// Keeps some rows of the KV that a prompt computes for chunks that the store lacks. Later the store computes the same
// chunks behind their anchor; what differs between the two is what a correction can be learned from
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
#include "engine/model/scratch.h"
#include "engine/model/transformer.h"
#include "engine/prompt/prompt_layout.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// What all rows that wait to be learned from may take together. Thread-safe.
class FreshRowBudget {
 public:
  explicit FreshRowBudget(int64_t bytes) : left_(bytes) {}

  /// While it is closed there is nothing to take.
  void Open(bool open) { open_.store(open, std::memory_order_relaxed); }
  /// Whether there is so much; then it has to be returned.
  bool Take(int64_t bytes);
  void Return(int64_t bytes) { left_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t left() const { return left_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> open_ = true;
  std::atomic<int64_t> left_;
};

/// Whose rows are kept.
struct FreshRowOptions {
  std::shared_ptr<FreshRowBudget> budget = nullptr;  // null: nobody's
  Anchoring anchoring = Anchoring::kAnchored;        // of the prompts

  bool WantedOf(const BlendOptions& options) const {
    return budget != nullptr && options.store_misses && options.anchoring == anchoring;
  }
};

/// The rows of one chunk that a prompt computed, kept to compare with what is stored.
class FreshRows {
 public:
  /// Takes over so many values' bytes of the budget. The values are uninitialised.
  FreshRows(std::vector<int32_t> rows, int64_t num_values, std::shared_ptr<FreshRowBudget> budget)
      : rows(std::move(rows)),
        budget_(std::move(budget)),
        num_values_(num_values),
        values_(std::make_unique_for_overwrite<float[]>(num_values)) {}
  ~FreshRows() { budget_->Return(num_bytes()); }
  FreshRows(const FreshRows&) = delete;
  FreshRows& operator=(const FreshRows&) = delete;

  const std::vector<int32_t> rows;  // of the chunk, ascending
  double weight = 1;                // share of the tokens before it whose KV was exact or computed
  // [layers, rows]: the attention that the question pays to them, as kv::WeightsOfMass counts it, times of how many
  // tokens each is one, over the mean of that.
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

/// Rows of a chunk of so many tokens: the first ones, which differ most, and the others evenly.
std::vector<int32_t> SampleRows(int32_t num_tokens, int32_t max_rows);
/// For each of the rows that SampleRows gives: how many tokens it stands for, over the mean of that.
std::vector<float> RowWeights(int32_t num_tokens, int32_t num_rows);

/// Memory of the backend that one prompt after the other uses.
struct FreshRowMemory {
  model::ScratchMatrix rows = {}, mass = {};
};

/// One prompt's. Not thread-safe.
class FreshRowCapture {
 public:
  static constexpr int32_t kMaxRows = 256;                      // of a chunk
  static constexpr int64_t kMaxChunkBytes = int64_t{16} << 20;  // fewer rows of a large model

  /// Looks for chunks of the plan that are computed behind other tokens than they will be stored behind. `device` is
  /// used until Finish; it grows to the largest prompt's rows.
  FreshRowCapture(const FreshRowOptions& options, const prompt::PromptLayout& layout, const ReusePlan& plan,
                  int32_t num_layers, int64_t channels, FreshRowMemory& device);

  bool empty() const { return chunks_.empty(); }

  /// One layer: `kv` has K and V of the positions `active`, those of all missing chunks among them.
  absl::Status Keep(kernels::Backend& backend, kernels::Stream& stream, int32_t layer,
                    absl::Span<const int32_t> active, kernels::ConstMatrixView kv);
  /// Behind Keep of this layer, where it can be had: the attention that the question's rows pay to every token of the
  /// prompt. Layers without it count as the one before them.
  absl::Status KeepMass(const model::Transformer& transformer, kernels::Stream& stream, int32_t layer,
                        const PagedSequence& sequence, const model::PassState& state);
  /// All layers are kept: brings them to the host. They are there after Synchronize.
  absl::Status Download(kernels::Backend& backend, kernels::Stream& stream);
  /// After Synchronize: hands each missing entry of the plan its rows. `recomputed`: reused tokens, ascending.
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
