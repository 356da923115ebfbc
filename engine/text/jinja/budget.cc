#include "engine/text/jinja/budget.h"

#include <algorithm>

#include "base/status_macros.h"
#include "engine/text/jinja/message.h"

namespace kvblend::text::jinja {

absl::Status Budget::Spend(int64_t steps) {
  if (steps <= steps_left_) {
    steps_left_ -= steps;
    return absl::OkStatus();
  }
  steps_left_ = 0;
  return absl::ResourceExhaustedError(
      Message("the rendering takes too long; allowed: ", limits_.steps, " steps"));
}

absl::Status Budget::Allocate(size_t bytes) {
  if (bytes <= static_cast<size_t>(bytes_left_)) {
    bytes_left_ -= static_cast<int64_t>(bytes);
    return absl::OkStatus();
  }
  bytes_left_ = 0;
  return absl::ResourceExhaustedError(
      Message("the values take too much memory; allowed: ", limits_.bytes, " bytes"));
}

absl::Status Budget::CheckString(size_t bytes) {
  if (bytes > kMaxStringBytes) {
    return absl::ResourceExhaustedError(
        Message("a string has ", bytes, " bytes; allowed: up to ", kMaxStringBytes));
  }
  return Allocate(bytes);
}

absl::Status Budget::CheckList(size_t items) {
  if (items > kMaxListItems) {
    return absl::ResourceExhaustedError(
        Message("a list has ", items, " items; allowed: up to ", kMaxListItems));
  }
  return Allocate(64 * items);
}

absl::Status Budget::CheckSearch(size_t haystack, size_t needle) {
  return Spend(static_cast<int64_t>(haystack * std::max<size_t>(needle, 1) / 4096));
}

}  // namespace kvblend::text::jinja
