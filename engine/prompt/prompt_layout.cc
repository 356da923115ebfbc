#include "engine/prompt/prompt_layout.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/api/prompt_too_long.h"
#include "engine/text/utf8.h"

namespace kvblend::prompt {
namespace {

absl::Status CheckUtf8(std::string_view field, std::string_view text) {
  const auto invalid = text::FirstInvalidUtf8(text);
  if (!invalid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is not valid UTF-8: byte 0x%02X at offset %d of %d; allowed: valid UTF-8", field,
                      static_cast<uint8_t>(text[*invalid]), *invalid, text.size()));
}

// Cheap checks, all of them before the first text is tokenized.
absl::Status CheckPrompt(const Prompt& prompt, const PromptLimits& limits) {
  if (prompt.question.empty()) {
    return absl::InvalidArgumentError("question is empty; allowed: at least one character");
  }
  size_t num_chunks = prompt.chunks.size();
  for (const Turn& turn : prompt.history) num_chunks += turn.chunks.size();
  if (num_chunks > static_cast<size_t>(limits.max_chunks)) {
    const char* where =
        num_chunks == prompt.chunks.size() ? "chunks has " : "chunks, earlier turns' with them, has ";
    return absl::InvalidArgumentError(
        absl::StrCat(where, num_chunks, " entries; allowed: up to ", limits.max_chunks));
  }
  KVBLEND_RETURN_IF_ERROR(CheckUtf8("system_text", prompt.system_text));
  KVBLEND_RETURN_IF_ERROR(CheckUtf8("lead_in", prompt.lead_in));
  KVBLEND_RETURN_IF_ERROR(CheckUtf8("question", prompt.question));
  for (size_t i = 0; i < prompt.chunks.size(); ++i) {
    KVBLEND_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("chunks[", i, "]"), prompt.chunks[i]));
  }
  for (size_t i = 0; i < prompt.history.size(); ++i) {
    const Turn& turn = prompt.history[i];
    KVBLEND_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("history[", i, "].text"), turn.text));
    KVBLEND_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("history[", i, "].lead_in"), turn.lead_in));
    for (size_t j = 0; j < turn.chunks.size(); ++j) {
      KVBLEND_RETURN_IF_ERROR(CheckUtf8(absl::StrCat("history[", i, "].chunks[", j, "]"), turn.chunks[j]));
    }
  }
  return absl::OkStatus();
}

class LayoutBuilder {
 public:
  LayoutBuilder(PromptLayout* layout, int32_t max_tokens) : layout_(layout), max_tokens_(max_tokens) {}

  /// Appends tokens to the span that End() closes. Beyond the limit they are only counted.
  void Append(const std::vector<text::TokenId>& tokens) {
    count_ += static_cast<int64_t>(tokens.size());
    if (!fits()) return;
    layout_->token_ids.insert(layout_->token_ids.end(), tokens.begin(), tokens.end());
  }

  void End(SpanKind kind, int32_t chunk_index = -1) {
    const auto end = static_cast<int32_t>(layout_->token_ids.size());
    layout_->spans.push_back({kind, chunk_index, begin_, end});
    begin_ = end;
  }

  bool fits() const { return count_ <= max_tokens_; }
  int64_t count() const { return count_; }

 private:
  PromptLayout* layout_;
  int32_t max_tokens_;
  int64_t count_ = 0;
  int32_t begin_ = 0;
};

int64_t CountedFor(int64_t max_tokens) { return std::max<int64_t>(max_tokens, 0) + kExcessCounted; }

text::TokenBudget BudgetFor(int64_t max_tokens) {
  return {.left = static_cast<size_t>(CountedFor(max_tokens))};
}

absl::Status MuchTooLong(std::string_view field, int64_t max_tokens) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), " has more than ",
                                                 CountedFor(max_tokens), " tokens; allowed: up to ",
                                                 std::max<int64_t>(max_tokens, 0)));
}

/// All tokens of an opening.
std::vector<text::TokenId> Joined(const text::ChatTemplate::Opening& opening) {
  std::vector<text::TokenId> tokens = opening.system;
  for (const std::vector<text::TokenId>* part : {&opening.history, &opening.lead_in}) {
    tokens.insert(tokens.end(), part->begin(), part->end());
  }
  return tokens;
}

}  // namespace

