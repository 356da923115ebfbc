// JSON from files that are not trusted. Internal to engine/model.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::model {

/// The object that `bytes` are. kInvalidArgument naming the file where they are more than `max_bytes`, no
/// JSON, no object, nested more than 16 deep, or give one key twice (of which parsers choose one in silence).
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::Span<const std::byte> bytes, std::string_view name,
                                               size_t max_bytes);

/// A value for messages: its JSON, cut.
std::string ShowJson(const nlohmann::json& value);

}  // namespace kvblend::model
