// UTF-8 as the Unicode standard defines it: validation, decoding, and replacement of ill-formed bytes.
// Pure functions; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvblend::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// One step of decoding, starting at a given byte.
struct Utf8Step {
  enum class Kind {
    kValid,    // `code_point` in `length` bytes
    kInvalid,  // `length` bytes form one maximal subpart of an ill-formed sequence (Unicode 3.9, table 3-8)
    kIncomplete,  // the last `length` bytes of the text begin a character, which more bytes may complete
  };
  Kind kind;
  uint32_t code_point;  // only when kValid
  uint32_t length;      // bytes, 1..4
};

/// DecodeUtf8At of a byte that is not ASCII.
Utf8Step DecodeBeyondAscii(std::string_view text, size_t begin);

/// REQUIRES: begin < text.size(). Inline, as tokenizers call it several times for every character.
inline Utf8Step DecodeUtf8At(std::string_view text, size_t begin) {
  const auto lead = static_cast<uint8_t>(text[begin]);
  if (lead < 0x80) return {Utf8Step::Kind::kValid, lead, 1};
  return DecodeBeyondAscii(text, begin);
}

/// Offset of the first byte that does not belong to a valid character; nullopt when all of `text` is valid.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

/// Appends `text` to `*output`, every maximal subpart of an ill-formed sequence as one U+FFFD: what Python's
/// bytes.decode('utf-8', errors='replace') gives. With `keep_incomplete`, a character cut off by the end of
/// `text` is left out. Returns how many bytes of `text` were consumed.
size_t AppendReplacingInvalidUtf8(std::string_view text, bool keep_incomplete, std::string* output);

/// The beginning of `text`, of at most `max_bytes` before that replacement, for metrics, messages and tables:
/// control characters and line breaks become spaces.
std::string ShownOnOneLine(std::string_view text, size_t max_bytes);

}  // namespace kvblend::text
