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

}  // namespace kvblend
