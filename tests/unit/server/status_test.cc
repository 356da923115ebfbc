#include "server/grpc/status.h"

#include <string>

#include "base/retry_delay.h"
#include "gtest/gtest.h"
#include "server/grpc/call.h"

namespace kvblend::server {
namespace {

TEST(StatusTest, CodesKeepTheirNumberAndMessage) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "why");
    EXPECT_EQ(FromGrpcStatus(status), absl::Status(static_cast<absl::StatusCode>(code), "why"));
  }
}

// The bytes are those of the official Python classes: status_pb2.Status(code=8, message="full") with
// Any.Pack(error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500000000))),
// SerializeToString().
TEST(StatusTest, WhenToTryAgainIsInTheDetails) {
  const grpc::Status status =
      ToGrpcStatus(WithRetryDelay(absl::ResourceExhaustedError("full"), absl::Seconds(1.5)));
  EXPECT_EQ(status.error_message(), "full");
  EXPECT_EQ(status.error_details(), std::string("\x08\x08\x12\x04"
                                                "full\x1a\x36\x0a\x28type.googleapis.com/google.rpc.RetryInfo"
                                                "\x12\x0a\x0a\x08\x08\x01\x10\x80\xca\xb5\xee\x01"));
  EXPECT_EQ(ToGrpcStatus(absl::ResourceExhaustedError("full")).error_details(), "");
}

TEST(PeerHostTest, ConnectionsOfOneHostShareIt) {
  EXPECT_EQ(PeerHost("ipv4:10.0.0.7:51234"), "ipv4:10.0.0.7");
  EXPECT_EQ(PeerHost("ipv6:[::1]:51234"), "ipv6:[::1]");
  EXPECT_EQ(PeerHost("ipv6:%5B::1%5D:51234"), "ipv6:%5B::1%5D");
  EXPECT_EQ(PeerHost("ipv4:10.0.0.7"), "ipv4:10.0.0.7") << "as a proxy tells it";
  EXPECT_EQ(PeerHost("ipv6:%5Bfd00::d%5D"), "ipv6:%5Bfd00::d%5D");
  EXPECT_EQ(PeerHost("unix:/run/kvblend.sock"), "unix:/run/kvblend.sock");
  EXPECT_EQ(PeerHost(""), "");
}

}  // namespace
}  // namespace kvblend::server
