// Early return on absl::Status errors; the Abseil release in Debian 12 has no such macros of its own.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KVBLEND_RETURN_IF_ERROR(expression)            \
  do {                                                 \
    absl::Status kvblend_status_ = (expression);       \
    if (!kvblend_status_.ok()) return kvblend_status_; \
  } while (false)

#define KVBLEND_STATUS_CONCAT_INNER_(a, b) a##b
#define KVBLEND_STATUS_CONCAT_(a, b) KVBLEND_STATUS_CONCAT_INNER_(a, b)

/// KVBLEND_ASSIGN_OR_RETURN(auto value, Call()): declares or assigns `value`, or returns the error.
#define KVBLEND_ASSIGN_OR_RETURN(target, expression) \
  KVBLEND_ASSIGN_OR_RETURN_IMPL_(KVBLEND_STATUS_CONCAT_(kvblend_status_or_, __LINE__), target, expression)

#define KVBLEND_ASSIGN_OR_RETURN_IMPL_(temporary, target, expression) \
  auto temporary = (expression);                                      \
  if (!temporary.ok()) return std::move(temporary).status();          \
  target = std::move(temporary).value()
