// What an address means to a server that listens there.
#include "server/files/listening_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

bool Connects(const char* v4, int port) {
  const Descriptor client(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, v4, &address.sin_addr);
  return connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

bool ConnectsToV6Loopback(int port) {
  const Descriptor client(socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  address.sin6_addr = in6addr_loopback;
  return connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

bool HasV6() { return ListenOn("::1", 0).ok(); }

TEST(ListeningSocketsTest, AllAddressesHaveThePortOfTheFirst) {
  const auto made = ListenOnAll({"127.0.0.1", "127.0.0.2", "127.0.0.1"}, 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->sockets.size(), 2) << "an address that is named twice is one";
  EXPECT_TRUE(Connects("127.0.0.1", made->port));
  EXPECT_TRUE(Connects("127.0.0.2", made->port));
  EXPECT_FALSE(Connects("127.0.0.3", made->port));
}

TEST(ListeningSocketsTest, BothProtocolsHaveThePortOfTheFirst) {
  if (!HasV6()) GTEST_SKIP() << "there is no IPv6";
  const auto made = ListenOnAll({"::1", "127.0.0.1"}, 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(Connects("127.0.0.1", made->port));
  EXPECT_TRUE(ConnectsToV6Loopback(made->port));
}

TEST(ListeningSocketsTest, TheWildcardOfIpV4IsIpV4Alone) {
  const auto made = ListenOn("0.0.0.0", 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(Connects("127.0.0.1", made->port));
  if (!HasV6()) GTEST_SKIP() << "there is no IPv6";
  EXPECT_FALSE(ConnectsToV6Loopback(made->port));
}

TEST(ListeningSocketsTest, TheWildcardOfIpV6IsBothOrWhatThereIs) {
  const auto made = ListenOn("::", 0);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->sockets.size(), 1);
  EXPECT_TRUE(Connects("127.0.0.1", made->port));
  if (!HasV6()) GTEST_SKIP() << "there is no IPv6";
  EXPECT_TRUE(ConnectsToV6Loopback(made->port));
}

// 192.0.2.1 is for documentation, so no machine's; ::1 is lacking in the same way where there is no IPv6.
TEST(ListeningSocketsTest, AnAddressThatTheMachineLacksIsLeftOutIfThereIsAnother) {
  for (const auto& addresses :
       {std::vector<std::string>{"192.0.2.1", "127.0.0.1"}, {"127.0.0.1", "192.0.2.1"}}) {
    const auto made = ListenOnAll(addresses, 0);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->sockets.size(), 1);
    EXPECT_TRUE(Connects("127.0.0.1", made->port));
  }
  const absl::Status none = ListenOn("192.0.2.1", 7).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(none.message(), "192.0.2.1 port 7: Cannot assign requested address");
}

TEST(ListeningSocketsTest, APortInUseAtOneOfTheAddressesIsAnErrorThatNamesIt) {
  const auto other = ListenOn("127.0.0.2", 0);
  ASSERT_TRUE(other.ok()) << other.status();
  const absl::Status status = ListenOnAll({"127.0.0.1", "127.0.0.2"}, other->port).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), absl::StrCat("127.0.0.2 port ", other->port, ": Address already in use"));
  EXPECT_FALSE(Connects("127.0.0.1", other->port)) << "what was bound before is given back";
  EXPECT_THAT(std::string(ListenOn("::", other->port).status().message()),
              HasSubstr("Address already in use"));
}

TEST(ListeningSocketsTest, ANameThatIsNoneIsTold) {
  EXPECT_THAT(std::string(ListenOn("no such name", 0).status().message()), HasSubstr("no such name: "));
}

}  // namespace
}  // namespace kvblend::server
