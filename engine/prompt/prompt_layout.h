// From a request's texts to the tokens of its prompt, cut into spans.
//
//   [system | history | lead-in | chunk 0 | ... | chunk n-1 | question]
//
// Every span is tokenized on its own: a chunk has the same tokens in whatever prompt and place, which is what
// lets its KV be stored once and found again. It is tokenized as text that goes on behind other text. A
// prompt without lead-in and chunks is tokenized as one text, as the model's own tokenizer does. Pure
// functions; safe from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/request.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace kvblend::prompt {

using SpanKind = PromptPart;

struct Span {
  SpanKind kind;
  int32_t chunk_index;  // into Prompt::chunks; -1 for other kinds
  int32_t begin;        // token positions, [begin, end)
  int32_t end;
  bool is_text =
      false;  // of a chunk: text between passages (split/prompt_split.h), of which nothing is stored

  int32_t size() const { return end - begin; }
};

struct PromptLayout {
  std::vector<text::TokenId> token_ids;
  /// In order and covering all tokens: system, history, lead-in, each chunk, question. All are present, some
  /// may be empty. The system span begins with BOS for models that want it.
  std::vector<Span> spans;
  /// What anchored chunks are computed behind: the tokens of the system and the lead-in span.
  std::vector<text::TokenId> anchor_ids;
  /// Whether token_ids begins with anchor_ids, and nothing else comes before chunks and question: no history,
  /// and no token of a prompt without chunks that goes from the format into the question.
  bool anchor_is_prefix = false;
};

/// Tokens beyond what is allowed are counted up to so many, and no further: a refusal tells their number
/// where leaving some out would help, and a text of megabytes costs little.
inline constexpr int64_t kExcessCounted = 8192;

struct PromptLimits {
  int32_t max_prompt_tokens = std::numeric_limits<int32_t>::max();
  int32_t max_chunks = std::numeric_limits<int32_t>::max();
};

/// kInvalidArgument, naming field, value and what is allowed: a question without text or tokens, ill-formed
/// UTF-8 (with its byte offset), more chunks (earlier turns' counted) or tokens than `limits` allows, turns
/// or a system text that the chat format does not allow.
absl::StatusOr<PromptLayout> BuildPromptLayout(const Prompt& prompt, const text::Tokenizer& tokenizer,
                                               const text::ChatTemplate& chat_template,
                                               const PromptLimits& limits);

/// Where in the prompt the text of the question ends, and the tokens begin that the chat format puts behind
/// it.
int32_t EndOfQuestionText(const PromptLayout& layout, const text::Tokenizer& tokenizer);

/// PromptLayout::anchor_ids of prompts with this system text and lead-in, for precomputing chunks.
/// kInvalidArgument: ill-formed UTF-8, a system text that the chat format does not allow, more than
/// kExcessCounted tokens beyond `max_tokens`; fewer beyond are the caller's matter.
absl::StatusOr<std::vector<text::TokenId>> AnchorTokens(
    std::string_view system_text, std::string_view lead_in, const text::ChatTemplate& chat_template,
    int64_t max_tokens = std::numeric_limits<int32_t>::max());

/// The tokens of a chunk, in whatever prompt. `field` names the text in errors, e.g. "chunks[3]".
/// kInvalidArgument: ill-formed UTF-8, more than kExcessCounted tokens beyond `max_tokens`, as above.
absl::StatusOr<std::vector<text::TokenId>> ChunkTokens(
    std::string_view chunk, std::string_view field, const text::Tokenizer& tokenizer,
    int64_t max_tokens = std::numeric_limits<int32_t>::max());

}  // namespace kvblend::prompt
