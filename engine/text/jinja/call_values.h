// The arguments that a filter, test, method or function is called with.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/text/jinja/message.h"
#include "engine/text/jinja/value.h"

namespace kvblend::text::jinja {

struct CallValues {
  std::vector<Value> positional = {};
  std::vector<std::pair<std::string, Value>> named = {};

  /// The argument at this place or of this name; null where it was not given.
  const Value* Get(size_t index, std::string_view name) const {
    if (index < positional.size()) return &positional[index];
    for (const auto& [given, value] : named) {
      if (given == name) return &value;
    }
    return nullptr;
  }

  bool Truth(size_t index, std::string_view name, bool otherwise) const {
    const Value* value = Get(index, name);
    return value == nullptr ? otherwise : value->Truth();
  }

  /// kInvalidArgument unless there are only these, and the first `required` of them.
  absl::Status Check(std::string_view what, size_t required,
                     std::initializer_list<std::string_view> names) const {
    if (positional.size() > names.size()) {
      return absl::InvalidArgumentError(
          Message(what, " has ", positional.size(), " arguments; allowed: up to ", names.size()));
    }
    for (const auto& [given, value] : named) {
      bool known = false;
      for (const std::string_view name : names) known |= name == given;
      if (!known) return absl::UnimplementedError(Message(what, ": the argument '", given, "' is not known"));
    }
    size_t index = 0;
    for (const std::string_view name : names) {
      if (index < required && Get(index, name) == nullptr) {
        return absl::InvalidArgumentError(Message(what, " needs the argument '", name, "'"));
      }
      ++index;
    }
    return absl::OkStatus();
  }

  /// The same, and what is given must be of this kind.
  absl::StatusOr<const Value*> GetOf(Value::Kind kind, std::string_view what, size_t index,
                                     std::string_view name) const {
    const Value* value = Get(index, name);
    if (value == nullptr || value->is(kind)) return value;
    return absl::InvalidArgumentError(
        Message(what, ": the argument '", name, "' is of type ", value->KindName()));
  }
};

}  // namespace kvblend::text::jinja
