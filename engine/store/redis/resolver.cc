#include "engine/store/redis/resolver.h"

#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace kvblend::store::redis {

absl::StatusOr<std::vector<SocketAddress>> AskSystem(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(endpoint.port);
  const int error = getaddrinfo(endpoint.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(endpoint.ToString(), ": ", gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
  }
  freeaddrinfo(found);
  if (addresses.empty()) return absl::UnavailableError(endpoint.ToString() + ": no address");
  return addresses;
}

struct Resolver::Shared {
  struct Query {
    Endpoint endpoint;
    bool done = false;
    absl::StatusOr<std::vector<SocketAddress>> result = std::vector<SocketAddress>();
  };

  explicit Shared(Lookup lookup_given) : lookup(std::move(lookup_given)) {}

  const Lookup lookup;
  absl::Mutex mutex;
  std::deque<std::shared_ptr<Query>> queries ABSL_GUARDED_BY(mutex);
  bool asking ABSL_GUARDED_BY(mutex) = false;  // the thread is in `lookup`
  bool stop ABSL_GUARDED_BY(mutex) = false;
};

Resolver::Resolver(Lookup lookup) : shared_(std::make_shared<Shared>(std::move(lookup))) {}

Resolver::~Resolver() {
  bool asking = false;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->stop = true;
    asking = shared_->asking;
  }
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) return;
  if (asking) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

absl::StatusOr<std::vector<SocketAddress>> Resolver::Resolve(const Endpoint& endpoint, absl::Time deadline) {
  if (auto numeric = AskSystem(endpoint, AI_NUMERICHOST); numeric.ok()) return numeric;
  {
    absl::MutexLock lock(&mutex_);
    if (!thread_.joinable()) thread_ = std::thread([shared = shared_] { Run(*shared); });
  }
  const auto query = std::make_shared<Shared::Query>();
  query->endpoint = endpoint;
  absl::MutexLock lock(&shared_->mutex);
  shared_->queries.push_back(query);
  if (!shared_->mutex.AwaitWithTimeout(absl::Condition(&query->done), deadline - SteadyNow())) {
    std::erase(shared_->queries, query);
    return absl::DeadlineExceededError(
        absl::StrCat(endpoint.ToString(), ": the name was not resolved in time"));
  }
  return std::move(query->result);
}

void Resolver::Run(Shared& shared) {
  absl::MutexLock lock(&shared.mutex);
  while (true) {
    const auto work = [&]() ABSL_SHARED_LOCKS_REQUIRED(shared.mutex) {
      return shared.stop || !shared.queries.empty();
    };
    shared.mutex.Await(absl::Condition(&work));
    if (shared.stop) return;
    const std::shared_ptr<Shared::Query> query = std::move(shared.queries.front());
    shared.queries.pop_front();
    shared.asking = true;
    shared.mutex.Unlock();
    auto result = shared.lookup(query->endpoint);
    shared.mutex.Lock();
    shared.asking = false;
    query->result = std::move(result);
    query->done = true;
  }
}

}  // namespace kvblend::store::redis
