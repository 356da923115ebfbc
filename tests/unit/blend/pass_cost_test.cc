#include "engine/blend/costs/pass_cost.h"

#include <gtest/gtest.h>

#include <random>

namespace kvblend::blend {
namespace {

constexpr PassCost kTrue{.per_layer = 1e-4, .per_row = 2e-5, .per_visible_key = 3e-9};

PassSize RandomSize(std::mt19937& random) {
  const double rows = std::exp2(std::uniform_real_distribution<>(3, 12)(random));
  const double context = rows * std::exp2(std::uniform_real_distribution<>(0, 4)(random));
  return {rows, rows * context};
}

TEST(PassCostFit, KnowsNothingBeforeTheFirstPass) {
  PassCostFit fit;
  EXPECT_FALSE(fit.Fit().has_value());
  fit.Add({0, 0}, 1);
  fit.Add({10, 100}, 0);
  EXPECT_FALSE(fit.Fit().has_value());
}

TEST(PassCostFit, OnePassIsScaledByItsTokens) {
  PassCostFit fit;
  fit.Add({100, 5000}, 0.02);
  const PassCost cost = *fit.Fit();
  EXPECT_NEAR(cost.LayerSeconds({100, 5000}), 0.02, 1e-12);
  EXPECT_NEAR(cost.LayerSeconds({300, 15000}), 0.06, 1e-12);
}

TEST(PassCostFit, FindsTheTermsThatMadeTheMeasurements) {
  std::mt19937 random(1);
  PassCostFit fit;
  for (int i = 0; i < 60; ++i) {
    const PassSize size = RandomSize(random);
    fit.Add(size, kTrue.LayerSeconds(size));
  }
  const PassCost cost = *fit.Fit();
  EXPECT_NEAR(cost.per_layer, kTrue.per_layer, 1e-3 * kTrue.per_layer);
  EXPECT_NEAR(cost.per_row, kTrue.per_row, 1e-3 * kTrue.per_row);
  EXPECT_NEAR(cost.per_visible_key, kTrue.per_visible_key, 1e-3 * kTrue.per_visible_key);
}

TEST(PassCostFit, NoiseAndInterruptedPassesChangeLittleAndNothingIsNegative) {
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << round);
    std::mt19937 random(round);
    PassCostFit fit;
    for (int i = 0; i < 60; ++i) {
      const PassSize size = RandomSize(random);
      double seconds = kTrue.LayerSeconds(size) * std::uniform_real_distribution<>(0.95, 1.05)(random);
      if (i % 10 == 9) seconds *= 8;  // something else ran
      fit.Add(size, seconds);
    }
    const PassCost cost = *fit.Fit();
    EXPECT_GE(cost.per_layer, 0);
    EXPECT_GE(cost.per_row, 0);
    EXPECT_GE(cost.per_visible_key, 0);
    for (int i = 0; i < 20; ++i) {
      const PassSize size = RandomSize(random);
      EXPECT_NEAR(cost.LayerSeconds(size) / kTrue.LayerSeconds(size), 1, 0.15);
    }
  }
}

TEST(PassCostFit, ManyPassesOfOneSizeLeaveTheOthersKnown) {
  PassCostFit fit;
  const PassSize large{4096, 4096.0 * 2048};
  fit.Add(large, kTrue.LayerSeconds(large));
  for (int i = 0; i < 100; ++i) {
    const PassSize size{16.0 + i % 8, (16.0 + i % 8) * 1000};
    fit.Add(size, kTrue.LayerSeconds(size));
  }
  EXPECT_NEAR(fit.Fit()->LayerSeconds(large) / kTrue.LayerSeconds(large), 1, 0.05);
}

TEST(PassCostFit, FollowsAMachineThatBecomesSlower) {
  std::mt19937 random(3);
  PassCostFit fit;
  std::vector<PassSize> sizes;
  for (int i = 0; i < 10; ++i) sizes.push_back(RandomSize(random));
  for (int round = 0; round < 20; ++round) {
    for (const PassSize& size : sizes) fit.Add(size, kTrue.LayerSeconds(size));
  }
  for (int round = 0; round < 5; ++round) {
    for (const PassSize& size : sizes) fit.Add(size, 3 * kTrue.LayerSeconds(size));
  }
  for (const PassSize& size : sizes) {
    EXPECT_NEAR(fit.Fit()->LayerSeconds(size) / (3 * kTrue.LayerSeconds(size)), 1, 0.02);
  }
}

}  // namespace
}  // namespace kvblend::blend
