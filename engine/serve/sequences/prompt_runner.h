// Runs the model: blended prefills, any number of them in progress, decode steps of several sequences
// together, scoring and chunk precomputation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/blend/costs/loading_controller.h"
#include "engine/blend/fresh_rows.h"
#include "engine/blend/reuse_plan.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/sequence_pages.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/attribution/answer_attention.h"
#include "engine/serve/sequences/chunk_storing.h"
#include "engine/serve/sequences/idle_refinement.h"
#include "engine/serve/sequences/kept_sequences.h"
#include "engine/serve/sequences/prompt_prefill.h"
#include "engine/serve/sequences/shared_prefixes.h"
#include "engine/store/chunk_store.h"

namespace kvblend {

/// A prompt, the tokens that go behind it, and how the one after each is chosen. All but the first token are
/// guesses: each is run as if those before it were right.
struct NextTokens {
  PrefilledPrompt* prompt;
  std::vector<int32_t> token_ids;
  std::vector<kernels::SamplingSpec> sampling;  // one per token
  /// The prompt's chunks, if it is to be measured what the tokens attend to.
  absl::Span<const prompt::Span> chunks = {};
};

/// For the engine thread only, except loading_controller(), kept_counts(), refined_tokens(), dropped_pages()
/// and chunk_counts(). References must outlive it.
class PromptRunner {
 public:
  struct Options {
    int32_t load_pipeline_depth = 2;         // see blend::KvLoader::Create
    RatioOptions ratio = {};                 // unless a request says otherwise
    blend::FreshRowOptions fresh_rows = {};  // what prompts keep for learning
    int64_t max_kept_pages = 0;              // for conversations between two turns; 0: none are kept
    bool share_prefixes = true;              // exact ones, between sequences
  };

  PromptRunner(ModelRuntime& runtime, store::ChunkStore& chunk_store)
      : PromptRunner(runtime, chunk_store, {}) {}
  PromptRunner(ModelRuntime& runtime, store::ChunkStore& chunk_store, const Options& options);

  blend::LoadingController& loading_controller() { return loading_controller_; }
  const blend::LoadingController& loading_controller() const { return loading_controller_; }

  /// Plans a prompt's prefill and sets its pages aside, for this use; Step of what is returned runs it.
  /// `layout` must outlive it, and `trace`, which may be null. `again`: see PromptPrefill::Create.
  /// kInvalidArgument for bad blend options; kResourceExhausted when there are too few pages.
  absl::StatusOr<std::unique_ptr<PromptPrefill>> Begin(const prompt::PromptLayout& layout,
                                                       const BlendOptions& options,
                                                       std::string_view tenant_namespace,
                                                       kv::PageUse use = kv::PageUse::kWorking,
                                                       RequestTrace* trace = nullptr,
                                                       const PrefillRecord* again = nullptr);
  /// How many pages that answers hold already such a prompt would begin with, if it began now.
  int64_t PagesToShare(const prompt::PromptLayout& layout, const BlendOptions& options,
                       std::string_view tenant_namespace, const PrefillRecord* again = nullptr);
  /// The same from beginning to end. Errors: Begin's, keep_going's.
  absl::StatusOr<PrefilledPrompt> Prefill(const prompt::PromptLayout& layout, const BlendOptions& options,
                                          std::string_view tenant_namespace, blend::KeepGoing keep_going);

  /// Appends tokens to the prompt. Returns the logits after each: [token_ids.size()][vocab_size], row-major.
  absl::StatusOr<std::vector<float>> Extend(PrefilledPrompt& prompt, absl::Span<const int32_t> token_ids,
                                            blend::KeepGoing keep_going);

  /// The same where the logits themselves are not needed: draws a token from each. One spec per token.
  absl::StatusOr<std::vector<kernels::SampledToken>> ExtendAndSample(
      PrefilledPrompt& prompt, absl::Span<const int32_t> token_ids,
      absl::Span<const kernels::SamplingSpec> specs, blend::KeepGoing keep_going);

  /// Runs tokens behind several different prompts, all in one pass. Returns what comes after each token,
  /// prompt by prompt. The prompts' num_tokens stay what they are: what is not counted in is overwritten the
  /// next time. `attended`: receives, token by token, what it attends to of its prompt's `chunks`; empty
  /// where these are. REQUIRES: PrepareAttention has returned true, if there are any.
  absl::StatusOr<std::vector<kernels::SampledToken>> ExtendAll(
      absl::Span<const NextTokens> next, std::vector<std::vector<ChunkAttention>>* attended = nullptr);
  /// Does a unit of work, a layer, towards measuring what answers attend to; in all a pass of 129 tokens at
  /// most, the first time. Returns whether it is ready. Errors: CopyLayerSearch's.
  absl::StatusOr<bool> PrepareAttention(RequestTrace* trace = nullptr) { return attention_.Prepare(trace); }

  /// Completes the report of a prompt whose first token is known, and counts its chunks.
  void FinishReport(double queue_seconds, double time_to_first_token_seconds, PromptReport& report);
  /// Chunks of those prompts.
  struct ChunkCounts {
    std::atomic<int64_t> looked_up = 0;
    std::atomic<int64_t> found = 0;
  };
  const ChunkCounts& chunk_counts() const { return chunk_counts_; }

