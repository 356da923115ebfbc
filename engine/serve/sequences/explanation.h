// A prompt's report token by token: what clients draw as a heat map.
#pragma once

#include <vector>

#include "engine/api/request.h"
#include "engine/blend/blended_prefill.h"
#include "engine/blend/selection_policy.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/text/tokenizer.h"

namespace kvblend {

/// The parts of the prompt that have tokens, in order. `candidates` are those that the prefill chose from.
/// Where a token ends inside a character, the character's text belongs to the token that completes it. Pure.
std::vector<ExplainedSpan> ExplainPrompt(const prompt::PromptLayout& layout, const text::Tokenizer& tokenizer,
                                         const blend::Candidates& candidates,
                                         const blend::PrefillResult& prefill);

}  // namespace kvblend
