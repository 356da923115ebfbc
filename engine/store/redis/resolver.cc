#include "engine/store/redis/resolver.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace kvblend::store::redis {
namespace {

absl::StatusOr<std::vector<SocketAddress>> Ask(const Endpoint& endpoint, int flags) {
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

}  // namespace

Resolver::~Resolver() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::StatusOr<std::vector<SocketAddress>> Resolver::Resolve(const Endpoint& endpoint, absl::Time deadline) {
  if (auto numeric = Ask(endpoint, AI_NUMERICHOST); numeric.ok()) return numeric;
  const auto query = std::make_shared<Query>();
  query->endpoint = endpoint;
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  queries_.push_back(query);
  if (!mutex_.AwaitWithTimeout(absl::Condition(&query->done), deadline - SteadyNow())) {
    std::erase(queries_, query);
    return absl::DeadlineExceededError(
        absl::StrCat(endpoint.ToString(), ": the name was not resolved in time"));
  }
  return std::move(query->result);
}

void Resolver::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto work = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || !queries_.empty(); };
    mutex_.Await(absl::Condition(&work));
    if (stop_) return;
    const std::shared_ptr<Query> query = std::move(queries_.front());
    queries_.pop_front();
    mutex_.Unlock();
    auto result = Ask(query->endpoint, AI_ADDRCONFIG);
    mutex_.Lock();
    query->result = std::move(result);
    query->done = true;
  }
}

}  // namespace kvblend::store::redis