  /// Keeps a sequence that is over for the conversation's next turn: the prompt of that layout, blended so,
  /// and what was answered, of which KV is in the prompt's pages up to num_tokens. The prompt's pages go.
  void Keep(PrefilledPrompt prompt, const prompt::PromptLayout& layout, absl::Span<const int32_t> answer,
            const BlendOptions& options, std::string_view tenant_namespace);
  /// Keeps again what a prompt went on from; `prompt` is that prompt.
  void KeepAgain(PrefilledPrompt prompt, KeptSequence kept);
  /// How many pages a sequence of so many tokens holds at most whose prompt is done.
  int64_t PagesBehindPrompt(int64_t num_tokens) const;
  /// Pages that sequences gave back because no window of their layers reaches them. Any thread may ask.
  int64_t dropped_pages() const { return dropped_pages_.load(std::memory_order_relaxed); }
  const KeptSequences::Counts& kept_counts() const { return kept_.counts(); }
  /// Makes kept sequences exact, a unit of work at a time. Returns whether there is more to do.
  bool RefineKept() { return refinement_.Step(); }
  int64_t refined_tokens() const { return refinement_.refined_tokens(); }

  /// Runs some of the tokens that were decoded behind a prompt before, the first ones: as many at a time as
  /// come out as if each had been run alone.
  absl::Status Repeat(PrefilledPrompt& prompt, absl::Span<const int32_t> token_ids);

  /// Makes sure, step by step, that the store has the chunk behind this anchor, and the anchor itself. The
  /// tokens must outlive what is returned.
  std::unique_ptr<ChunkStoring> BeginStoring(std::string_view tenant_namespace,
                                             absl::Span<const int32_t> anchor_ids,
                                             absl::Span<const int32_t> token_ids,
                                             const StoreEntryOptions& options);
  /// The same from beginning to end.
  absl::StatusOr<StoredChunk> EnsureStored(std::string_view tenant_namespace,
                                           absl::Span<const int32_t> anchor_ids,
                                           absl::Span<const int32_t> token_ids,
                                           const StoreEntryOptions& options, blend::KeepGoing keep_going);

  /// OK: the chunk outlives the process. kDeadlineExceeded: it is still on its way to the disk. Others: it
  /// never will.
  absl::Status WaitUntilDurable(const ChunkKey& key, absl::Time deadline);
  /// Whether that would have to wait.
  bool IsBeingWritten(const ChunkKey& key);

 private:
  /// The rows of one step of decoding.
  struct StepRows {
    std::vector<int32_t> token_ids;
    std::vector<kernels::SamplingSpec> sampling;
    std::vector<int32_t> kv_len;  // how many tokens each row attends to
    std::unique_ptr<kernels::BatchPlan> plan;
  };

  PromptPrefill::Engine EngineFor(kv::PageUse use);
  /// Takes the pages that the tokens need, and lays them out as the rows of one pass.
  absl::StatusOr<StepRows> PlanStep(absl::Span<const NextTokens> next);
  /// Runs such a pass, and waits for it. Returns what comes after each row.
  absl::StatusOr<std::vector<kernels::SampledToken>> RunStep(const StepRows& rows, bool measures);
  /// Gives back the pages that the tokens from the next one on don't see.
  void DropUnseen(PrefilledPrompt& prompt);
  /// Appends tokens. Returns the logits after each, in the backend's memory: valid until the next call.
  absl::StatusOr<kernels::MatrixView> Append(PrefilledPrompt& prompt, absl::Span<const int32_t> token_ids,
                                             blend::KeepGoing keep_going);
  /// Carries tokens through all layers; as many rows as `rows` has. Returns as Append.
  absl::StatusOr<kernels::MatrixView> RunRows(absl::Span<const int32_t> token_ids,
                                              const kernels::BatchPlan& rows, model::PassState& state,
                                              blend::KeepGoing keep_going,
                                              const AnswerAttention* attention = nullptr);
  absl::StatusOr<std::vector<kernels::SampledToken>> Sample(kernels::MatrixView logits,
                                                            absl::Span<const kernels::SamplingSpec> specs);
  ModelRuntime& runtime_;
  store::ChunkStore& chunk_store_;
  const Options options_;
  blend::LoadingController loading_controller_;
  model::PassState state_;
  model::PassState step_state_;  // of ExtendAll alone: a RepeatedStep must find it as the last one left it
  model::ScratchMatrix logits_;
  ScratchPool scratch_;
  AnswerAttention attention_;
  std::atomic<int64_t> dropped_pages_ = 0;
  ChunkCounts chunk_counts_;
  KeptSequences kept_;
  SharedPrefixes shared_;
  IdleRefinement refinement_;
  ChunkStoring::InProgress storing_;
  std::unique_ptr<kernels::RepeatedStep> step_;
  bool said_problem_ = false;  // that step_->problem() has been logged
};

}  // namespace kvblend
