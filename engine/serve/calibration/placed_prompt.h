// A prompt for calibration: full prefill of it, layer by layer, beside what is stored of its chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/blend/paged_sequence.h"
#include "engine/model/scratch.h"
#include "engine/model/transformer.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/store/chunk_handle.h"

namespace kvblend {

/// Full prefill of prompts, one after the other. Not thread-safe; runtime and runner must outlive it. The
/// chunks are stored by the runner, so that a prompt that comes again finds them as far as the store's budget
/// goes.
class PlacedPrompt {
 public:
  PlacedPrompt(ModelRuntime& runtime, PromptRunner& runner, Anchoring anchoring)
      : runtime_(runtime), runner_(runner), anchoring_(anchoring) {}

  /// A chunk that stands behind others.
  struct Chunk {
    int32_t begin = 0;  // in the prompt
    store::ChunkHandle kv;
    std::vector<int32_t> tokens;  // 0, 1, ...
  };

  /// What is known in a layer while it is visited.
  class Layer {
   public:
    int32_t index() const { return index_; }
    /// [tokens, channels]: each token's K before RoPE and V.
    absl::Span<const float> fresh() const { return fresh_; }
    /// The rows of fresh() that belong to a chunk.
    absl::Span<const float> FreshOf(const Chunk& chunk) const {
      const size_t channels = fresh_.size() / owner_.num_tokens_;
      return fresh_.subspan(chunk.begin * channels, chunk.tokens.size() * channels);
    }
    /// [chunk's tokens, channels]: the same as the store has it.
    absl::StatusOr<std::vector<float>> StoredOf(const Chunk& chunk) const;
    /// The attention that the question pays to each token in front of it, [question_begin].
    absl::StatusOr<std::vector<float>> QuestionMass() const;
    /// The rotated queries of the question, and of the answer where it was given, [their tokens, num_heads *
    /// head_dim].
    absl::StatusOr<std::vector<float>> LastQueries() const;
    /// [num_heads * head_dim, hidden_dim]: what attention's output is multiplied by.
    absl::StatusOr<std::vector<float>> OutputWeights() const;

   private:
    friend class PlacedPrompt;
    Layer(PlacedPrompt& owner, int32_t index, const blend::PagedSequence& sequence,
          absl::Span<const float> fresh)
        : owner_(owner), index_(index), sequence_(sequence), fresh_(fresh) {}

    PlacedPrompt& owner_;
    const int32_t index_;
    const blend::PagedSequence& sequence_;
    const absl::Span<const float> fresh_;
  };

  /// Every layer in turn, with the beginning of an answer behind the prompt, or without. An error that
  /// `visit` returns ends it. kInvalidArgument: the prompt has a history. Otherwise what storing its
  /// chunks or running the model gives.
  absl::Status VisitLayers(const prompt::PromptLayout& layout, absl::Span<const int32_t> answer,
                           absl::FunctionRef<absl::Status(const Layer&, absl::Span<const Chunk>)> visit);

 private:
  absl::StatusOr<std::vector<Chunk>> Store(const prompt::PromptLayout& layout);
  absl::StatusOr<std::vector<float>> ToHost(kernels::MatrixView matrix);

  ModelRuntime& runtime_;
  PromptRunner& runner_;
  const Anchoring anchoring_;
  model::PassState state_;
  model::ScratchMatrix mass_, gathered_, unit_rows_, output_;
  int32_t num_tokens_ = 0, question_begin_ = 0;  // of what is visited
};

}  // namespace kvblend
