// Values and what clients call them, written down once each: from one to the other, and what to say of a name
// that is none of them.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblend {

template <typename Value, size_t kCount>
using NameTable = std::array<std::pair<Value, std::string_view>, kCount>;

template <typename Value, size_t kCount>
std::string_view NameIn(const NameTable<Value, kCount>& table, Value value) {
  for (const auto& [candidate, name] : table) {
    if (candidate == value) return name;
  }
  return "unknown";
}

/// "auto, bf16, f32".
template <typename Value, size_t kCount>
std::string NamesIn(const NameTable<Value, kCount>& table) {
  std::string names;
  for (const auto& entry : table) names.append(names.empty() ? "" : ", ").append(entry.second);
  return names;
}

/// kInvalidArgument naming the field, the text and what is allowed.
template <typename Value, size_t kCount>
absl::StatusOr<Value> ParseIn(const NameTable<Value, kCount>& table, std::string_view field,
                              std::string_view text) {
  for (const auto& [value, name] : table) {
    if (name == text) return value;
  }
  std::string message(field);
  message.append(" is '").append(text).append("'; allowed: ").append(NamesIn(table));
  return absl::InvalidArgumentError(message);
}

}  // namespace kvblend
