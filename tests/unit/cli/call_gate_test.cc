#include "server/cli/precompute/call_gate.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/retry_delay.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

const absl::Status kRefused =
    WithRetryDelay(absl::ResourceExhaustedError("requests per minute"), absl::Milliseconds(1));

class CallGateTest : public testing::Test {
 protected:
  Cancellation cancellation_;
  CallGate gate_{cancellation_, {.max_retries = 3, .first_wait = absl::Microseconds(1)}};
};

TEST_F(CallGateTest, WhatIsRefusedIsAskedAgain) {
  int calls = 0;
  const auto third = [&]() -> absl::StatusOr<int> {
    if (++calls < 3) return kRefused;
    return 7;
  };
  EXPECT_EQ(*gate_.Ask<int>(third), 7);
  EXPECT_EQ(calls, 3);
  calls = 0;
  const auto never = [&] { return ++calls, kRefused; };
  EXPECT_EQ(gate_.Make(never), kRefused);
  EXPECT_EQ(calls, 1 + 3);
}

TEST_F(CallGateTest, OtherErrorsAreAnswers) {
  int calls = 0;
  for (const absl::Status& answer : {absl::ResourceExhaustedError("does not fit, ever"),
                                     absl::InvalidArgumentError("wrong"), absl::UnavailableError("gone")}) {
    EXPECT_EQ(gate_.Make([&] { return ++calls, answer; }), answer);
  }
  EXPECT_EQ(calls, 3);
}

// A tenant with concurrent_requests: 1. Each of four threads calls often; what is refused for one that is
// under way does not use up the few retries.
TEST_F(CallGateTest, OneAtATimeIsFoundOut) {
  std::atomic<int> under_way = 0, refused = 0, done = 0;
  const auto call = [&]() -> absl::Status {
    if (++under_way > 1) {
      --under_way;
      ++refused;
      return kRefused;
    }
    std::this_thread::yield();
    --under_way;
    ++done;
    return absl::OkStatus();
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(gate_.Make(call).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 800);
  EXPECT_LE(refused, 20) << "it is found out once, and not over and over";
}

TEST_F(CallGateTest, ARefusedCallWaitsForTheOneThatIsUnderWay) {
  absl::Notification long_one_began, refused;
  std::thread other([&] {
    EXPECT_TRUE(gate_
                    .Make([&] {
                      long_one_began.Notify();
                      refused.WaitForNotification();
                      return absl::OkStatus();
                    })
                    .ok());
  });
  long_one_began.WaitForNotification();
  int calls = 0;
  EXPECT_TRUE(gate_
                  .Make([&]() -> absl::Status {
                    if (++calls > 1) return absl::OkStatus();
                    refused.Notify();
                    return kRefused;
                  })
                  .ok());
  EXPECT_EQ(calls, 2);
  other.join();
}

TEST_F(CallGateTest, WaitingEndsWithTheDeadlineAndWithCancellation) {
  CallGate short_of_time(cancellation_, {.deadline = absl::Now() + absl::Minutes(1)});
  const absl::Status in_an_hour = WithRetryDelay(absl::ResourceExhaustedError("full"), absl::Hours(1));
  int calls = 0;
  const absl::Status late = short_of_time.Make([&] { return ++calls, in_an_hour; });
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), testing::HasSubstr("full"));
  EXPECT_EQ(calls, 1);
  std::thread interrupter;
  EXPECT_EQ(gate_
                .Make([&] {
                  interrupter = std::thread([&] { cancellation_.Request(); });
                  return in_an_hour;
                })
                .code(),
            absl::StatusCode::kCancelled);
  interrupter.join();
  EXPECT_EQ(gate_.Make([&] { return ++calls, absl::OkStatus(); }).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(calls, 1) << "none begins any more";
}

}  // namespace
}  // namespace kvblend::server::cli
