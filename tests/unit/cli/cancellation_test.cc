#include "server/cli/cancellation.h"

#include <csignal>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

TEST(CancellationTest, TellsListenersOnce) {
  Cancellation cancellation;
  int calls = 0;
  const Cancellation::Listener listener(cancellation, [&] { ++calls; });
  EXPECT_FALSE(cancellation.requested());
  cancellation.Request();
  cancellation.Request();
  EXPECT_TRUE(cancellation.requested());
  EXPECT_EQ(calls, 1);
}

TEST(CancellationTest, LateListenersHearAtOnce) {
  Cancellation cancellation;
  cancellation.Request();
  int calls = 0;
  const Cancellation::Listener listener(cancellation, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
}

TEST(CancellationTest, FormerListenersAreLeftAlone) {
  Cancellation cancellation;
  int calls = 0;
  {
    const Cancellation::Listener listener(cancellation, [&] { ++calls; });
  }
  cancellation.Request();
  EXPECT_EQ(calls, 0);
}

TEST(CancellationTest, SignalsRequestIt) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Cancellation cancellation;
    absl::Notification heard;
    const Cancellation::Listener listener(cancellation, [&] { heard.Notify(); });
    const CancelOnSignal cancel_on_signal(cancellation);
    std::raise(signal);
    heard.WaitForNotification();
    EXPECT_TRUE(cancellation.requested());
  }
}

TEST(CancellationDeathTest, TheSecondSignalEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        Cancellation cancellation;
        const CancelOnSignal cancel_on_signal(cancellation);
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(CancellationTest, WithoutASignalNothingIsRequested) {
  Cancellation cancellation;
  { const CancelOnSignal cancel_on_signal(cancellation); }
  EXPECT_FALSE(cancellation.requested());
}

}  // namespace
}  // namespace kvblend::server::cli
