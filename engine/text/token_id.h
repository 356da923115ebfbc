#pragma once

#include <cstdint>

namespace kvblend::text {

using TokenId = int32_t;
inline constexpr TokenId kNoToken = -1;

}  // namespace kvblend::text
