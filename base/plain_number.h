// Numbers as people write them: 31536000, not 3.1536e+07.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvblend {

/// Whole numbers with all of their digits, others with the six that absl writes.
inline std::string PlainNumber(double value) {
  constexpr double kExact = 1e15;  // whole numbers up to here are doubles, and still read as such
  if (std::trunc(value) == value && std::abs(value) <= kExact)
    return absl::StrCat(static_cast<int64_t>(value));
  return absl::StrCat(value);
}

inline std::string PlainNumber(int64_t value) { return absl::StrCat(value); }
inline std::string PlainNumber(int32_t value) { return absl::StrCat(value); }

/// Bytes in the largest unit that leaves a whole number, as flags take them: "4GiB".
inline std::string PlainSize(int64_t bytes) {
  const char* unit = "";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    if (bytes == 0 || bytes % 1024 != 0) break;
    bytes /= 1024;
    unit = larger;
  }
  return absl::StrCat(bytes, unit);
}

}  // namespace kvblend
