// A status in other words.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"

namespace kvblend {

/// The same error with another message. Its payloads, such as the retry delay, stay. `status` must be an
/// error.
inline absl::Status WithMessage(const absl::Status& status, std::string_view message) {
  absl::Status said(status.code(), absl::string_view(message.data(), message.size()));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { said.SetPayload(type, payload); });
  return said;
}

}  // namespace kvblend
