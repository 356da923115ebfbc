// What a request had computed of its prompt when it ended before that was reported: travels with its status.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvblend {

inline constexpr char kComputedTokensPayload[] = "kvblend/computed-tokens";

/// `status` must be an error.
inline absl::Status WithComputedTokens(absl::Status status, int64_t tokens) {
  if (tokens > 0) status.SetPayload(kComputedTokensPayload, absl::Cord(absl::StrCat(tokens)));
  return status;
}

/// 0: none, or nobody has said.
inline int64_t ComputedTokensOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kComputedTokensPayload);
  int64_t tokens = 0;
  return payload && absl::SimpleAtoi(std::string(*payload), &tokens) ? tokens : 0;
}

}  // namespace kvblend
