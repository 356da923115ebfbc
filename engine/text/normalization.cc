#include "engine/text/normalization.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace kvblend::text {

std::string Normalize(std::string_view text, Normalization normalization) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (normalization == Normalization::kNone || std::ranges::all_of(text, is_ascii)) return std::string(text);
  int options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
  if (normalization == Normalization::kNfkc) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* normal = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &normal,
                                               static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(normal, &std::free);
  // Only for want of memory, for the text is valid: as it came is better than not at all.
  if (length < 0) return std::string(text);
  return {reinterpret_cast<const char*>(normal), static_cast<size_t>(length)};
}

}  // namespace kvblend::text
