// Unicode's code points, which clients in Python index texts by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace kvblend {

/// How many characters (code points) `text` has, which is valid UTF-8.
inline int64_t NumCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace kvblend
