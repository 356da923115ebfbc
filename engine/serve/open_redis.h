// From an engine's settings to the Redis tier.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/api/options.h"
#include "engine/store/redis/redis_tier.h"

namespace kvblend {

/// kInvalidArgument naming the setting; kNotFound: the password file. That nobody answers is no error.
absl::StatusOr<std::unique_ptr<store::RedisTier>> OpenRedisTier(const RedisOptions& options);

}  // namespace kvblend
