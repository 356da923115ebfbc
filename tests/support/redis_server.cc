#include "tests/support/redis_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/store/redis/redis_node.h"
#include "gtest/gtest.h"

extern char** environ;  // NOLINT: that is what posix_spawn wants

namespace kvblend::store {
namespace {

/// Reached only when something is wrong.
absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

/// Polls what other processes do.
template <typename Condition>
void AwaitOrFail(const char* what, const Condition& condition) {
  const absl::Time end = Soon();
  while (!condition()) {
    ASSERT_LT(absl::Now(), end) << what;
    absl::SleepFor(absl::Milliseconds(10));
  }
}

int NewSocket(uint16_t port, uint16_t* bound) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    close(fd);
    return -1;
  }
  *bound = ntohs(address.sin_port);
  return fd;
}

/// Nodes of a cluster need a second port, 10,000 above.
uint16_t FreePort() {
  while (true) {
    uint16_t port = 0;
    uint16_t bus = 0;
    const int first = NewSocket(0, &port);
    const int second = port < 55000 ? NewSocket(static_cast<uint16_t>(port + 10000), &bus) : -1;
    close(first);
    if (second < 0) continue;
    close(second);
    return port;
  }
}

void RunCommand(const std::string& command) {
  ASSERT_EQ(std::system(command.c_str()), 0) << command;  // NOLINT: of the test's own making
}

}  // namespace

RedisServer::RedisServer(const test_support::TemporaryFolder& folder, const Options& options)
    : options_(options), folder_(folder.path()) {
  // Between looking for a port and using it somebody else may take it.
  for (int attempt = 0; attempt < 20 && pid_ < 0; ++attempt) {
    port_ = FreePort();
    Start();
  }
  EXPECT_GT(pid_, 0) << "redis-server did not start; its log is in " << folder_;
}

void RedisServer::Start() {
  std::vector<std::string> words = {"redis-server", "--bind", "127.0.0.1", "--dir", folder_, "--save", ""};
  words.insert(words.end(), {"--appendonly", "no", "--logfile", absl::StrCat(folder_, "/", port_, ".log")});
  if (options_.tls) {
    words.insert(words.end(), {"--port", "0", "--tls-port", absl::StrCat(port_), "--tls-cert-file",
                               options_.certificate_path, "--tls-key-file", options_.key_path,
                               "--tls-ca-cert-file", options_.ca_path});
  } else {
    words.insert(words.end(), {"--port", absl::StrCat(port_)});
  }
  if (options_.cluster) {
    words.insert(words.end(), {"--cluster-enabled", "yes", "--cluster-config-file",
                               absl::StrCat(port_, ".conf"), "--cluster-node-timeout", "2000"});
  }
  words.insert(words.end(), options_.arguments.begin(), options_.arguments.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, "redis-server", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ASSERT_EQ(error, 0) << "redis-server is not installed (deploy/install_dependencies.sh --test)";
  pid_ = pid;
  AwaitOrFail("redis-server answers", [&] {
    if (Answers()) return true;
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
      pid_ = -1;
      return true;  // it ended: the port was taken
    }
    return false;
  });
}

bool RedisServer::Answers() const {
  const auto transport = redis::MakeSocketTransport();
  const auto connection = transport->Connect(endpoint(), Soon());
  if (!connection.ok()) return false;
  if (options_.tls) return true;
  const auto reply = redis::CallNow(**connection, redis::FormatCommand({"PING"}), 1000, Soon());
  return reply.ok() && (!reply->is_error() || reply->is_error("NOAUTH"));
}

void RedisServer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void RedisServer::Restart() {
  Kill();
  AwaitOrFail("redis-server starts again", [&] {
    Start();
    return pid_ > 0;
  });
}

void RedisServer::Stop() const { kill(pid_, SIGSTOP); }
void RedisServer::Continue() const { kill(pid_, SIGCONT); }

absl::StatusOr<redis::Reply> RedisServer::Call(std::vector<std::string> arguments) const {
  const auto transport = redis::MakeSocketTransport();
  auto connection = transport->Connect(endpoint(), Soon());
  if (!connection.ok()) return connection.status();
  const std::vector<std::string_view> views(arguments.begin(), arguments.end());
  return redis::CallNow(**connection, redis::FormatCommand(views), int64_t{64} << 20, Soon());
}

RedisServerCluster::RedisServerCluster() {
  for (int32_t i = 0; i < kNodes; ++i) {
    nodes_.push_back(std::make_unique<RedisServer>(folder_, RedisServer::Options{.cluster = true}));
  }
  const std::vector<std::pair<int32_t, int32_t>> slots = {{0, 5460}, {5461, 10922}, {10923, 16383}};
  for (int32_t i = 0; i < kNodes; ++i) {
    EXPECT_TRUE(
        nodes_[i]
            ->Call({"CLUSTER", "ADDSLOTSRANGE", absl::StrCat(slots[i].first), absl::StrCat(slots[i].second)})
            ->is_ok());
    EXPECT_TRUE(
        nodes_[0]->Call({"CLUSTER", "MEET", "127.0.0.1", absl::StrCat(nodes_[i]->endpoint().port)})->is_ok());
  }
  AwaitOk();
}

void RedisServerCluster::AwaitOk() {
  for (const auto& node : nodes_) {
    AwaitOrFail("cluster_state:ok", [&] {
      const auto info = node->Call({"CLUSTER", "INFO"});
      return info.ok() && info->text.find("cluster_state:ok") != std::string::npos &&
             info->text.find(absl::StrCat("cluster_size:", kNodes)) != std::string::npos;
    });
  }
}

std::vector<redis::Endpoint> RedisServerCluster::endpoints() const {
  std::vector<redis::Endpoint> endpoints;
  for (const auto& node : nodes_) endpoints.push_back(node->endpoint());
  return endpoints;
}

TestCertificates::TestCertificates(const std::string& folder, const std::string& alternative_name)
    : ca_path(folder + "/ca.pem"), certificate_path(folder + "/node.pem"), key_path(folder + "/node.key") {
  const std::string quiet = " >" + folder + "/openssl.log 2>&1";
  const std::string key = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes ";
  RunCommand(key + "-x509 -days 2 -subj '/CN=Test authority' -keyout " + folder + "/ca.key -out " + ca_path +
             quiet);
  RunCommand(key + "-subj /CN=node -keyout " + key_path + " -out " + folder + "/node.csr" + quiet);
  RunCommand("printf 'subjectAltName=" + alternative_name + "' >" + folder + "/node.ext");
  RunCommand("openssl x509 -req -days 2 -in " + folder + "/node.csr -CA " + ca_path + " -CAkey " + folder +
             "/ca.key -CAcreateserial -extfile " + folder + "/node.ext -out " + certificate_path + quiet);
}

}  // namespace kvblend::store
