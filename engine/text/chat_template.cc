#include "engine/text/chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/text/chat/template_reader.h"
#include "engine/text/jinja/message.h"

namespace kvblend::text {
namespace {

// Errors of templates end with what can be done about them.
std::string OtherWays() { return jinja::Message("; allowed for chat-format instead: ", ChatFormatNames()); }

absl::Status CheckControlTokens(const Tokenizer& tokenizer, const ChatFormat& format) {
  for (const std::string& name : format.control_tokens) {
    const std::optional<TokenId> token = tokenizer.FindSpecial(name);
    if (token.has_value() && tokenizer.IsSpecial(*token)) continue;
    return absl::InvalidArgumentError(jinja::Message("the chat format ", format.name,
                                                     " needs the control token ", name,
                                                     "; the vocabulary lacks it", OtherWays()));
  }
  return absl::OkStatus();
}

// Where in a piece the tokens of the next text's part begin. A piece begins with the end of what came before:
// at most one control token and its line break, or BOS at the prompt's start.
size_t PartBoundary(const ControlTokens& control, const Tokenizer& tokenizer, const ChatPart& part) {
  const auto [first, token] = control.FindFirst(part.piece);
  if (first == std::string_view::npos) return part.piece.size();
  const bool is_bos = first == 0 && tokenizer.bos() == token;
  if (part.from == ChatPoint::kStart && !is_bos) return 0;
  const size_t behind = first + tokenizer.TokenBytes(token).size();
  if (part.from == ChatPoint::kStart) return behind;
  const size_t second = control.FindFirst(part.piece.substr(behind)).first;
  return second == std::string_view::npos ? part.piece.size() : behind + second;
}

// Whether the template `source` gives another format on a day of another year, month and day of the week.
bool TellsDate(std::string_view source, TemplateContext context, const ChatFormat& format) {
  context.now += absl::Hours(24) * 400;
  const absl::StatusOr<ChatFormat> later = ReadChatFormat(source, context);
  return !later.ok() || later->pieces != format.pieces;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const Tokenizer& tokenizer,
                                                                   const ChatTemplateOptions& options) {
  KVBLEND_RETURN_IF_ERROR(CheckChatFormatName(options.format));
  TemplateContext context{.bos = {}, .eos = {}, .now = options.now};
  if (tokenizer.bos()) context.bos = tokenizer.TokenBytes(*tokenizer.bos());
  if (options.eos) context.eos = tokenizer.TokenBytes(*options.eos);
  const std::vector<ChatFormat> named = NamedChatFormats(context.bos, context.eos);
  ChatFormat format;
  bool tells_date = false;
  if (options.format != "auto") {
    for (const ChatFormat& candidate : named) {
      if (candidate.name == options.format) format = candidate;
    }
  } else if (options.source.empty()) {
    return absl::UnimplementedError(jinja::Message(
        "tokenizer.chat_template is missing: the model has no chat format; --chat-format names one, "
        "plain for a model that has learned none",
        OtherWays()));
  } else {
    absl::StatusOr<ChatFormat> learned = ReadChatFormat(options.source, context);
    if (!learned.ok()) {
      // A template that asks for what is not implemented is not invalid.
      const absl::StatusCode code = absl::IsInvalidArgument(learned.status())
                                        ? absl::StatusCode::kInvalidArgument
                                        : absl::StatusCode::kUnimplemented;
      return absl::Status(
          code,
          jinja::Message("tokenizer.chat_template: ", std::string(learned.status().message()), OtherWays()));
    }
    const ChatFormat* known = FindNamedFormat(*learned, named);
    tells_date = known == nullptr && TellsDate(options.source, context, *learned);
    format = known != nullptr ? *known : *learned;
    format.thoughts_end = learned->thoughts_end;
    format.behind_thoughts = learned->behind_thoughts;
    format.first_ends_thoughts = learned->first_ends_thoughts;
    // Whether a tokenizer strips behind control tokens does not depend on the rest of the template.
    for (const ChatFormat& candidate : named) {
      format.strips_behind_control |=
          candidate.strips_behind_control && candidate.piece(ChatPoint::kUser, ChatPoint::kAssistant) ==
                                                 format.piece(ChatPoint::kUser, ChatPoint::kAssistant);
    }
  }
  KVBLEND_RETURN_IF_ERROR(CheckControlTokens(tokenizer, format));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(tokenizer, std::move(format), tells_date));
}

void ChatTemplate::AppendOpening(std::span<const ChatPart> parts, size_t num_turns, PromptEncoder& encoder,
                                 Opening& opening) const {
  encoder.Into(&opening.system);
  size_t turns = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ChatPart& part = parts[i];
    // The part that the text belongs to: a system text behind the history is part of its user's turn.
    std::vector<TokenId>* target = &opening.lead_in;
    if (part.to == ChatPoint::kSystem && turns == 0) {
      target = &opening.system;
    } else if (part.to != ChatPoint::kSystem && turns < num_turns) {
      target = &opening.history;
      ++turns;
    }
    const size_t boundary = PartBoundary(control_, tokenizer_, part);
    encoder.AppendPiece(part.piece.substr(0, boundary));
    encoder.Into(target);
    encoder.AppendPiece(part.piece.substr(boundary));
    if (i + 1 == parts.size()) return;
    encoder.AppendText(part.text);
    if (!part.has_parts) continue;
    // Tokenized as when it was the last turn: each chunk on its own, and the question as in Close.
    for (const std::string& chunk : part.chunks) encoder.AppendApart(chunk);
    encoder.Finish();
    const bool behind_control = !target->empty() && tokenizer_.IsSpecial(target->back());
    encoder.Restart(behind_control ? TextPosition::kStart : TextPosition::kWithin);
    encoder.AppendText(part.question);
  }
}

