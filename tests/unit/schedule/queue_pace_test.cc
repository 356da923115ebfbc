#include "engine/schedule/queue_pace.h"

#include "gtest/gtest.h"

namespace kvblend::schedule {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(QueuePaceTest, PredictionsAreBelievedUntilSomethingHasEnded) {
  EXPECT_EQ(QueuePace().Of(3, At(0)), absl::Seconds(3));
  EXPECT_EQ(QueuePace().Of(0, At(0)), absl::ZeroDuration());
}

// Jobs take three times what was predicted of them: so will the next ones.
TEST(QueuePaceTest, LearnsByWhatPredictionsAreWrong) {
  QueuePace pace;
  double now = 0;
  for (int i = 0; i < 30; ++i) {
    const double predicted = 0.5 + i % 3;
    pace.Works(At(now));
    pace.Ended(predicted, At(now += 3 * predicted), /*more=*/true);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(10, At(0))), 30, 0.1);
}

TEST(QueuePaceTest, TimeWithoutWorkIsNotCounted) {
  QueuePace pace;
  for (int i = 0; i < 30; ++i) {
    pace.Works(At(100 * i));
    pace.Works(At(100 * i + 1));  // the next part of the same job
    pace.Ended(1, At(100 * i + 2), /*more=*/false);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(1, At(0))), 2, 0.01);
}

// Whoever was to follow the last one has gone.
TEST(QueuePaceTest, NorIsTimeInWhichNothingIsLeftToDo) {
  QueuePace pace;
  pace.Works(At(0));
  pace.Ended(1, At(1), /*more=*/true);
  pace.Rests();
  pace.Works(At(3600));
  pace.Ended(1, At(3601), /*more=*/false);
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(1, At(0))), 1, 0.01);
}

TEST(QueuePaceTest, FollowsAMachineThatBecomesSlower) {
  QueuePace pace;
  double now = 0;
  for (int i = 0; i < 60; ++i) {
    pace.Works(At(now));
    pace.Ended(1, At(now += i < 30 ? 1 : 4), /*more=*/true);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(1, At(0))), 4, 0.2);
}

// All rows are taken by long answers, so none that waits begins.
TEST(QueuePaceTest, WhatStandsStillIsExpectedToStandAsLongOnceMore) {
  QueuePace pace;
  pace.Moves(At(10));
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(0.02, At(10.01))), 0.02, 1e-6);
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(0.02, At(40))), 30, 1e-6);
  EXPECT_EQ(pace.Of(0, At(40)), absl::ZeroDuration()) << "nothing waits";
  pace.Moves(At(41));
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(0.02, At(41))), 0.02, 1e-6);
}

// What costs nothing to predict says nothing, but its time is not the next one's.
TEST(QueuePaceTest, JobsOfUnknownCostAreLeftOut) {
  QueuePace pace;
  pace.Works(At(0));
  pace.Ended(0, At(50), /*more=*/true);
  pace.Ended(1, At(51), /*more=*/false);
  EXPECT_NEAR(absl::ToDoubleSeconds(pace.Of(1, At(0))), 1, 0.01);
}

}  // namespace
}  // namespace kvblend::schedule
