// Host names to addresses, with a deadline. Private to this folder.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
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

/// What getaddrinfo answers; `flags` as its hints have them. kUnavailable: there is no address, or nobody to
/// ask.
absl::StatusOr<std::vector<SocketAddress>> AskSystem(const Endpoint& endpoint, int flags);

/// Runs getaddrinfo, which can't be told when to give up, on a thread of its own. Thread-safe.
class Resolver {
 public:
  using Lookup = std::function<absl::StatusOr<std::vector<SocketAddress>>(const Endpoint& endpoint)>;

  /// `lookup`: of names that are no addresses; called on the thread, perhaps still when this object is gone.
  explicit Resolver(Lookup lookup = [](const Endpoint& endpoint) {
    return AskSystem(endpoint, AI_ADDRCONFIG);
  });
  /// Waits for nothing: where a name server does not answer, a lookup may take minutes. What is under way
  /// goes on, and its thread ends with it.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  /// At least one address. kUnavailable: there is none. kDeadlineExceeded.
  absl::StatusOr<std::vector<SocketAddress>> Resolve(const Endpoint& endpoint, absl::Time deadline);

 private:
  struct Shared;  // with the thread, which may outlive this object
  static void Run(Shared& shared);

  const std::shared_ptr<Shared> shared_;
  absl::Mutex mutex_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);  // started by the first name that is no address
};

}  // namespace kvblend::store::redis
