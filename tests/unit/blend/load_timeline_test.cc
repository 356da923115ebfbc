#include "engine/blend/costs/load_timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace kvblend::blend {
namespace {

/// One pass that loads every layer.
std::vector<TimelineStep> OnePass(int32_t num_layers, double place, double compute) {
  std::vector<TimelineStep> steps;
  for (int32_t layer = 0; layer < num_layers; ++layer) steps.push_back({layer, true, place, compute});
  return steps;
}

TEST(Simulate, WithNothingToReadTimeIsTheSumOfTheSteps) {
  const TimelineResult result = Simulate({.num_layers = 3, .depth = 2, .steps = OnePass(3, 0.5, 2)});
  EXPECT_DOUBLE_EQ(result.seconds, 7.5);
  EXPECT_DOUBLE_EQ(result.stall_seconds, 0);
}

TEST(Simulate, SlowComputingHidesLoadingButForTheFirstLayer) {
  // Layer 0 is there at 1 and computed until 3, by when layer 1 is there; layer 2 is asked for at 3.
  const TimelineResult result =
      Simulate({.num_layers = 3, .depth = 1, .read_seconds_per_layer = {1}, .steps = OnePass(3, 0, 2)});
  EXPECT_DOUBLE_EQ(result.seconds, 7);
  EXPECT_DOUBLE_EQ(result.stall_seconds, 1);
}

TEST(Simulate, SlowLoadingHidesComputingButForTheLastLayer) {
  for (const int32_t depth : {0, 1, 2}) {
    const TimelineResult result = Simulate(
        {.num_layers = 3, .depth = depth, .read_seconds_per_layer = {3}, .steps = OnePass(3, 0.25, 0.75)});
    EXPECT_DOUBLE_EQ(result.seconds, 10);       // arrivals at 3, 6, 9
    EXPECT_DOUBLE_EQ(result.stall_seconds, 7);  // 3, 2 and 2
  }
}

TEST(Simulate, AShallowPipelineLeavesTheTierIdle) {
  // Computed at 0..5, 5..6, 6..7 if it is there. Depth 1 asks for layer 2 at 6 (its step 1 begins at 6).
  std::vector<TimelineStep> steps = {{0, true, 0, 5}, {1, true, 0, 1}, {2, true, 0, 1}};
  const auto seconds = [&](int32_t depth) {
    return Simulate({.num_layers = 3, .depth = depth, .read_seconds_per_layer = {1}, .steps = steps}).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(0), 8);  // waits for layer 0 only
  EXPECT_DOUBLE_EQ(seconds(2), 8);
  EXPECT_DOUBLE_EQ(seconds(1), 8);  // asked for at 6, there at 7
  steps[1].compute_seconds = 0.5;
  EXPECT_DOUBLE_EQ(seconds(2), 7.5);
  EXPECT_DOUBLE_EQ(seconds(1), 8);  // there at 7, half a second late
}

TEST(Simulate, ALayerIsThereWhenEveryTierHasReadItsShare) {
  const TimelineResult result =
      Simulate({.num_layers = 2, .read_seconds_per_layer = {1, 4}, .steps = OnePass(2, 0, 1)});
  EXPECT_DOUBLE_EQ(result.seconds, 9);
}

TEST(Simulate, TheSecondPassLoadsWhatTheQueryPassDidNot) {
  // Query pass over layer 0: there at 2, done at 3. Recomputation: layer 0 until 8, by when all is there.
  const Timeline timeline{.num_layers = 3,
                          .read_seconds_per_layer = {2},
                          .steps = {{0, true, 0, 1}, {0, false, 9, 5}, {1, true, 0, 5}, {2, true, 0, 5}}};
  EXPECT_DOUBLE_EQ(Simulate(timeline).seconds, 18);
  EXPECT_DOUBLE_EQ(Simulate(timeline).stall_seconds, 2);
}

/// The same, second by second: an independent account of what the pipeline does.
int TickByTick(const Timeline& timeline) {
  struct TierState {
    std::deque<int32_t> queue;  // layers asked for
    int left = 0;               // of the first one
    int read = 0;               // layers that are there
  };
  std::vector<TierState> tiers(timeline.read_seconds_per_layer.size());
  const int32_t depth = timeline.depth == 0 ? timeline.num_layers : timeline.depth;
  int32_t asked = 0;
  const auto ask = [&](int32_t up_to) {
    for (; asked <= up_to && asked < timeline.num_layers; ++asked) {
      for (TierState& tier : tiers) tier.queue.push_back(asked);
    }
  };
  ask(depth);
  size_t step = 0;
  bool working = false;
  int work_left = 0;
  for (int now = 0;; ++now) {
    // What ends or begins at this moment.
    while (true) {
      if (working) {
        if (work_left > 0) break;
        working = false;
        ++step;
      }
      if (step == timeline.steps.size()) return now;
      const TimelineStep& next = timeline.steps[step];
      if (next.loads) {
        ask(next.layer + depth);
        const bool there = std::all_of(tiers.begin(), tiers.end(),
                                       [&](const TierState& tier) { return tier.read > next.layer; });
        if (!there) break;
      }
      working = true;
      work_left = static_cast<int>(next.compute_seconds + (next.loads ? next.place_seconds : 0));
    }
    if (working) --work_left;
    for (size_t i = 0; i < tiers.size(); ++i) {
      TierState& tier = tiers[i];
      if (tier.queue.empty()) continue;
      if (tier.left == 0) tier.left = static_cast<int>(timeline.read_seconds_per_layer[i]);
      if (--tier.left > 0) continue;
      tier.queue.pop_front();
      ++tier.read;
    }
  }
}

Timeline RandomTimeline(std::mt19937& random) {
  Timeline timeline;
  timeline.num_layers = 1 + static_cast<int32_t>(random() % 6);
  timeline.depth = static_cast<int32_t>(random() % (timeline.num_layers + 2));
  for (uint32_t tiers = random() % 3; tiers > 0; --tiers) {
    timeline.read_seconds_per_layer.push_back(1 + random() % 9);
  }
  const int32_t voting = static_cast<int32_t>(random() % (timeline.num_layers + 1));
  const double query = random() % 9, place = random() % 3, compute = random() % 9;
  for (int32_t layer = 0; layer < voting; ++layer) timeline.steps.push_back({layer, true, place, query});
  for (int32_t layer = 0; layer < timeline.num_layers; ++layer) {
    timeline.steps.push_back({layer, layer >= voting, place, compute + random() % 3});
  }
  return timeline;
}

TEST(Simulate, AgreesWithASimulationSecondBySecond) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const Timeline timeline = RandomTimeline(random);
    ASSERT_EQ(Simulate(timeline).seconds, TickByTick(timeline)) << "seed " << seed;
  }
}

TEST(Simulate, FasterReadsMoreDepthAndLessWorkNeverTakeLonger) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const Timeline timeline = RandomTimeline(random);
    const double seconds = Simulate(timeline).seconds;
    Timeline faster = timeline;
    for (double& read : faster.read_seconds_per_layer) read *= 0.7;
    EXPECT_LE(Simulate(faster).seconds, seconds);
    Timeline deeper = timeline;
    if (deeper.depth > 0) ++deeper.depth;
    EXPECT_LE(Simulate(deeper).seconds, seconds);
    deeper.depth = 0;
    EXPECT_LE(Simulate(deeper).seconds, seconds);
    Timeline less = timeline;
    for (TimelineStep& step : less.steps) step.compute_seconds *= 0.7;
    EXPECT_LE(Simulate(less).seconds, seconds);
  }
}

}  // namespace
}  // namespace kvblend::blend
