// Where the KV of a stored chunk is.
#pragma once

#include <cstdint>

namespace kvblend {

enum class Tier : uint8_t {
  kNone,
  kHostMemory,
  kDisk,
  kRedis,
  kPages,  // nowhere to be loaded from: in KV pages that another request holds
};

}  // namespace kvblend
