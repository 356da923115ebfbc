#include "engine/text/utf8.h"

#include <cstring>

namespace kvblend::text {
namespace {

// Length of the run of ASCII bytes at `begin`, eight at a time.
size_t AsciiRun(std::string_view text, size_t begin) {
  size_t position = begin;
  while (position + sizeof(uint64_t) <= text.size()) {
    uint64_t word;
    std::memcpy(&word, text.data() + position, sizeof(word));
    if ((word & 0x8080808080808080u) != 0) break;
    position += sizeof(word);
  }
  while (position < text.size() && static_cast<uint8_t>(text[position]) < 0x80) ++position;
  return position - begin;
}

}  // namespace

Utf8Step DecodeBeyondAscii(std::string_view text, size_t begin) {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[begin + i]); };
  const uint8_t lead = byte(0);
  uint32_t length;
  uint32_t code_point;
  // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0Fu;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07u;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Kind::kInvalid, 0, 1};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (begin + i >= text.size()) return {Kind::kIncomplete, 0, i};
    if (byte(i) < low || byte(i) > high) return {Kind::kInvalid, 0, i};
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kValid, code_point, length};
}

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    position += AsciiRun(text, position);
    if (position == text.size()) break;
    const Utf8Step step = DecodeUtf8At(text, position);
    if (step.kind != Utf8Step::Kind::kValid) return position;
    position += step.length;
  }
  return std::nullopt;
}

size_t AppendReplacingInvalidUtf8(std::string_view text, bool keep_incomplete, std::string* output) {
  size_t position = 0;
  while (position < text.size()) {
    const std::string_view rest = text.substr(position);
    const std::optional<size_t> invalid = FirstInvalidUtf8(rest);
    output->append(rest.substr(0, invalid.value_or(rest.size())));
    if (!invalid) return text.size();
    position += *invalid;
    const Utf8Step step = DecodeUtf8At(text, position);
    if (step.kind == Utf8Step::Kind::kIncomplete && keep_incomplete) return position;
    output->append(kReplacementCharacter);
    position += step.length;
  }
  return position;
}

std::string ShownOnOneLine(std::string_view text, size_t max_bytes) {
  std::string valid, shown;
  AppendReplacingInvalidUtf8(text.substr(0, max_bytes), /*keep_incomplete=*/text.size() > max_bytes, &valid);
  for (size_t at = 0; at < valid.size();) {
    const Utf8Step step = DecodeUtf8At(valid, at);
    const uint32_t c = step.code_point;
    const bool is_control = c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029;
    shown += is_control ? std::string_view(" ") : std::string_view(valid).substr(at, step.length);
    at += step.length;
  }
  return shown;
}

}  // namespace kvblend::text
