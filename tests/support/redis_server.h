// Real redis-server processes for tests: one, or a cluster of three.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/store/redis/resp.h"
#include "engine/store/redis/transport.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::store {

/// A redis-server on a free port of 127.0.0.1, killed at the end. Its data are lost with it.
class RedisServer {
 public:
  struct Options {
    std::vector<std::string> arguments = {};  // more of them
    bool cluster = false;
    bool tls = false;  // then the files below; clients must show a certificate too
    std::string ca_path = {};
    std::string certificate_path = {};
    std::string key_path = {};
  };
  /// Ready to be asked, or the test fails.
  RedisServer(const test_support::TemporaryFolder& folder, const Options& options);
  ~RedisServer() { Kill(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  redis::Endpoint endpoint() const { return {"127.0.0.1", port_}; }
  void Kill();        // SIGKILL
  void Restart();     // on the same port
  void Stop() const;  // SIGSTOP: takes connections, answers nothing
  void Continue() const;

  /// Without TLS and password.
  absl::StatusOr<redis::Reply> Call(std::vector<std::string> arguments) const;

 private:
  void Start();
  bool Answers() const;

  const Options options_;
  const std::string folder_;
  uint16_t port_ = 0;
  pid_t pid_ = -1;
};

/// Three masters with all slots between them, ready to be used.
class RedisServerCluster {
 public:
  RedisServerCluster();

  std::vector<redis::Endpoint> endpoints() const;
  RedisServer& node(int32_t i) { return *nodes_[i]; }
  /// Waits until every node that runs says that the cluster is ok.
  void AwaitOk();
  static constexpr int32_t kNodes = 3;

 private:
  test_support::TemporaryFolder folder_;
  std::vector<std::unique_ptr<RedisServer>> nodes_;
};

/// A certificate authority, and a certificate of 127.0.0.1 by it, made with the openssl command.
struct TestCertificates {
  explicit TestCertificates(const std::string& folder, const std::string& alternative_name = "IP:127.0.0.1");
  std::string ca_path;
  std::string certificate_path;
  std::string key_path;
};

}  // namespace kvblend::store
