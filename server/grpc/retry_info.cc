#include "server/grpc/retry_info.h"

#include <cstdint>

namespace kvblend::server {
namespace {

void AppendWireVarint(uint64_t value, std::string* bytes) {
  for (; value >= 0x80; value >>= 7) bytes->push_back(static_cast<char>(value | 0x80));
  bytes->push_back(static_cast<char>(value));
}

// Fields of the wire format: numbers, and bytes with their length before them.
void AppendWireNumber(int field, uint64_t value, std::string* bytes) {
  AppendWireVarint(static_cast<uint64_t>(field) << 3, bytes);
  AppendWireVarint(value, bytes);
}
void AppendWireBytes(int field, const std::string& value, std::string* bytes) {
  AppendWireVarint(static_cast<uint64_t>(field) << 3 | 2, bytes);
  AppendWireVarint(value.size(), bytes);
  bytes->append(value);
}

}  // namespace

std::string SerializedRetryStatus(const absl::Status& status, absl::Duration delay) {
  std::string duration;  // google.protobuf.Duration
  const int64_t seconds = absl::ToInt64Seconds(delay);
  AppendWireNumber(1, static_cast<uint64_t>(seconds), &duration);
  AppendWireNumber(2, static_cast<uint64_t>(absl::ToInt64Nanoseconds(delay - absl::Seconds(seconds))),
                   &duration);
  std::string retry_info;
  AppendWireBytes(1, duration, &retry_info);
  std::string any;  // google.protobuf.Any
  AppendWireBytes(1, "type.googleapis.com/google.rpc.RetryInfo", &any);
  AppendWireBytes(2, retry_info, &any);
  std::string bytes;  // google.rpc.Status
  AppendWireNumber(1, static_cast<uint64_t>(status.code()), &bytes);
  AppendWireBytes(2, std::string(status.message()), &bytes);
  AppendWireBytes(3, any, &bytes);
  return bytes;
}

}  // namespace kvblend::server
