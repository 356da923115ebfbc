// The error for a prompt with more tokens than fit. Servers can tell it from others, for protocols that have
// a code of their own for it: the mark travels with the status.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace kvblend {

inline constexpr char kPromptTooLongPayload[] = "kvblend/prompt-too-long";

/// kInvalidArgument. `tokens` are all of them, or those that were counted before the rest was left alone.
inline absl::Status PromptTooLongError(int64_t tokens, int64_t allowed, bool and_more = false) {
  absl::Status status = absl::InvalidArgumentError(absl::StrCat(
      "the prompt has ", and_more ? "more than " : "", tokens, " tokens; allowed: up to ", allowed));
  status.SetPayload(kPromptTooLongPayload, absl::Cord());
  return status;
}

inline bool IsPromptTooLong(const absl::Status& status) {
  return status.GetPayload(kPromptTooLongPayload).has_value();
}

}  // namespace kvblend
