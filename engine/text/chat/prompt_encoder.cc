#include "engine/text/chat/prompt_encoder.h"

#include <algorithm>

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

void PromptEncoder::AppendText(std::string_view text) {
  if (text.empty()) return;
  if (waiting_.empty()) waiting_target_ = target_;
  waiting_ += text;
}

void PromptEncoder::DivideInto(std::vector<TokenId>* target) {
  Into(target);
  if (waiting_.empty()) return;
  divided_target_ = target;
  divided_at_ = waiting_.size();
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

void PromptEncoder::Finish() {
  if (waiting_.empty()) return;
  std::string_view text = waiting_;
  if (behind_control_ && strips_) text = WithoutSpaceInFront(text);
  const std::vector<TokenId> tokens = tokenizer_.Encode(text, position_);
  auto division = tokens.end();
  if (divided_target_ != nullptr) {
    for (size_t behind = waiting_.size() - std::min(divided_at_, waiting_.size());
         behind > 0 && division != tokens.begin();) {
      --division;
      behind -= std::min(behind, tokenizer_.TokenBytes(*division).size());
    }
    divided_target_->insert(divided_target_->end(), division, tokens.end());
    divided_target_ = nullptr;
  }
  waiting_target_->insert(waiting_target_->end(), tokens.begin(), division);
  waiting_.clear();
  position_ = TextPosition::kWithin;
  behind_control_ = false;
}

void PromptEncoder::AppendApart(std::string_view text) {
  Restart(TextPosition::kWithin);
  const std::vector<TokenId> tokens = tokenizer_.Encode(text, TextPosition::kWithin);
  target_->insert(target_->end(), tokens.begin(), tokens.end());
}

void PromptEncoder::Restart(TextPosition position) {
  Finish();
  position_ = position;
  behind_control_ = false;
}

}  // namespace kvblend::text
