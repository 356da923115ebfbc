// Messages as JSON, with the field names of proto/kvblend/v1.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "kvblend/v1/chunks.pb.h"

namespace kvblend::server {

/// Reads protobuf's JSON, where enumerations may also be written "query" instead of "POLICY_QUERY". Missing
/// fields stay as they are; unknown ones and wrong types are kInvalidArgument naming the field. Ranges are
/// left to the engine.
absl::Status ParseJson(std::string_view json, google::protobuf::Message& message);

/// On one line, with every field, whether or not it was set; fields of 64 bits are strings.
std::string MessageToJson(const google::protobuf::Message& message);

/// The same of what may have a hundred thousand chunks, printed a few at a time: protobuf's printer first
/// makes a tree of all that it is given, 3 KB for each chunk.
std::string SplitToJson(const v1::SplitDocumentResponse& response);

}  // namespace kvblend::server
