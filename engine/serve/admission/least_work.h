// What a prompt costs at the least, known before anything is looked up.
#pragma once

#include <cstdint>

#include "engine/api/options.h"
#include "engine/api/request.h"
#include "engine/prompt/prompt_layout.h"

namespace kvblend {

/// Tokens of the prompt that will be computed even if every chunk is in the store, and the conversation up to
/// here has been kept; with `finds_pages` also if all is in pages of others already that may be
/// (shared_prefixes.h). Pure. `defaults`: the engine's ratio, for what `blend` leaves open.
int32_t LeastComputedTokens(const prompt::PromptLayout& layout, const BlendOptions& blend,
                            const RatioOptions& defaults, bool finds_pages);

}  // namespace kvblend
