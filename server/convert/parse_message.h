// Parsing request messages so that a client learns what was wrong with them.
//
// Protobuf refuses a proto3 message when one of its strings is not UTF-8, without saying which, and gRPC then
// answers INTERNAL. Here the bytes are parsed by us, and on failure walked once more against the descriptor
// to name the field and the offset. Stateless, thread-safe, never throws.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "google/protobuf/message.h"

namespace kvblend::server {

/// What is wrong with a field's text as UTF-8, as "namespace is not valid UTF-8 at byte 17 of 20; allowed:
/// UTF-8 text"; empty: nothing.
std::string Utf8Problem(std::string_view field, std::string_view value);

/// Parses serialized `bytes` into `message`. kInvalidArgument names the first field that is not UTF-8, such
/// as "prompt.chunks[3] is not valid UTF-8 at byte 17", or says that the bytes are no message of this type at
/// all.
absl::Status ParseMessage(std::string_view bytes, google::protobuf::Message* message);

}  // namespace kvblend::server
