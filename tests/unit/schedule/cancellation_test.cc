#include "engine/schedule/cancellation.h"

#include "gtest/gtest.h"
#include "tests/unit/schedule/fake_clock.h"

namespace kvblend::schedule {
namespace {

TEST(CancellationTest, CancelIsSeenAndStays) {
  Cancellation cancellation;
  EXPECT_TRUE(cancellation.Check().ok());
  cancellation.Cancel();
  cancellation.Cancel();
  EXPECT_EQ(cancellation.Check(), absl::CancelledError("the request was cancelled"));
}

TEST(CancellationTest, AShutdownIsNotTheClientsWish) {
  Cancellation ended, cancelled_before;
  ended.ShutDown();
  ended.Cancel();
  EXPECT_EQ(ended.Check(),
            absl::UnavailableError("the engine is shutting down, and the request was not done in time"));
  cancelled_before.Cancel();
  cancelled_before.ShutDown();
  EXPECT_EQ(cancelled_before.Check().code(), absl::StatusCode::kCancelled);
}

TEST(CancellationTest, DeadlineIsExclusive) {
  FakeClock clock;
  Cancellation cancellation(clock.Now() + absl::Seconds(2), clock);
  EXPECT_TRUE(cancellation.Check().ok());
  clock.Advance(absl::Seconds(2) - absl::Nanoseconds(1));
  EXPECT_TRUE(cancellation.Check().ok());
  clock.Advance(absl::Nanoseconds(1) + absl::Milliseconds(1500));
  EXPECT_EQ(cancellation.Check(),
            absl::DeadlineExceededError("the deadline passed 1.5s ago, while the request ran"));
}

TEST(CancellationTest, CancelBeforeDeadlineWinsOver) {
  FakeClock clock;
  Cancellation cancellation(clock.Now(), clock);
  EXPECT_EQ(cancellation.Check().code(), absl::StatusCode::kDeadlineExceeded);
  cancellation.Cancel();
  EXPECT_EQ(cancellation.Check().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace kvblend::schedule
