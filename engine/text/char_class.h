// The classes of characters that pre-tokenizer patterns distinguish.
#pragma once

#include <cstdint>

namespace kvblend::text {

enum class CharClass : uint8_t {
  kOther,
  kLetter,  // \p{L}
  kNumber,  // \p{N}
  kSpace,   // \s: property White_Space
};

/// Class of a code point by Unicode 16.0; kOther for what is not assigned there.
CharClass ClassOf(uint32_t code_point);

}  // namespace kvblend::text
