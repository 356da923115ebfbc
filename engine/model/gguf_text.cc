#include "engine/model/gguf_text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/escaping.h"

namespace kvblend::model {

std::string Quote(std::string_view name) {
  constexpr size_t kMaxShown = 80;
  const bool cut = name.size() > kMaxShown;
  return Concat("'", absl::CHexEscape(absl::string_view(name.data(), cut ? kMaxShown : name.size())),
                cut ? "..." : "", "'");
}

bool IsValidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    size_t length = 0;
    uint32_t smallest = 0;  // below this the sequence would be overlong
    uint32_t code_point = 0;
    if ((lead & 0xE0) == 0xC0) {
      length = 2, smallest = 0x80, code_point = lead & 0x1F;
    } else if ((lead & 0xF0) == 0xE0) {
      length = 3, smallest = 0x800, code_point = lead & 0x0F;
    } else if ((lead & 0xF8) == 0xF0) {
      length = 4, smallest = 0x10000, code_point = lead & 0x07;
    } else {
      return false;
    }
    if (text.size() - i < length) return false;
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<uint8_t>(text[i + j]);
      if ((next & 0xC0) != 0x80) return false;
      code_point = code_point << 6 | (next & 0x3F);
    }
    if (code_point < smallest || code_point > 0x10FFFF) return false;
    if (code_point >= 0xD800 && code_point <= 0xDFFF) return false;
    i += length;
  }
  return true;
}

}  // namespace kvblend::model
