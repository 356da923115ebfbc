#include "server/grpc/status.h"

#include "gtest/gtest.h"
#include "server/grpc/call.h"

namespace kvblend::server {
namespace {

TEST(StatusTest, CodesKeepTheirNumberNameAndMessage) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status = ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "why"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "why");
  }
  EXPECT_EQ(CodeName(grpc::StatusCode::OK), "OK");
  EXPECT_EQ(CodeName(grpc::StatusCode::CANCELLED), "CANCELLED");
  EXPECT_EQ(CodeName(grpc::StatusCode::INVALID_ARGUMENT), "INVALID_ARGUMENT");
  EXPECT_EQ(CodeName(grpc::StatusCode::RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(CodeName(grpc::StatusCode::UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_EQ(CodeName(static_cast<grpc::StatusCode>(99)), "CODE_99");
}

TEST(FairnessKeyTest, ConnectionsOfOneHostAndNamespaceShareIt) {
  EXPECT_EQ(PeerHost("ipv4:10.0.0.7:51234"), "ipv4:10.0.0.7");
  EXPECT_EQ(PeerHost("ipv6:[::1]:51234"), "ipv6:[::1]");
  EXPECT_EQ(PeerHost("ipv6:%5B::1%5D:51234"), "ipv6:%5B::1%5D");
  EXPECT_EQ(PeerHost("unix:/run/kvblend.sock"), "unix:/run/kvblend.sock");
  EXPECT_EQ(PeerHost(""), "");
  EXPECT_EQ(FairnessKey("a", "ipv4:10.0.0.7:1"), FairnessKey("a", "ipv4:10.0.0.7:2"));
  EXPECT_NE(FairnessKey("a", "ipv4:10.0.0.7:1"), FairnessKey("b", "ipv4:10.0.0.7:1"));
  EXPECT_NE(FairnessKey("a", "ipv4:10.0.0.7:1"), FairnessKey("a", "ipv4:10.0.0.8:1"));
}

}  // namespace
}  // namespace kvblend::server
