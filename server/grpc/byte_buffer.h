// Messages to and from gRPC's byte buffers. The services take and give bytes, not messages, so that a request
// which Protobuf refuses to parse gets an answer that says why (see server/convert/parse_message.h).
#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

namespace kvblend::server {

/// kInvalidArgument as ParseMessage. kCancelled: no message has come.
absl::Status ParseByteBuffer(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);

grpc::ByteBuffer ToByteBuffer(const google::protobuf::Message& message);

}  // namespace kvblend::server
