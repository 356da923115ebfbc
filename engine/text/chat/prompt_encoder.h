// Pieces of a chat format and texts of people -> tokens, so that a piece's control tokens are control tokens
// and a text's are text.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/chat/chat_format.h"
#include "engine/text/tokenizer.h"

namespace kvblend::text {

/// The control tokens that are in a format's pieces. Immutable; safe from any thread; refers to the
/// tokenizer.
class ControlTokens {
 public:
  ControlTokens(const Tokenizer& tokenizer, const ChatFormat& format);

  /// The first control token in `piece`, the longest of several there: its place and id; {npos, 0} if there
  /// is none.
  std::pair<size_t, TokenId> FindFirst(std::string_view piece) const;

 private:
  struct Name {
    std::string_view text;
    TokenId token;
  };
  std::vector<Name> names_;  // the longest first
};

/// How many tokens of texts there may still be. The format's control tokens do not count.
struct TokenBudget {
  size_t left = 0;
  bool exceeded = false;  // then what was encoded is not whole

  /// As Tokenizer::Encode. Without tokens where the budget is, or was, exceeded.
  std::vector<TokenId> Encode(const Tokenizer& tokenizer, std::string_view text, TextPosition position);
};

/// What stands between two control tokens is encoded as one text, as tokenizers do with a whole prompt, also
/// where it crosses from one part into the next: then its tokens are divided by the bytes that they stand
/// for. A token with bytes of two parts belongs to the later one.
class PromptEncoder {
 public:
  /// `position` is that of the first text. `budget`, unless null, outlives the encoder.
  PromptEncoder(const Tokenizer& tokenizer, const ControlTokens& control, bool strips_behind_control,
                TextPosition position, TokenBudget* budget)
      : tokenizer_(tokenizer),
        budget_(budget),
        control_(control),
        strips_behind_control_(strips_behind_control),
        position_(position) {}

  /// What follows goes to `*target`, which outlives the encoder.
  void Into(std::vector<TokenId>* target);
  void AppendPiece(std::string_view piece);
  void AppendText(std::string_view text);
  /// Encodes what waits for more text.
  void Finish();
  /// Text of its own, behind what is there, which is encoded first.
  void AppendApart(std::string_view text);
  /// Encodes what waits for more text; what follows is encoded as if it were the first, at `position`.
  void Restart(TextPosition position);

 private:
  struct Part {
    size_t begin;  // in `waiting_`
    std::vector<TokenId>* target;
  };

  size_t BytesOf(std::span<const TokenId> tokens) const;  // that they stand for

  std::vector<TokenId> Encode(std::string_view text, TextPosition position);  // within the budget

  const Tokenizer& tokenizer_;
  TokenBudget* const budget_;
  const ControlTokens& control_;
  const bool strips_behind_control_;
  std::vector<TokenId>* target_ = nullptr;
  std::string waiting_;
  std::vector<Part> parts_;      // of `waiting_`, in order
  bool behind_control_ = false;  // `waiting_` is
  bool strips_ = false;          // and loses the whitespace that it begins with
  TextPosition position_;        // of `waiting_`
};

}  // namespace kvblend::text
