#include "engine/text/jinja/lexer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/status_macros.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/python_text.h"
#include "engine/text/utf8.h"

namespace kvblend::text::jinja {
namespace {

// Line breaks become \n; one at the very end goes.
std::string NormalizedSource(std::string_view source) {
  std::string normalized;
  normalized.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      normalized += source[i];
      continue;
    }
    normalized += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!normalized.empty() && normalized.back() == '\n') normalized.pop_back();
  return normalized;
}

class SourceLexer {
 public:
  explicit SourceLexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (position_ < source_.size()) {
      const size_t tag = NextTag(position_);
      std::string_view data = source_.substr(position_, tag - position_);
      if (tag == source_.size()) {
        AddText(data);
        break;
      }
      const char type = source_[tag + 1];
      size_t inner = tag + 2;
      const char sign = inner < source_.size() ? source_[inner] : '\0';
      if (sign == '-' || sign == '+') ++inner;
      AddText(TrimmedBeforeTag(data, sign, type != '{'));
      Advance(inner);
      if (type == '#') {
        KVBLEND_RETURN_IF_ERROR(SkipComment());
      } else if (type == '{') {
        KVBLEND_RETURN_IF_ERROR(Tag(Token::Kind::kVariableBegin, Token::Kind::kVariableEnd, "}}"));
      } else {
        KVBLEND_ASSIGN_OR_RETURN(const bool raw, Raw());
        if (!raw) KVBLEND_RETURN_IF_ERROR(Tag(Token::Kind::kBlockBegin, Token::Kind::kBlockEnd, "%}"));
      }
    }
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(Message("line ", line_, ": ", what));
  }

  void Add(Token::Kind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }
  void AddText(std::string_view text) {
    if (!text.empty()) Add(Token::Kind::kText, std::string(text));
  }

  void Advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + position_, source_.begin() + to, '\n'));
    line_starting_ = to > position_ && source_[to - 1] == '\n';
    position_ = to;
  }

  // Where the next "{{", "{%" or "{#" is, or the end.
  size_t NextTag(size_t from) const {
    for (size_t i = source_.find('{', from); i != std::string_view::npos; i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  std::string_view TrimmedBeforeTag(std::string_view data, char sign, bool lstrip) const {
    if (sign == '-') return StripRight(data);
    if (sign == '+' || !lstrip) return data;
    const size_t line_begin = data.rfind('\n') + 1;  // npos + 1 is 0
    if (line_begin == 0 && !line_starting_) return data;
    return Strip(data.substr(line_begin)).empty() ? data.substr(0, line_begin) : data;
  }

  // Where the tag's end at the position ends, trimming included; nothing where there is none.
  std::optional<size_t> EndAt(size_t at, std::string_view end, bool trim_blocks) const {
    const std::string_view rest = source_.substr(at);
    if (rest.starts_with(end)) {
      size_t to = at + end.size();
      if (trim_blocks && to < source_.size() && source_[to] == '\n') ++to;
      return to;
    }
    if (rest.empty() || !rest.substr(1).starts_with(end)) return std::nullopt;
    if (rest[0] == '-') {
      const std::string_view behind = rest.substr(1 + end.size());
      return source_.size() - StripLeft(behind).size();
    }
    if (rest[0] == '+' && trim_blocks) return at + 1 + end.size();
    return std::nullopt;
  }

  absl::Status SkipComment() {
    size_t end = source_.find("#}", position_);
    if (end == std::string_view::npos) return Error("a comment does not end");
    if (end > position_ && (source_[end - 1] == '-' || source_[end - 1] == '+')) --end;
    Advance(*EndAt(end, "#}", /*trim_blocks=*/true));
    return absl::OkStatus();
  }

  // {% raw %}: whether it was one. What stands up to {% endraw %} is text.
  absl::StatusOr<bool> Raw() {
    const auto word_tag = [&](size_t inner, std::string_view word, bool trim) -> std::optional<size_t> {
      while (inner < source_.size() && absl::ascii_isspace(source_[inner])) ++inner;
      if (!source_.substr(inner).starts_with(word)) return std::nullopt;
      inner += word.size();
      while (inner < source_.size() && absl::ascii_isspace(source_[inner])) ++inner;
      const auto end = EndAt(inner, "%}", trim);
      if (end || !trim) return end;
      return EndAt(inner, "%}", true);
    };
    const auto begin = word_tag(position_, "raw", /*trim=*/false);
    if (!begin) return false;
    Advance(*begin);
    for (size_t tag = source_.find("{%", position_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t inner = tag + 2;
      const char sign = inner < source_.size() ? source_[inner] : '\0';
      if (sign == '-' || sign == '+') ++inner;
      const auto end = word_tag(inner, "endraw", /*trim=*/true);
      if (!end) continue;
      AddText(TrimmedBeforeTag(source_.substr(position_, tag - position_), sign, /*lstrip=*/true));
      Advance(*end);
      return true;
    }
    return Error("{% raw %} does not end");
  }

  absl::Status Tag(Token::Kind begin, Token::Kind end, std::string_view end_text) {
    Add(begin, "");
    std::string open;  // brackets
    for (;;) {
      size_t next = position_;
      while (next < source_.size() && absl::ascii_isspace(source_[next])) ++next;
      Advance(next);
      if (position_ == source_.size()) return Error(Message("a tag does not end with ", end_text));
      if (open.empty()) {
        if (const auto to = EndAt(position_, end_text, end == Token::Kind::kBlockEnd)) {
          Add(end, "");
          Advance(*to);
          return absl::OkStatus();
        }
      }
      const char c = source_[position_];
      if (c == '"' || c == '\'') {
        KVBLEND_RETURN_IF_ERROR(StringLiteral(c));
      } else if (absl::ascii_isdigit(c)) {
        Number();
      } else if (absl::ascii_isalpha(c) || c == '_') {
        size_t to = position_;
        while (to < source_.size() && (absl::ascii_isalnum(source_[to]) || source_[to] == '_')) ++to;
        if (to - position_ > kMaxNameBytes) {
          return absl::ResourceExhaustedError(Message("line ", line_, ": a name has ", to - position_,
                                                      " bytes; allowed: up to ", kMaxNameBytes));
        }
        Add(Token::Kind::kName, std::string(source_.substr(position_, to - position_)));
        Advance(to);
      } else {
        KVBLEND_RETURN_IF_ERROR(Operator(&open));
      }
    }
  }

  absl::Status StringLiteral(char quote) {
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("a string does not end");
    std::string value;
    if (!AppendUnescaped(source_.substr(position_ + 1, end - position_ - 1), &value)) {
      return Error("a string has an escape that means no character");
    }
    Add(Token::Kind::kString, std::move(value));
    Advance(end + 1);
    return absl::OkStatus();
  }

  void Number() {
    size_t to = position_;
    const auto digits = [&] {
      while (to < source_.size() && (absl::ascii_isdigit(source_[to]) || source_[to] == '_')) ++to;
    };
    const auto digit_at = [&](size_t at) { return at < source_.size() && absl::ascii_isdigit(source_[at]); };
    digits();
    bool is_float = false;
    if (to < source_.size() && source_[to] == '.' && digit_at(to + 1)) {
      is_float = true;
      ++to;
      digits();
    }
    if (to < source_.size() && (source_[to] == 'e' || source_[to] == 'E')) {
      const bool sign = to + 1 < source_.size() && (source_[to + 1] == '+' || source_[to + 1] == '-');
      if (digit_at(to + (sign ? 2 : 1))) {
        is_float = true;
        to += sign ? 2 : 1;
        digits();
      }
    }
    std::string text(source_.substr(position_, to - position_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(text));
    Advance(to);
  }

  absl::Status Operator(std::string* open) {
    static constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    const std::string_view rest = source_.substr(position_);
    std::string_view found;
    for (const std::string_view candidate : kLong) {
      if (rest.starts_with(candidate)) found = candidate;
    }
    if (found.empty() && std::string_view("+-*/%~<>=.,:|()[]{}").find(rest[0]) != std::string_view::npos) {
      found = rest.substr(0, 1);
    }
    if (found.empty()) {
      return Error(Message("'", absl::CHexEscape(std::string(rest.substr(0, 1))), "' is not known in a tag"));
    }
    const char c = found[0];
    if (c == '(' || c == '[' || c == '{') *open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open->empty() || open->back() != c) return Error(Message("'", found, "' closes nothing"));
      open->pop_back();
    }
    Add(Token::Kind::kOperator, std::string(found));
    Advance(position_ + found.size());
    return absl::OkStatus();
  }

  std::string_view source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::ResourceExhaustedError(
        Message("the template has ", source.size(), " bytes; allowed: up to ", kMaxSourceBytes));
  }
  if (const auto invalid = FirstInvalidUtf8(source)) {
    const auto line = 1 + std::count(source.begin(), source.begin() + *invalid, '\n');
    return absl::InvalidArgumentError(Message("line ", line, ": not valid UTF-8 at byte ", *invalid));
  }
  const std::string normalized = NormalizedSource(source);
  return SourceLexer(normalized).Run();
}

}  // namespace kvblend::text::jinja
