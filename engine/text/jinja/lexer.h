// A template's source as tokens, with the whitespace rules that chat templates are written for: trim_blocks
// (the line break behind a tag goes), lstrip_blocks (the blanks before a tag that begins a line go), and "-"
// and "+" at a tag.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvblend::text::jinja {

struct Token {
  enum class Kind {
    kText,           // between tags, whitespace already trimmed
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // its value
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  int line;
  std::string text;
};

/// The last token is kEnd. kInvalidArgument, naming the line: ill-formed UTF-8, an unknown character, a tag
/// or string that does not end; kResourceExhausted: more than kMaxSourceBytes.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace kvblend::text::jinja
