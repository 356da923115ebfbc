// Messages from parts: absl::StrCat, which in Debian's Abseil does not take std::string_view.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace kvblend::text::jinja {

inline absl::string_view MessagePart(std::string_view part) { return {part.data(), part.size()}; }
inline absl::string_view MessagePart(const std::string& part) { return part; }
inline absl::string_view MessagePart(const char* part) { return part; }
template <typename T>
const T& MessagePart(const T& part) {
  return part;
}

template <typename... Parts>
std::string Message(const Parts&... parts) {
  return absl::StrCat(MessagePart(parts)...);
}

}  // namespace kvblend::text::jinja
