#include "engine/store/redis/circuit_breaker.h"

#include "gtest/gtest.h"

namespace kvblend::store::redis {
namespace {

const absl::Status kRefused = absl::UnavailableError("refused");

class CircuitBreakerTest : public ::testing::Test {
 protected:
  CircuitBreaker breaker_{"node", {.min_backoff = absl::Milliseconds(100), .max_backoff = absl::Seconds(1)}};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(CircuitBreakerTest, OpensWithTheFirstFailureAndClosesWhenAProbeSucceeds) {
  EXPECT_EQ(breaker_.state(), NodeState::kConnecting);
  EXPECT_FALSE(breaker_.allows_requests());
  breaker_.Works(now_);
  EXPECT_TRUE(breaker_.allows_requests());
  breaker_.Failed(now_, kRefused, 0.99);
  EXPECT_EQ(breaker_.state(), NodeState::kDown);
  EXPECT_FALSE(breaker_.allows_requests());
  EXPECT_GT(breaker_.retry_at(), now_);
  EXPECT_LE(breaker_.retry_at(), now_ + absl::Milliseconds(100));
  breaker_.Probing();
  EXPECT_EQ(breaker_.state(), NodeState::kProbing);
  EXPECT_FALSE(breaker_.allows_requests());
  breaker_.Works(now_);
  EXPECT_TRUE(breaker_.allows_requests());
  EXPECT_EQ(breaker_.times_opened(), 1);
}

TEST_F(CircuitBreakerTest, BacksOffLongerWithEveryFailureUpToALimit) {
  breaker_.Works(now_);
  absl::Duration last = absl::ZeroDuration();
  for (int i = 0; i < 10; ++i) {
    breaker_.Failed(now_, kRefused, 0);
    const absl::Duration backoff = breaker_.retry_at() - now_;
    EXPECT_EQ(backoff, i == 0 ? absl::Milliseconds(50) : std::min(2 * last, absl::Milliseconds(500)));
    last = backoff;
    breaker_.Probing();
  }
  EXPECT_EQ(breaker_.times_opened(), 1);
  // Working for a moment does not forget it; working for long does.
  breaker_.Works(now_);
  breaker_.Failed(now_, kRefused, 0);
  EXPECT_EQ(breaker_.retry_at() - now_, absl::Milliseconds(500));
  breaker_.Probing();
  breaker_.Works(now_);
  now_ += absl::Seconds(1);
  breaker_.Failed(now_, kRefused, 0);
  EXPECT_EQ(breaker_.retry_at() - now_, absl::Milliseconds(50));
  EXPECT_EQ(breaker_.times_opened(), 3);
}

TEST_F(CircuitBreakerTest, TheFailuresOfOtherConnectionsChangeNothing) {
  breaker_.Works(now_);
  breaker_.Failed(now_, kRefused, 0);
  const absl::Time retry_at = breaker_.retry_at();
  breaker_.Failed(now_ + absl::Milliseconds(10), kRefused, 0);
  EXPECT_EQ(breaker_.retry_at(), retry_at);
  EXPECT_EQ(breaker_.times_opened(), 1);
}

}  // namespace
}  // namespace kvblend::store::redis
