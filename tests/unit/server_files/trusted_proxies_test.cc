// Whose calls proxies forward.
#include "server/files/trusted_proxies.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

TrustedProxies Of(const std::vector<std::string>& networks) {
  const auto parsed = TrustedProxies::Parse("--trusted-proxies", networks);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(TrustedProxies());
}

constexpr char kProxy[] = "ipv4:10.0.0.7";

TEST(TrustedProxiesTest, TheClientIsTheLastThatNoTrustedProxyIs) {
  const TrustedProxies proxies = Of({"10.0.0.0/8", "192.0.2.1", "fd00::/9"});
  const struct {
    const char *peer, *forwarded, *client;
  } cases[] = {
      {kProxy, "203.0.113.9", "ipv4:203.0.113.9"},
      {kProxy, "evil, 198.51.100.1,203.0.113.9", "ipv4:203.0.113.9"},
      {kProxy, " 203.0.113.9 , 10.1.2.3,\t192.0.2.1", "ipv4:203.0.113.9"},
      {kProxy, "203.0.113.9:51234", "ipv4:203.0.113.9"},
      {kProxy, "2001:DB8::1", "ipv6:%5B2001:db8::1%5D"},
      {kProxy, "[2001:db8::1]", "ipv6:%5B2001:db8::1%5D"},
      {kProxy, "[2001:db8::1]:443", "ipv6:%5B2001:db8::1%5D"},
      {kProxy, "::ffff:203.0.113.9", "ipv4:203.0.113.9"},
      {"ipv6:%5Bfd00::1%5D", "203.0.113.9, fd7f::2", "ipv4:203.0.113.9"},
      {"ipv6:[fd00::1]", "203.0.113.9", "ipv4:203.0.113.9"},
      {"ipv6:%5Bfd00::1%252%5D", "203.0.113.9", "ipv4:203.0.113.9"},
      {kProxy, "192.0.2.2", "ipv4:192.0.2.2"},
      {kProxy, "fd80::1", "ipv6:%5Bfd80::1%5D"},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(proxies.ClientOf(one.peer, one.forwarded), one.client) << one.forwarded;
  }
}

TEST(TrustedProxiesTest, ElseItIsThePeer) {
  const TrustedProxies proxies = Of({"10.0.0.0/8"});
  for (const char* forwarded :
       {"", " ", ",", "203.0.113.9,", "unknown", "203.0.113.9, unknown", "203.0.113.9:", "203.0.113.9:x",
        "203.0.113.9:123456", "[2001:db8::1", "[2001:db8::1]x", "[2001:db8::1]:", "203.0.113", "1.2.3.4.5",
        "10.0.0.1", "10.0.0.1, 10.0.0.2", "203.0.113.9/32"}) {
    EXPECT_EQ(proxies.ClientOf(kProxy, forwarded), kProxy) << forwarded;
  }
  for (const char* other : {"ipv4:11.0.0.7", "ipv6:%5B::1%5D", "unix:/run/socket", "", "ipv4:", "ipv6:"}) {
    EXPECT_EQ(proxies.ClientOf(other, "203.0.113.9"), other);
  }
  EXPECT_EQ(TrustedProxies().ClientOf(kProxy, "203.0.113.9"), kProxy);
  EXPECT_TRUE(TrustedProxies().empty());
}

TEST(TrustedProxiesTest, WholeProtocolsAndSingleAddressesAreNetworks) {
  const TrustedProxies v4 = Of({"0.0.0.0/0"}), one = Of({"::1/128", "127.0.0.1/32"});
  EXPECT_EQ(v4.ClientOf(kProxy, "2001:db8::1, 203.0.113.9"), "ipv6:%5B2001:db8::1%5D");
  EXPECT_EQ(v4.ClientOf("ipv6:%5B::1%5D", "2001:db8::1"), "ipv6:%5B::1%5D");
  EXPECT_EQ(one.ClientOf("ipv6:%5B::1%5D", "::2"), "ipv6:%5B::2%5D");
  EXPECT_EQ(one.ClientOf("ipv4:127.0.0.1", "127.0.0.2"), "ipv4:127.0.0.2");
}

TEST(TrustedProxiesTest, WhatIsNoNetworkIsNamed) {
  for (const char* wrong : {"", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8x", "10.0.0/8",
                            "fd00::/129", "proxy.example", "[fd00::1]", "10.0.0.0/8/8", "/8"}) {
    const absl::Status status = TrustedProxies::Parse("--trusted-proxies", {"10.0.0.1", wrong}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("--trusted-proxies has '", wrong, "'")));
  }
}

}  // namespace
}  // namespace kvblend::server
