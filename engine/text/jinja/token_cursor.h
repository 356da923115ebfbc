// A place in a row of tokens, and errors that name it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/message.h"

namespace kvblend::text::jinja {

class TokenCursor {
 public:
  /// REQUIRES: the last token is kEnd.
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(position_ + ahead, tokens_.size() - 1)];
  }
  Token Take() {
    Token token = Peek();
    if (position_ + 1 < tokens_.size()) ++position_;
    return token;
  }
  int line() const { return Peek().line; }

  bool Is(Token::Kind kind) const { return Peek().kind == kind; }
  bool IsOperator(std::string_view text) const { return Is(Token::Kind::kOperator) && Peek().text == text; }
  bool IsName(std::string_view name) const { return Is(Token::Kind::kName) && Peek().text == name; }

  bool TakeOperator(std::string_view text) {
    const bool found = IsOperator(text);
    if (found) Take();
    return found;
  }
  bool TakeName(std::string_view name) {
    const bool found = IsName(name);
    if (found) Take();
    return found;
  }

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(Message("line ", line(), ": ", what));
  }
  absl::Status Unexpected(std::string_view wanted) const {
    return Error(Message(wanted, " is expected, not ", Describe(Peek())));
  }
  absl::Status Expect(Token::Kind kind, std::string_view wanted) {
    if (!Is(kind)) return Unexpected(wanted);
    Take();
    return absl::OkStatus();
  }
  absl::Status ExpectOperator(std::string_view text) {
    return TakeOperator(text) ? absl::OkStatus() : Unexpected(Message("'", text, "'"));
  }

 private:
  static std::string Describe(const Token& token) {
    switch (token.kind) {
      case Token::Kind::kEnd:
        return "the end of the template";
      case Token::Kind::kText:
        return "text";
      case Token::Kind::kVariableBegin:
        return "'{{'";
      case Token::Kind::kVariableEnd:
        return "'}}'";
      case Token::Kind::kBlockBegin:
        return "'{%'";
      case Token::Kind::kBlockEnd:
        return "'%}'";
      default:
        return Message("'", absl::Utf8SafeCHexEscape(token.text.substr(0, 40)), "'");
    }
  }

  std::vector<Token> tokens_;
  size_t position_ = 0;
};

}  // namespace kvblend::text::jinja
