// The connections of gRPC, before gRPC has them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/grpc/listener.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

/// A client's end; -1: refused.
Descriptor Connect(int port) {
  Descriptor client(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return Descriptor();
  return client;
}

/// Whether the other side has closed the connection; waits for that, or for a byte.
bool IsClosed(const Descriptor& client) {
  char byte;
  return recv(client.get(), &byte, 1, 0) <= 0;
}

/// Keeps what is handed on.
class Server {
 public:
  void Take(int fd) {
    EXPECT_EQ(send(fd, "x", 1, MSG_NOSIGNAL), 1);
    EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    absl::MutexLock lock(&mutex_);
    taken_.emplace_back(fd);
  }
  Descriptor Give(size_t i) {
    absl::MutexLock lock(&mutex_);
    return std::move(taken_.at(i));
  }
  size_t size() {
    absl::MutexLock lock(&mutex_);
    return taken_.size();
  }

 private:
  absl::Mutex mutex_;
  std::vector<Descriptor> taken_;
};

TEST(ListenerTest, OneConnectionTooManyIsClosedUntilAnotherHasGone) {
  auto listener = Listener::Open("127.0.0.1:0", 2);
  ASSERT_TRUE(listener.ok()) << listener.status();
  Server server;
  (*listener)->Start([&](int, int fd) { server.Take(fd); });
  const Descriptor first = Connect((*listener)->port()), second = Connect((*listener)->port());
  EXPECT_FALSE(IsClosed(first));
  EXPECT_FALSE(IsClosed(second));
  EXPECT_TRUE(IsClosed(Connect((*listener)->port())));
  EXPECT_EQ(server.size(), 2);
  { const Descriptor gone = server.Give(0); }
  EXPECT_FALSE(IsClosed(Connect((*listener)->port()))) << "the place of the one that has gone";
  EXPECT_TRUE(IsClosed(Connect((*listener)->port())));
  const int port = (*listener)->port();
  (*listener)->Stop();
  EXPECT_EQ(Connect(port).get(), -1);
}

TEST(ListenerTest, ADescriptorThatIsAnotherFileIsNoConnection) {
  OpenConnections connections(1);
  ASSERT_TRUE(connections.HasRoom());
  const Descriptor connection(socket(AF_INET, SOCK_STREAM, 0)), other(socket(AF_INET, SOCK_STREAM, 0));
  connections.Add(connection.get());
  EXPECT_FALSE(connections.HasRoom());
  ASSERT_EQ(dup2(other.get(), connection.get()), connection.get());
  EXPECT_TRUE(connections.HasRoom());
}

TEST(ListenerTest, AnAddressIsOneServers) {
  const auto first = Listener::Open("127.0.0.1:0", 2);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string address = absl::StrCat("127.0.0.1:", (*first)->port());
  EXPECT_THAT(std::string(Listener::Open(address, 2).status().message()),
              HasSubstr(absl::StrCat("can't listen for gRPC on ", address, ": Address already in use")));
  const auto wildcard = Listener::Open(absl::StrCat("0.0.0.0:", (*first)->port()), 2);
  EXPECT_THAT(std::string(wildcard.status().message()), HasSubstr("Address already in use"));
  for (const char* wrong : {"no such address", "127.0.0.1:65536", "127.0.0.1:http", ":50051", "unix:"}) {
    EXPECT_EQ(Listener::Open(wrong, 2).status().code(), absl::StatusCode::kUnavailable) << wrong;
  }
}

TEST(ListenerTest, WildcardsServeIpV4) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "localhost:0"}) {
    auto listener = Listener::Open(address, 2);
    ASSERT_TRUE(listener.ok()) << listener.status();
    Server server;
    (*listener)->Start([&](int, int fd) { server.Take(fd); });
    EXPECT_FALSE(IsClosed(Connect((*listener)->port()))) << address;
    (*listener)->Stop();
  }
}

TEST(ListenerTest, ASocketThatAKilledServerLeftIsTakenOver) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/kvblend_listener_", getpid());
  {
    const auto first = Listener::Open("unix:" + path, 2);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_FALSE(Listener::Open("unix:" + path, 2).ok()) << "it is in use";
    ASSERT_EQ(link(path.c_str(), (path + ".left").c_str()), 0);
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "it is removed in the end";
  const auto second = Listener::Open("unix:" + path + ".left", 2);
  EXPECT_TRUE(second.ok()) << second.status();
}

}  // namespace
}  // namespace kvblend::server
