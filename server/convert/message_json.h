// Messages as JSON, with the field names of proto/kvblend/v1.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace kvblend::server {

/// Reads protobuf's JSON, where enumerations may also be written "query" instead of "POLICY_QUERY". Missing
/// fields stay as they are; unknown ones and wrong types are kInvalidArgument naming the field. Ranges are
/// left to the engine.
absl::Status ParseJson(std::string_view json, google::protobuf::Message& message);

/// On one line, with every field, whether or not it was set; fields of 64 bits are strings.
std::string MessageToJson(const google::protobuf::Message& message);

}  // namespace kvblend::server
