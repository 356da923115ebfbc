// When to try again what was refused: travels with an absl::Status from where it is known to the transports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace kvblend {

/// What a client is told where nothing better is known: long enough for a request or two to finish, short
/// enough for an interactive client.
inline constexpr absl::Duration kDefaultRetryDelay = absl::Seconds(1);

inline constexpr char kRetryDelayPayload[] = "kvblend/retry-delay-ms";

/// Rounded up to milliseconds, at least 1 ms. `status` must be an error.
inline absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(delay, absl::Milliseconds(1)));
  status.SetPayload(kRetryDelayPayload, absl::Cord(absl::StrCat(milliseconds > 1 ? milliseconds : 1)));
  return status;
}

/// The retry delay of a status; nullopt if it has none.
inline std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryDelayPayload);
  int64_t milliseconds = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) return std::nullopt;
  return absl::Milliseconds(milliseconds);
}

}  // namespace kvblend
