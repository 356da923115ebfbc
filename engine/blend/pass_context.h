// What the passes of one prompt's prefill share.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/request_trace.h"
#include "engine/blend/costs/loading_controller.h"
#include "engine/blend/fresh_rows.h"
#include "engine/blend/paged_sequence.h"
#include "engine/blend/reuse_plan.h"
#include "engine/kv/learned_correction.h"
#include "engine/model/scratch.h"
#include "engine/model/transformer.h"
#include "engine/prompt/prompt_layout.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// Backend memory that one prefill uses after the other.
struct PrefillScratch {
  model::PassState state;
  FreshRowMemory fresh_rows;
  model::ScratchMatrix corrected_k, corrected_v;  // what a correction makes of one span
  model::ScratchMatrix mass, lengths;             // f32 [layers that vote, prompt_tokens]
  model::ScratchMatrix scores;                    // f32 [1, candidates]
  model::ScratchMatrix chosen;                    // as many int32 as tokens are chosen
  model::ScratchMatrix logits;
};

/// The context of one prompt. What it refers to outlives the prefill.
struct PassContext {
  const model::Transformer& transformer;
  kernels::Stream& stream;
  PrefillScratch& scratch;
  const prompt::PromptLayout& layout;
  const ReusePlan& plan;
  PagedSequence sequence;
  const kv::LoadedCorrection* correction = nullptr;  // of stored KV that is reused inexactly; null: none
  FreshRowCapture* capture = nullptr;                // keeps rows of missing chunks; null: none are kept
  int32_t pipeline_depth = 0;                        // see KvLoader
  bool spread_deviation = false;                     // pass deviations of recomputed tokens on to the others
  bool keep_scores = false;                          // fill PrefillResult::scores
  bool whole_kv = false;                             // also what windows hide from all rows behind it
  RequestTrace* trace = nullptr;                     // of the request; null: none

  kernels::Backend& backend() const { return transformer.backend(); }
  model::PassState& state() const { return scratch.state; }

  /// Makes the tokens at `positions` the rows of the state.
  absl::Status Begin(absl::Span<const int32_t> positions) const {
    std::vector<int32_t> token_ids;
    token_ids.reserve(positions.size());
    for (const int32_t position : positions) token_ids.push_back(layout.token_ids[position]);
    return transformer.Begin(stream, token_ids, state());
  }
};

/// What a pass over the tokens at `positions` computes.
inline PassSize SizeOf(absl::Span<const int32_t> positions) {
  PassSize size{.rows = static_cast<double>(positions.size())};
  for (const int32_t position : positions) size.visible_keys += position + 1;
  return size;
}

}  // namespace kvblend::blend
