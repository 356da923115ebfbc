// One prompt on its way into pages: looks up its chunks, decides what to recompute, and runs the blended
// prefill, step by step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "engine/blend/blended_prefill.h"
#include "engine/blend/costs/loading_controller.h"
#include "engine/blend/fresh_rows.h"
#include "engine/blend/reuse_plan.h"
#include "engine/kv/sequence_pages.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/kept_sequences.h"
#include "engine/serve/sequences/scratch_pool.h"
#include "engine/serve/sequences/shared_prefixes.h"
#include "engine/store/chunk_store.h"

namespace kvblend {

/// A prompt whose KV is in pages, ready to be continued.
struct PrefilledPrompt {
  std::unique_ptr<kv::SequencePages> pages;
  SharedPrefixes::Offer offer;      // of its exact tokens to others; ends with the pages
  int32_t num_tokens = 0;           // with KV in the pages
  int32_t num_exact = 0;            // leading tokens of the prompt whose KV is as full prefill would give it
  TokenRanges loaded;               // those of them whose KV came from the store
  int32_t kept_must_match = -1;     // KeptSequence::must_match of what it went on from; -1: nothing
  std::vector<float> logits;        // after the last token [vocab_size]
  std::vector<int32_t> recomputed;  // positions of reused tokens that the policy chose, ascending
  PromptReport report;              // queue and first-token times are the caller's to fill in
  std::vector<blend::MissingEntry> missing;  // to be stored behind the response

  /// Its pages go where they are returned to.
  std::unique_ptr<kv::SequencePages> TakePages() {
    offer = {};
    return std::move(pages);
  }
  void DropPages() { TakePages().reset(); }
};

/// How a prompt was prefilled, for doing it once more in the same way.
struct PrefillRecord {
  std::vector<int32_t> computed;  // where spans begin that were computed in place, ascending
  blend::ReusedEntries reused;    // the others' entries
  int32_t kept_tokens = 0;        // what it went on behind, of an earlier turn
  int32_t shared_tokens = 0;      // of the leading ones, those in pages of others
  int32_t computed_tokens = 0;    // of the prompt, those in pages of others included
  double ratio = 0;               // what the policy was told
  TokenRanges loaded = {};        // exact leading tokens whose KV came from the store
  std::shared_ptr<const kv::LoadedCorrection> correction = nullptr;  // of what was reused; null: none
};

/// For the engine thread only.
class PromptPrefill {
 public:
  /// What it needs of the engine, which must outlive it.
  struct Engine {
    ModelRuntime& runtime;
    store::ChunkStore& chunk_store;
    blend::LoadingController& loading_controller;
    ScratchPool& scratch;
    int32_t load_pipeline_depth;
    RatioOptions ratio;
    blend::FreshRowOptions fresh_rows;
    KeptSequences& kept;
    SharedPrefixes& shared;
    bool share_prefixes;
    kv::PageUse use;
  };

  /// Goes on from a kept sequence where there is one, or else begins with the pages of another that begins
  /// with the same exact tokens. `layout` must outlive it, and `trace`, which may be null. `again`: gives the
  /// same KV as when that was recorded, as long as what was reused is still there; it keeps nothing for
  /// learning, and need not outlive the call. kResourceExhausted when there are too few pages. REQUIRES:
  /// valid options.
  static absl::StatusOr<std::unique_ptr<PromptPrefill>> Create(
      const Engine& engine, const prompt::PromptLayout& layout, const BlendOptions& options,
      std::string_view tenant_namespace, RequestTrace* trace = nullptr, const PrefillRecord* again = nullptr);
  /// How many pages that answers hold already such a prompt would begin with, at least: what the store has of
  /// it is not looked up.
  static int64_t PagesToShare(const Engine& engine, const prompt::PromptLayout& layout,
                              const BlendOptions& options, std::string_view tenant_namespace,
                              const PrefillRecord* again);
  /// What it went on from is kept again, unless it is done. What it has computed behind that goes: all rows
  /// of a pass are carried through one layer after the other, so before its end there is no token with KV in
  /// all of them.
  ~PromptPrefill();

  /// Does a unit of work: a part of a layer. Returns whether the prompt is done. Errors: keep_going's, the
  /// backend's.
  absl::StatusOr<bool> Step(blend::KeepGoing keep_going);

  /// How much longer it should take by what was measured of passes so far; 0 when nothing is known, and for
  /// ever while it waits for a slower tier.
  double predicted_seconds_left() const;

  /// How many tokens it has computed since it was planned: of all that it will, the share that its work has
  /// of what that was predicted to take, rounded up. 0 where nothing was predicted.
  int64_t computed_tokens() const;

  /// REQUIRES: Step has returned true.
  PrefilledPrompt TakePrompt() { return std::move(prompt_); }
  /// REQUIRES: Step has returned true.
  PrefillRecord record() const;
  /// What the prompt went on from, without its pages; nullopt: nothing was kept. REQUIRES: Step has returned
  /// true.
  std::optional<KeptSequence> TakeKept() { return std::exchange(kept_, std::nullopt); }

 private:
  PromptPrefill(const Engine& engine, const prompt::PromptLayout& layout, const BlendOptions& options,
                std::string_view tenant_namespace, RequestTrace* trace);

  /// Takes over what is kept of the prompt, with pages for all of it, if anything is.
  absl::Status TakeKeptPages();
  /// Pages for all of a prompt that was looked up: those of another that it begins with, and its own.
  absl::Status TakePages();
  /// What a prompt may begin with. `other_anchor`: see ExactPrefixTokens.
  static std::optional<SharedPrefix> FindSource(const Engine& engine, const prompt::PromptLayout& layout,
                                                const BlendOptions& options,
                                                std::string_view tenant_namespace, const PrefillRecord* again,
                                                int32_t other_anchor);
  /// Lets others share what is exact of it.
  void OfferPrefix();
  /// Looks up the chunks and decides; anew when an entry turns out to be lost.
  absl::Status Plan();
  void Finish();

  const Engine engine_;
  const prompt::PromptLayout& layout_;
  const BlendOptions options_;
  const std::string tenant_namespace_;
  RequestTrace* const trace_;
  const int64_t trace_begin_;  // by its clock
  RatioOptions ratio_;         // of the plan
  const ScratchPool::Lease scratch_;
  std::optional<PrefillRecord> again_;
  std::shared_ptr<const kv::LoadedCorrection> correction_;
  PrefilledPrompt prompt_;
  std::optional<KeptSequence> kept_;  // what it goes on from, the pages apart
  int32_t kept_tokens_ = 0;           // leading tokens that it goes on behind, of an earlier turn
  int32_t shared_tokens_ = 0;         // leading tokens whose KV it found in pages of another sequence
  TokenRanges found_;                 // of the kept or shared tokens those that had come from the store
  TokenRanges loaded_;                // of all exact ones, in the end
  bool done_ = false;
  double lookup_seconds_ = 0;
  double worked_seconds_ = 0;  // since the plan

  // What the plan consists of, in the order in which the parts refer to each other.
  std::optional<blend::LoadingCosts> costs_;
  blend::LoadingDecision decision_;
  blend::PromptShape shape_;
  blend::ReusePlan plan_;
  std::unique_ptr<blend::SelectionPolicy> policy_;
  std::optional<blend::FreshRowCapture> capture_;
  std::unique_ptr<blend::BlendedPrefill> prefill_;
};

}  // namespace kvblend
