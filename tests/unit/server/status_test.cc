#include "server/grpc/status.h"

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

TEST(PeerHostTest, ConnectionsOfOneHostShareIt) {
  EXPECT_EQ(PeerHost("ipv4:10.0.0.7:51234"), "ipv4:10.0.0.7");
  EXPECT_EQ(PeerHost("ipv6:[::1]:51234"), "ipv6:[::1]");
  EXPECT_EQ(PeerHost("ipv6:%5B::1%5D:51234"), "ipv6:%5B::1%5D");
  EXPECT_EQ(PeerHost("unix:/run/kvblend.sock"), "unix:/run/kvblend.sock");
  EXPECT_EQ(PeerHost(""), "");
}

}  // namespace
}  // namespace kvblend::server
