#include "engine/text/plain_form.h"

#include <algorithm>

namespace kvblend::text {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

std::string WithPlainSpaces(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (;;) {
    const size_t sign = text.find(kSpaceSign);
    plain.append(text.substr(0, sign));
    if (sign == std::string_view::npos) return plain;
    plain.push_back(' ');
    text.remove_prefix(sign + kSpaceSign.size());
  }
}

void RemoveExtraSpaces(std::string* text) {
  const auto end =
      std::unique(text->begin(), text->end(), [](char a, char b) { return a == ' ' && b == ' '; });
  text->erase(end, text->end());
  if (text->ends_with(' ')) text->pop_back();
  if (text->starts_with(' ')) text->erase(0, 1);
}

int ByteOfName(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  const int high = HexDigit(token[3]);
  const int low = HexDigit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace kvblend::text
