#include "engine/generate/draft_length.h"

#include <gtest/gtest.h>

#include <random>

namespace kvblend::generate {
namespace {

TEST(StepCost, KnowsWhatWasMeasuredAndEstimatesTheRest) {
  StepCost cost;
  EXPECT_EQ(cost.Seconds(3), 0);
  cost.Add(1, 0.010);
  EXPECT_NEAR(cost.Seconds(1), 0.010, 1e-9);
  EXPECT_GT(cost.Seconds(4), cost.Seconds(2));
  EXPECT_LT(cost.Seconds(4), 0.020);
  cost.Add(4, 0.030);
  EXPECT_NEAR(cost.Seconds(4), 0.030, 1e-9);
  cost.Add(4, 100);  // interrupted
  EXPECT_LT(cost.Seconds(4), 0.040);
  cost.Add(5, 100);  // the first of its kind
  EXPECT_LT(cost.Seconds(5), 0.200);
  for (int i = 0; i < 20; ++i) cost.Add(5, 0.035);
  EXPECT_NEAR(cost.Seconds(5), 0.035, 0.002);
  cost.Add(0, 1);
  cost.Add(2, -1);
  EXPECT_LT(cost.Seconds(2), 0.020);
}

TEST(DraftLength, ChoosesNothingWithoutAGuessOrAMeasurement) {
  DraftLength length;
  StepCost cost;
  EXPECT_EQ(length.Choose(8, 7, 1, cost), 0);
  cost.Add(1, 0.01);
  EXPECT_EQ(length.Choose(0, 0, 1, cost), 0);
  EXPECT_GT(length.Choose(8, 7, 1, cost), 0);
}

/// Steps of k rows take 1 + `share` (k - 1), guesses are right with probability p, token by token. Tokens per
/// time, over what it would be without guesses.
double Gain(double p, double share, int steps) {
  DraftLength length;
  StepCost cost;
  std::mt19937 random(5);
  std::bernoulli_distribution is_right(p);
  double time = 0, tokens = 0;
  for (int i = 0; i < steps; ++i) {
    const int32_t drafted = length.Choose(4, 7, 1, cost);
    const double took = 1 + share * drafted;
    cost.Add(1 + drafted, took);
    int32_t right = 0;
    while (right < drafted && is_right(random)) ++right;
    if (drafted > 0) length.Observe(4, drafted, right);
    time += took;
    tokens += 1 + right;
  }
  return tokens / time;
}

TEST(DraftLength, GainsWhereGuessesAreRightAndLosesLittleWhereTheyAreWrong) {
  EXPECT_GT(Gain(1.0, 0.3, 2000), 2.3);
  EXPECT_GT(Gain(0.8, 0.3, 2000), 1.35);
  EXPECT_GT(Gain(0.9, 0.05, 2000), 4);
  for (const double share : {0.1, 0.3, 0.6, 1.0, 2.0}) {
    for (const double p : {0.0, 0.05, 0.2, 0.5}) {
      EXPECT_GT(Gain(p, share, 2000), 0.97) << "share " << share << ", p " << p;
    }
  }
}

}  // namespace
}  // namespace kvblend::generate
