// The classes of characters that pre-tokenizer patterns distinguish.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace kvblend::text {

/// Each is a bit, so that patterns can name several.
enum class CharClass : uint16_t {
  kOther = 1,         // \p{C}: controls, formats, private and unassigned
  kUpper = 2,         // \p{Lu}, \p{Lt}
  kLower = 4,         // \p{Ll}
  kCaseless = 8,      // \p{Lm}, \p{Lo}
  kMark = 16,         // \p{M}
  kNumber = 32,       // \p{N}
  kPunctuation = 64,  // \p{P}
  kSymbol = 128,      // \p{S}
  kSpace = 256,       // \s: property White_Space
};

/// Several classes.
using CharClasses = uint16_t;

constexpr CharClasses operator|(CharClass a, CharClass b) {
  return static_cast<CharClasses>(static_cast<CharClasses>(a) | static_cast<CharClasses>(b));
}
constexpr CharClasses operator|(CharClasses a, CharClass b) {
  return static_cast<CharClasses>(a | static_cast<CharClasses>(b));
}
constexpr CharClasses AnyOf(CharClass one) { return static_cast<CharClasses>(one); }
constexpr CharClasses AllBut(CharClasses classes) { return static_cast<CharClasses>(0x1FF & ~classes); }
constexpr bool IsIn(CharClass one, CharClasses classes) {
  return (static_cast<CharClasses>(one) & classes) != 0;
}

inline constexpr CharClasses kLetters = CharClass::kUpper | CharClass::kLower | CharClass::kCaseless;

extern const std::array<CharClass, 128> kAsciiClasses;

/// ClassOf of what is not ASCII.
CharClass ClassBeyondAscii(uint32_t code_point);

/// Class of a code point by Unicode 16.0; kOther for what is not assigned there. Inline, as tokenizers call
/// it for every character.
inline CharClass ClassOf(uint32_t code_point) {
  return code_point < kAsciiClasses.size() ? kAsciiClasses[code_point] : ClassBeyondAscii(code_point);
}

/// `text` without the characters of class kSpace at that end, which is what tokens with 'rstrip' and 'lstrip'
/// take from their neighbours. Python's str.strip() takes U+001C to U+001F as well. REQUIRES: valid UTF-8.
std::string_view WithoutSpaceInFront(std::string_view text);
std::string_view WithoutSpaceAtEnd(std::string_view text);

}  // namespace kvblend::text
