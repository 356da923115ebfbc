#include "engine/text/chat/prompt_encoder.h"

#include <algorithm>
#include <optional>

#include "engine/text/char_class.h"

namespace kvblend::text {

ControlTokens::ControlTokens(const Tokenizer& tokenizer, const ChatFormat& format) {
  const auto occurs = [&](std::string_view name) {
    for (const auto& row : format.pieces) {
      for (const auto& piece : row) {
        if (piece.has_value() && piece->find(name) != std::string::npos) return true;
      }
    }
    return false;
  };
  for (TokenId token = 0; token < tokenizer.vocab_size(); ++token) {
    if (!tokenizer.IsSpecial(token)) continue;
    const std::string_view name = tokenizer.TokenBytes(token);
    if (!name.empty() && occurs(name)) names_.push_back({name, token});
  }
  std::stable_sort(names_.begin(), names_.end(),
                   [](const Name& a, const Name& b) { return a.text.size() > b.text.size(); });
}

std::pair<size_t, TokenId> ControlTokens::FindFirst(std::string_view piece) const {
  std::pair<size_t, TokenId> first(std::string_view::npos, 0);
  for (const Name& name : names_) {
    const size_t at = piece.find(name.text);
    if (at < first.first) first = {at, name.token};
  }
  return first;
}

std::vector<TokenId> TokenBudget::Encode(const Tokenizer& tokenizer, std::string_view text,
                                         TextPosition position) {
  if (exceeded) return {};
  std::optional<std::vector<TokenId>> tokens = tokenizer.EncodeAtMost(text, position, left);
  exceeded = !tokens.has_value();
  if (exceeded) return {};
  left -= tokens->size();
  return *std::move(tokens);
}

std::vector<TokenId> PromptEncoder::Encode(std::string_view text, TextPosition position) {
  return budget_ == nullptr ? tokenizer_.Encode(text, position) : budget_->Encode(tokenizer_, text, position);
}

void PromptEncoder::Into(std::vector<TokenId>* target) {
  target_ = target;
  if (!waiting_.empty()) parts_.push_back({waiting_.size(), target});
}

void PromptEncoder::AppendText(std::string_view text) {
  if (text.empty()) return;
  if (waiting_.empty()) parts_ = {{0, target_}};
  waiting_ += text;
}

void PromptEncoder::AppendPiece(std::string_view piece) {
  for (;;) {
    const auto [at, token] = control_.FindFirst(piece);
    AppendText(piece.substr(0, at));
    if (at == std::string_view::npos) return;
    if (tokenizer_.StripsBefore(token)) waiting_.resize(WithoutSpaceAtEnd(waiting_).size());
    Finish();
    target_->push_back(token);
    behind_control_ = true;
    strips_ = strips_behind_control_ || tokenizer_.StripsBehind(token);
    position_ = TextPosition::kStart;
    piece.remove_prefix(at + tokenizer_.TokenBytes(token).size());
  }
}

size_t PromptEncoder::BytesOf(std::span<const TokenId> tokens) const {
  size_t bytes = 0;
  for (const TokenId token : tokens) bytes += tokenizer_.TokenBytes(token).size();
  return bytes;
}

void PromptEncoder::Finish() {
  if (waiting_.empty()) return;
  std::string_view text = waiting_;
  if (behind_control_ && strips_) text = WithoutSpaceInFront(text);
  const std::vector<TokenId> tokens = Encode(text, position_);
  // With a space that the vocabulary may put in front.
  const size_t bytes = BytesOf(tokens);
  const bool verbatim = bytes == text.size() || bytes == text.size() + 1;
  size_t begin = tokens.size(), behind = 0;  // tokens from `begin` on stand for `behind` bytes
  std::vector<size_t> begins(parts_.size());
  for (size_t i = parts_.size(); i-- > 1;) {
    const std::string_view rest =
        std::string_view(waiting_).substr(std::min(parts_[i].begin, waiting_.size()));
    // A vocabulary that normalizes text has tokens for other bytes.
    if (tokens.empty()) break;
    const size_t wanted = verbatim ? rest.size() : BytesOf(tokenizer_.Encode(rest, TextPosition::kWithin));
    while (begin > 0 && behind < wanted) behind += tokenizer_.TokenBytes(tokens[--begin]).size();
    begins[i] = begin;
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const size_t end = i + 1 < parts_.size() ? begins[i + 1] : tokens.size();
    parts_[i].target->insert(parts_[i].target->end(), tokens.begin() + static_cast<std::ptrdiff_t>(begins[i]),
                             tokens.begin() + static_cast<std::ptrdiff_t>(end));
  }
  waiting_.clear();
  position_ = TextPosition::kWithin;
  behind_control_ = false;
}

void PromptEncoder::AppendApart(std::string_view text) {
  Restart(TextPosition::kWithin);
  const std::vector<TokenId> tokens = Encode(text, TextPosition::kWithin);
  target_->insert(target_->end(), tokens.begin(), tokens.end());
}

void PromptEncoder::Restart(TextPosition position) {
  Finish();
  position_ = position;
  behind_control_ = false;
}

}  // namespace kvblend::text
