// Where stored KV lies: what the chunk store's tiers call themselves, and clients read.
#pragma once

#include <cstdint>

namespace kvblend {

enum class Tier : uint8_t { kNone, kHostMemory, kDisk, kRedis };

}  // namespace kvblend
