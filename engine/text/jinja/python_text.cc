#include "engine/text/jinja/python_text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "engine/text/utf8.h"

namespace kvblend::text::jinja {
namespace {

bool IsPythonSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

template <typename Predicate>
std::string_view WithoutLeft(std::string_view text, Predicate goes) {
  size_t begin = 0;
  while (begin < text.size()) {
    const Utf8Step step = DecodeUtf8At(text, begin);
    if (!goes(step.code_point, text.substr(begin, step.length))) break;
    begin += step.length;
  }
  return text.substr(begin);
}

template <typename Predicate>
std::string_view WithoutRight(std::string_view text, Predicate goes) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && IsContinuation(text[last])) --last;
    const Utf8Step step = DecodeUtf8At(text, last);
    if (!goes(step.code_point, text.substr(last))) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

bool IsSpaceCharacter(uint32_t code_point, std::string_view) { return IsPythonSpace(code_point); }

void AppendCodePoint(uint32_t c, std::string* output) {
  if (c < 0x80) {
    *output += static_cast<char>(c);
  } else if (c < 0x800) {
    *output += static_cast<char>(0xC0 | c >> 6);
    *output += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    *output += static_cast<char>(0xE0 | c >> 12);
    *output += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    *output += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    *output += static_cast<char>(0xF0 | c >> 18);
    *output += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    *output += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    *output += static_cast<char>(0x80 | (c & 0x3F));
  }
}

}  // namespace

std::string_view StripLeft(std::string_view text) { return WithoutLeft(text, IsSpaceCharacter); }
std::string_view StripRight(std::string_view text) { return WithoutRight(text, IsSpaceCharacter); }
std::string_view Strip(std::string_view text) { return StripRight(StripLeft(text)); }
std::string_view StripLeft(std::string_view text, std::string_view set) {
  return WithoutLeft(text,
                     [set](uint32_t, std::string_view c) { return set.find(c) != std::string_view::npos; });
}
std::string_view StripRight(std::string_view text, std::string_view set) {
  return WithoutRight(text,
                      [set](uint32_t, std::string_view c) { return set.find(c) != std::string_view::npos; });
}

std::vector<std::string> SplitAtSpace(std::string_view text, int64_t limit) {
  std::vector<std::string> parts;
  for (text = StripLeft(text); !text.empty(); text = StripLeft(text)) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.emplace_back(StripRight(text));
      break;
    }
    const std::string_view rest =
        WithoutLeft(text, [](uint32_t c, std::string_view) { return !IsPythonSpace(c); });
    parts.emplace_back(text.substr(0, text.size() - rest.size()));
    text = rest;
  }
  return parts;
}

std::vector<std::string> SplitAt(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.find(separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.emplace_back(text);
  return parts;
}

std::vector<std::string> SplitAtFromRight(std::string_view text, std::string_view separator, int64_t limit) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    lines.emplace_back(text.substr(0, end));
    const bool both = text.substr(end).starts_with("\r\n");
    text.remove_prefix(std::min(text.size(), end + (both ? 2 : 1)));
  }
  return lines;
}

std::string Replaced(std::string_view text, std::string_view from, std::string_view to, int64_t limit) {
  std::string result;
  size_t position = 0;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    if (from.empty()) {
      result += to;
      if (position == text.size()) return result;
      const size_t length = DecodeUtf8At(text, position).length;
      result += text.substr(position, length);
      position += length;
      continue;
    }
    const size_t at = text.find(from, position);
    if (at == std::string_view::npos) break;
    result += text.substr(position, at - position);
    result += to;
    position = at + from.size();
  }
  result += text.substr(position);
  return result;
}

std::string Upper(std::string_view text) { return absl::AsciiStrToUpper(std::string(text)); }
std::string Lower(std::string_view text) { return absl::AsciiStrToLower(std::string(text)); }

std::string Capitalized(std::string_view text) {
  std::string result = Lower(text);
  if (!result.empty()) result[0] = absl::ascii_toupper(result[0]);
  return result;
}

std::string Titled(std::string_view text) {
  std::string result;
  bool in_word = false;
  for (const char c : text) {
    result += in_word ? absl::ascii_tolower(c) : absl::ascii_toupper(c);
    in_word = absl::ascii_isalpha(c) || (c & 0x80) != 0;
  }
  return result;
}

std::string TitledWords(std::string_view text) {
  std::string result;
  bool in_word = false;
  for (const char c : text) {
    result += in_word ? absl::ascii_tolower(c) : absl::ascii_toupper(c);
    in_word = std::string_view("-({[<").find(c) == std::string_view::npos && !absl::ascii_isspace(c);
  }
  return result;
}

int64_t Length(std::string_view text) {
  return static_cast<int64_t>(text.size()) - std::count_if(text.begin(), text.end(), IsContinuation);
}

std::vector<size_t> CharacterOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsContinuation(text[i])) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

bool AppendUnescaped(std::string_view literal, std::string* output) {
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      *output += literal[i];
      continue;
    }
    const char c = literal[++i];
    static constexpr std::string_view kNames = "abfnrtv\\'\"";
    static constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t named = kNames.find(c); named != std::string_view::npos) {
      *output += kMeanings[named];
    } else if (c == '\n') {  // a line that goes on
    } else if (c >= '0' && c <= '7') {
      uint32_t code_point = 0;
      size_t end = i;
      for (; end < literal.size() && end < i + 3 && literal[end] >= '0' && literal[end] <= '7'; ++end) {
        code_point = code_point * 8 + static_cast<uint32_t>(literal[end] - '0');
      }
      AppendCodePoint(code_point, output);
      i = end - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      if (literal.size() - i - 1 < digits) return false;
      uint32_t code_point = 0;
      for (const char digit : literal.substr(i + 1, digits)) {
        if (!absl::ascii_isxdigit(digit)) return false;
        const char lower = absl::ascii_tolower(digit);
        code_point = code_point * 16 + static_cast<uint32_t>(lower <= '9' ? lower - '0' : lower - 'a' + 10);
      }
      if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) return false;
      AppendCodePoint(code_point, output);
      i += digits;
    } else {
      *output += '\\';
      *output += c;
    }
  }
  return true;
}

}  // namespace kvblend::text::jinja
