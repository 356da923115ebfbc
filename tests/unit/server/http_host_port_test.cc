#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/host_port.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

TEST(ParseHostPortTest, TakesHostsAndPortsOnly) {
  const auto v4 = ParseHostPort("--http-address", "127.0.0.1:80");
  ASSERT_TRUE(v4.ok());
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, 80);
  const auto v6 = ParseHostPort("--http-address", "[::1]:0");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, 0);
  EXPECT_TRUE(ParseHostPort("--http-address", "localhost:65535").ok());
  for (const char* bad : {"", "80", ":80", "localhost", "localhost:", "localhost:x", "localhost:-1",
                          "localhost:65536", "::1:80", "[]:80"}) {
    const auto parsed = ParseHostPort("--http-address", bad);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--http-address is '")) << bad;
  }
}

}  // namespace
}  // namespace kvblend::server
