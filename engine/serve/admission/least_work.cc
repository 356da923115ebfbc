#include "engine/serve/admission/least_work.h"

#include <algorithm>

#include "engine/blend/costs/loading_controller.h"
#include "engine/blend/selection_policy.h"
#include "engine/serve/sequences/shared_prefixes.h"

namespace kvblend {
namespace {

/// The least work on a chunk that is found in the store and is not exact.
double LeastOfChunk(int32_t tokens, const BlendOptions& blend, const RatioOptions& ratio) {
  switch (blend.policy) {
    case Policy::kNone:
      return 0;
    case Policy::kAll:
      return tokens;
    case Policy::kLink:
      return std::min(tokens, blend.link_tokens);
    case Policy::kQuery:
    case Policy::kHkvd:
    case Policy::kRandom:
      return tokens * (ratio.mode == RatioMode::kAuto ? ratio.min : ratio.ratio);
  }
  return 0;
}

}  // namespace

int32_t LeastComputedTokens(const prompt::PromptLayout& layout, const BlendOptions& blend,
                            const RatioOptions& defaults, bool finds_pages) {
  if (blend.reuse == Reuse::kNothing) return static_cast<int32_t>(layout.token_ids.size());
  const int32_t question = layout.spans.back().size();
  const RatioOptions ratio = blend::ResolveRatio(blend, defaults);
  const int32_t found =
      finds_pages && blend.share_prefix ? ExactPrefixTokens(layout, blend, ratio, INT32_MAX) : 0;
  double chunks = 0;
  int32_t candidates = 0;
  for (const prompt::Span& span : layout.spans) {
    if (span.kind == prompt::SpanKind::kHistory && span.size() > 0)
      return question;  // a kept sequence may end anywhere in the history
    // The first chunk may be part of an exact prefix.
    if (span.kind != prompt::SpanKind::kChunk || span.chunk_index == 0 || span.begin < found) continue;
    candidates += span.size();
    chunks += blend.reuse == Reuse::kPrefix ? span.size() : LeastOfChunk(span.size(), blend, ratio);
  }
  const bool blends = ratio.mode == RatioMode::kAuto || ratio.ratio > 0;
  if (blend::HasRatio(blend.policy) && blends) {
    chunks = std::max<double>(chunks, std::min(candidates, ratio.min_tokens));
  }
  return question + static_cast<int32_t>(chunks);
}

}  // namespace kvblend
