// Host names to addresses, with a deadline. Private to this folder.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/// Runs getaddrinfo, which can't be told when to give up, on a thread of its own. Thread-safe.
class Resolver {
 public:
  Resolver() = default;
  /// Waits for a lookup that is under way.
  ~Resolver();

  /// At least one address. kUnavailable: there is none. kDeadlineExceeded.
  absl::StatusOr<std::vector<SocketAddress>> Resolve(const Endpoint& endpoint, absl::Time deadline);

 private:
  struct Query {
    Endpoint endpoint;
    bool done = false;
    absl::StatusOr<std::vector<SocketAddress>> result = std::vector<SocketAddress>();
  };

  void Run();

  absl::Mutex mutex_;
  std::deque<std::shared_ptr<Query>> queries_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // started by the first name that is no address
};

}  // namespace kvblend::store::redis
