// Full prefill of a part of a sequence whose KV was blended, in place.
//
// The rows of a run of tokens are computed anew through all layers, over the KV before them in the pages.
// Where that is what full prefill would give, so is what comes out, except for rounding: a run after the
// other, in the order of their positions, makes a blended sequence an exact one for what full prefill of its
// inexact tokens costs. Recomputing the tokens with the highest scores first would make more of a difference
// sooner, but over neighbours that are blended still, so that each would have to be computed once more in the
// end, and until then none of it could be called exact.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/blend/kv_loader.h"
#include "engine/blend/pass_context.h"
#include "engine/blend/reuse_plan.h"
#include "engine/blend/row_pass.h"
#include "engine/model/transformer.h"
#include "engine/prompt/prompt_layout.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// One run of tokens. Not thread-safe, but not bound to a thread either.
class SequenceRefinement {
 public:
  /// Runs nothing yet. Transformer, stream and scratch must outlive it; the sequence's pages need not outlive
  /// the last Step. REQUIRES: 0 <= begin < end <= token_ids.size(); the sequence has pages for `end` tokens,
  /// with the KV of [0, begin) in them: in layers with windows what the rows of the run see of it.
  static absl::StatusOr<std::unique_ptr<SequenceRefinement>> Create(
      const model::Transformer& transformer, kernels::Stream& stream, PrefillScratch& scratch,
      absl::Span<const int32_t> token_ids, int32_t begin, int32_t end, const PagedSequence& sequence);
  SequenceRefinement(const SequenceRefinement&) = delete;
  SequenceRefinement& operator=(const SequenceRefinement&) = delete;

  /// Does a unit of work: a part of a layer. Returns whether the run is done; then the pages hold the KV of
  /// all of its tokens in every layer, so that other prompts may share any part of it.
  absl::StatusOr<bool> Step();

 private:
  SequenceRefinement(const model::Transformer& transformer, kernels::Stream& stream, PrefillScratch& scratch,
                     absl::Span<const int32_t> token_ids, int32_t end, const PagedSequence& sequence);

  prompt::PromptLayout layout_;  // the tokens alone
  ReusePlan plan_;               // which finds nothing in the store
  const PassContext context_;
  std::unique_ptr<KvLoader> loader_;
  std::unique_ptr<RowPass> pass_;
};

}  // namespace kvblend::blend