absl::StatusOr<PromptLayout> BuildPromptLayout(const Prompt& prompt, const text::Tokenizer& tokenizer,
                                               const text::ChatTemplate& chat_template,
                                               const PromptLimits& limits) {
  KVBLEND_RETURN_IF_ERROR(CheckPrompt(prompt, limits));

  PromptLayout layout;
  layout.spans.reserve(prompt.chunks.size() + 4);
  LayoutBuilder builder(&layout, limits.max_prompt_tokens);
  text::TokenBudget budget = BudgetFor(limits.max_prompt_tokens);
  const auto much_too_long = [&] {
    return PromptTooLongError(CountedFor(limits.max_prompt_tokens), limits.max_prompt_tokens,
                              /*and_more=*/true);
  };
  std::vector<text::ChatTurn> history;
  history.reserve(prompt.history.size());
  for (const Turn& turn : prompt.history) {
    history.push_back({turn.role == Role::kUser ? text::Role::kUser : text::Role::kAssistant, turn.text,
                       turn.lead_in, turn.chunks});
  }
  // With nothing in it that needs tokens of its own, a prompt has those that the model learned.
  const bool is_whole = prompt.lead_in.empty() && !text::HaveText(prompt.chunks);
  std::vector<text::TokenId> closing;
  text::ChatTemplate::Opening opening;
  if (is_whole) {
    KVBLEND_ASSIGN_OR_RETURN(text::ChatTemplate::WholePrompt whole,
                             chat_template.Whole(prompt.system_text, history, prompt.question, &budget));
    opening = std::move(whole.opening);
    closing = std::move(whole.question);
  } else {
    KVBLEND_ASSIGN_OR_RETURN(opening,
                             chat_template.Open(prompt.system_text, history, prompt.lead_in, &budget));
  }
  if (budget.exceeded) return much_too_long();
  builder.Append(opening.system);
  builder.End(SpanKind::kSystem);
  builder.Append(opening.history);
  builder.End(SpanKind::kHistory);
  builder.Append(opening.lead_in);
  builder.End(SpanKind::kLeadIn);
  for (size_t i = 0; i < prompt.chunks.size(); ++i) {
    builder.Append(budget.Encode(tokenizer, prompt.chunks[i], text::TextPosition::kWithin));
    if (budget.exceeded) return much_too_long();
    builder.End(SpanKind::kChunk, static_cast<int32_t>(i));
  }
  if (!is_whole) {
    const bool behind_control = !layout.token_ids.empty() && tokenizer.IsSpecial(layout.token_ids.back());
    closing = chat_template.Close(
        prompt.question, behind_control ? text::TextPosition::kStart : text::TextPosition::kWithin, &budget);
    if (budget.exceeded) return much_too_long();
  }
  builder.Append(closing);
  builder.End(SpanKind::kQuestion);

  if (!builder.fits()) {
    return PromptTooLongError(builder.count(), limits.max_prompt_tokens);
  }
  if (history.empty() && !is_whole) {
    layout.anchor_ids = Joined(opening);
  } else {
    KVBLEND_ASSIGN_OR_RETURN(layout.anchor_ids,
                             AnchorTokens(prompt.system_text, prompt.lead_in, chat_template));
  }
  layout.anchor_is_prefix = history.empty() && (!is_whole || layout.anchor_ids == Joined(opening));
  // Formats trim questions, and vocabularies may have nothing for a character.
  if (layout.spans.back().size() == 0) {
    return absl::InvalidArgumentError(
        "question has no tokens in this model's chat format; allowed: one or more");
  }
  return layout;
}

int32_t EndOfQuestionText(const PromptLayout& layout, const text::Tokenizer& tokenizer) {
  const Span& question = layout.spans.back();
  int32_t end = question.begin;
  while (end < question.end && !tokenizer.IsSpecial(layout.token_ids[end])) ++end;
  return end;
}

absl::StatusOr<std::vector<text::TokenId>> AnchorTokens(std::string_view system_text,
                                                        std::string_view lead_in,
                                                        const text::ChatTemplate& chat_template,
                                                        int64_t max_tokens) {
  KVBLEND_RETURN_IF_ERROR(CheckUtf8("system_text", system_text));
  KVBLEND_RETURN_IF_ERROR(CheckUtf8("lead_in", lead_in));
  text::TokenBudget budget = BudgetFor(max_tokens);
  KVBLEND_ASSIGN_OR_RETURN(const text::ChatTemplate::Opening opening,
                           chat_template.Open(system_text, {}, lead_in, &budget));
  if (budget.exceeded) return MuchTooLong("the anchor (system_text and lead_in)", max_tokens);
  return Joined(opening);
}

absl::StatusOr<std::vector<text::TokenId>> ChunkTokens(std::string_view chunk, std::string_view field,
                                                       const text::Tokenizer& tokenizer, int64_t max_tokens) {
  KVBLEND_RETURN_IF_ERROR(CheckUtf8(field, chunk));
  text::TokenBudget budget = BudgetFor(max_tokens);
  std::vector<text::TokenId> tokens = budget.Encode(tokenizer, chunk, text::TextPosition::kWithin);
  if (budget.exceeded) return MuchTooLong(field, max_tokens);
  return tokens;
}

}  // namespace kvblend::prompt
