// The connections of gRPC, before gRPC has them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/grpc/listener.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/server/few_files.h"

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

/// A socket at a path: a server's, or a client's if `connects`.
Descriptor SocketAt(const std::string& path, bool connects) {
  Descriptor made(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const bool done = connects ? connect(made.get(), generic, sizeof address) == 0
                             : bind(made.get(), generic, sizeof address) == 0;
  return done ? std::move(made) : Descriptor();
}

/// How many descriptors this process has of a file.
int64_t TimesOpen(const std::string& path) {
  int64_t times = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // since the folder was read
    times += std::filesystem::read_symlink(entry.path(), gone) == path ? 1 : 0;
  }
  return times;
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
  int refused = 0;  // the listener's thread
  auto listener = Listener::Open("127.0.0.1:0", 2, [&] { ++refused; });
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
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(Connect(port).get(), -1);
}

TEST(ListenerTest, TheLastOpenFilesAreNoConnections) {
  const HeardLog log;
  Server server;
  auto listener = Listener::Open("127.0.0.1:0", 1000);
  ASSERT_TRUE(listener.ok()) << listener.status();
  (*listener)->Start([&](int, int fd) { server.Take(fd); });
  const FewFiles few(40);
  std::vector<Descriptor> clients;
  do {
    ASSERT_LT(clients.size(), 40);
    clients.push_back(Connect((*listener)->port()));
    ASSERT_GE(clients.back().get(), 0);
  } while (!IsClosed(clients.back()));
  EXPECT_GE(server.size(), 5);
  clients.clear();
  for (size_t i = 0; i < server.size(); ++i) const Descriptor gone = server.Give(i);
  EXPECT_FALSE(IsClosed(Connect((*listener)->port())));
  EXPECT_EQ(log.Count("gRPC: a connection was closed because it is open file"), 1);
}

TEST(ListenerTest, ConnectionsWaitForOpenFilesAndTheLogSaysSo) {
  const HeardLog log;
  Server server;
  auto listener = Listener::Open("127.0.0.1:0", 1000);
  ASSERT_TRUE(listener.ok()) << listener.status();
  (*listener)->Start([&](int, int fd) { server.Take(fd); });
  EarlyClients clients;
  {
    const FewFiles few(0);
    clients.Connect((*listener)->port());
    while (log.Count("gRPC: connections have to wait, as none can be accepted: Too many open files") == 0) {
      std::this_thread::yield();
    }
  }
  clients.Expect("", "x");
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
              HasSubstr(absl::StrCat("can't listen for gRPC on ", address, ": 127.0.0.1 port ",
                                     (*first)->port(), ": Address already in use")));
  const auto wildcard = Listener::Open(absl::StrCat("0.0.0.0:", (*first)->port()), 2);
  EXPECT_THAT(std::string(wildcard.status().message()), HasSubstr("Address already in use"));
  for (const char* wrong : {"no such address", "127.0.0.1:65536", "127.0.0.1:http", ":50051", "unix:"}) {
    const absl::Status status = Listener::Open(wrong, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("--grpc-address is '", wrong, "'")));
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

TEST(ListenerTest, OfServersThatStartAtOnceOneHasThePath) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/socket";
  for (int round = 0; round < 50; ++round) {
    ASSERT_GE(SocketAt(path, /*connects=*/false).get(), 0);  // as a killed server leaves it
    std::vector<std::unique_ptr<Listener>> open(4);
    std::vector<std::thread> servers;
    for (std::unique_ptr<Listener>& one : open) {
      servers.emplace_back([&] {
        if (auto listener = Listener::Open("unix:" + path, 2); listener.ok()) one = *std::move(listener);
      });
    }
    for (std::thread& server : servers) server.join();
    std::erase(open, nullptr);
    ASSERT_EQ(open.size(), 1) << "in round " << round;
    ASSERT_GE(SocketAt(path, /*connects=*/true).get(), 0) << "in round " << round;
    open.clear();
    ASSERT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(ListenerTest, ASocketIsTakenForLeftBehindOnlyUnderTheLockOfItsPath) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/socket", lock_path = path + ".lock";
  const Descriptor starting = SocketAt(path, /*connects=*/false);  // it does not listen yet
  ASSERT_GE(starting.get(), 0);
  Descriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  absl::Status status;
  absl::Notification done;
  std::thread other([&] {
    status = Listener::Open("unix:" + path, 2).status();
    done.Notify();
  });
  while (!done.HasBeenNotified() && TimesOpen(lock_path) < 2) std::this_thread::yield();
  ASSERT_EQ(listen(starting.get(), 1), 0);
  lock = Descriptor();
  other.join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("Address already in use"));
  EXPECT_GE(SocketAt(path, /*connects=*/true).get(), 0);
}

TEST(ListenerTest, AServerThatStopsRemovesNoOtherServersSocket) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/socket";
  auto first = Listener::Open("unix:" + path, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_EQ(unlink(path.c_str()), 0);
  const auto second = Listener::Open("unix:" + path, 2);
  ASSERT_TRUE(second.ok()) << second.status();
  first->reset();
  EXPECT_GE(SocketAt(path, /*connects=*/true).get(), 0);
}

}  // namespace
}  // namespace kvblend::server
