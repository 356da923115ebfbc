#include "server/grpc/byte_buffer.h"

#include <cstddef>
#include <string_view>

#include "grpcpp/support/slice.h"
#include "server/convert/parse_message.h"

namespace kvblend::server {

absl::Status ParseByteBuffer(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  grpc::Slice bytes;
  // Not an empty message, which is a valid buffer: the client left, or ended its sending, before all of it
  // was here.
  if (!buffer.Valid()) return absl::CancelledError("the client ended the call before its message had come");
  if (!buffer.DumpToSingleSlice(&bytes).ok()) {
    return absl::InternalError("the request's bytes can't be decompressed");
  }
  return ParseMessage({reinterpret_cast<const char*>(bytes.begin()), bytes.size()}, message);
}

grpc::ByteBuffer ToByteBuffer(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace kvblend::server
