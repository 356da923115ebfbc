#include "engine/store/redis/resolver.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/steady_time.h"

namespace kvblend::store::redis {
namespace {

std::vector<SocketAddress> OneAddress() { return std::vector<SocketAddress>(1); }

TEST(ResolverTest, AddressesNeedNoLookup) {
  Resolver resolver([](const Endpoint&) -> absl::StatusOr<std::vector<SocketAddress>> {
    return absl::InternalError("asked");
  });
  for (const Endpoint& endpoint : {Endpoint{"127.0.0.1", 6379}, Endpoint{"::1", 6379}}) {
    const auto found = resolver.Resolve(endpoint, SteadyNow() + absl::Minutes(1));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->size(), 1);
  }
  EXPECT_EQ(resolver.Resolve({"redis", 6379}, SteadyNow() + absl::Minutes(1)).status().code(),
            absl::StatusCode::kInternal);
}

TEST(ResolverTest, ItsEndDoesNotWaitForALookupThatHangs) {
  // The thread may still be in the lookup when the test is over, so what it uses is its own.
  struct NameServer {
    absl::Notification asked, answers, answered;
  };
  const auto server = std::make_shared<NameServer>();
  auto resolver = std::make_unique<Resolver>([server](const Endpoint&) {
    server->asked.Notify();
    server->answers.WaitForNotification();
    server->answered.Notify();
    return OneAddress();
  });
  while (!server->asked.HasBeenNotified()) {
    EXPECT_EQ(resolver->Resolve({"redis", 6379}, SteadyNow() + absl::Milliseconds(1)).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  resolver.reset();
  EXPECT_FALSE(server->answered.HasBeenNotified());
  server->answers.Notify();
  server->answered.WaitForNotification();
}

TEST(ResolverTest, NamesAreAskedForOneAfterTheOther) {
  Resolver resolver([](const Endpoint& endpoint) -> absl::StatusOr<std::vector<SocketAddress>> {
    if (endpoint.host == "redis") return OneAddress();
    return absl::UnavailableError("no such host");
  });
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(resolver.Resolve({"redis", 6379}, SteadyNow() + absl::Minutes(1)).ok());
    EXPECT_EQ(resolver.Resolve({"other", 6379}, SteadyNow() + absl::Minutes(1)).status().code(),
              absl::StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace kvblend::store::redis