void ChatTemplate::AddBos(Opening& opening) const {
  if (!tokenizer_.add_bos() || !tokenizer_.bos()) return;
  const std::vector<TokenId>* first = &opening.system;
  if (first->empty()) first = opening.history.empty() ? &opening.lead_in : &opening.history;
  if (first->empty() || first->front() != *tokenizer_.bos()) {
    opening.system.insert(opening.system.begin(), *tokenizer_.bos());
  }
}

absl::StatusOr<ChatTemplate::Opening> ChatTemplate::Open(std::string_view system_text,
                                                         std::span<const ChatTurn> history,
                                                         std::string_view lead_in,
                                                         TokenBudget* budget) const {
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<ChatPart> parts,
                           ComposeChat(format_, system_text, history, lead_in));
  Opening opening;
  PromptEncoder encoder(tokenizer_, control_, format_.strips_behind_control, TextPosition::kFirst, budget);
  AppendOpening(parts, history.size(), encoder, opening);
  encoder.AppendText(parts.back().text);
  encoder.Finish();
  AddBos(opening);
  return opening;
}

absl::StatusOr<ChatTemplate::WholePrompt> ChatTemplate::Whole(std::string_view system_text,
                                                              std::span<const ChatTurn> history,
                                                              std::string_view question,
                                                              TokenBudget* budget) const {
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<ChatPart> parts,
                           ComposeChat(format_, system_text, history, question));
  WholePrompt prompt;
  PromptEncoder encoder(tokenizer_, control_, format_.strips_behind_control, TextPosition::kFirst, budget);
  AppendOpening(parts, history.size(), encoder, prompt.opening);
  encoder.Into(&prompt.question);
  const ChatPart& last = parts.back();
  encoder.AppendText(TrimmedRight(last.text, format_.UserTrimming(last.from)));
  encoder.AppendPiece(*format_.piece(ChatPoint::kUser, ChatPoint::kEnd));
  encoder.Finish();
  AddBos(prompt.opening);
  return prompt;
}

std::vector<TokenId> ChatTemplate::Close(std::string_view question, TextPosition position,
                                         TokenBudget* budget) const {
  std::vector<TokenId> tokens;
  PromptEncoder encoder(tokenizer_, control_, format_.strips_behind_control, position, budget);
  encoder.Into(&tokens);
  encoder.AppendText(TrimmedRight(question, format_.user));
  encoder.AppendPiece(*format_.piece(ChatPoint::kUser, ChatPoint::kEnd));
  encoder.Finish();
  return tokens;
}

}  // namespace kvblend::text
