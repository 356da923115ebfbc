#include "engine/blend/costs/loading_controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace kvblend::blend {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Use = ShapeSpan::Use;

constexpr int32_t kLayers = 4;

/// [anchor 100 exact | chunk 100 exact | 3 chunks of 100, candidates | question 10], all stored on `tier` at
/// 1000 bytes per token and layer.
PromptShape Shape(Tier tier = Tier::kDisk) {
  PromptShape shape{.num_layers = kLayers};
  for (int i = 0; i < 5; ++i) {
    shape.spans.push_back({.use = i < 2 ? Use::kExact : Use::kCandidate,
                           .begin = 100 * i,
                           .end = 100 * (i + 1),
                           .tier = tier,
                           .layer_bytes = tier == Tier::kNone ? 0 : 100'000});
  }
  shape.spans.push_back({.use = Use::kComputed, .begin = 500, .end = 510});
  return shape;
}

/// A token takes 1 ms per layer.
LoadingCosts Costs(double bytes_per_second) {
  return {.forward = {.per_row = 1e-3},
          .query = {.per_row = 2e-3},
          .place_seconds = 1e-5,
          .head_seconds = 1e-3,
          .projection_share = 0.25,
          .reads = {{Tier::kDisk, {.bytes_per_second = bytes_per_second}}}};
}

BlendOptions With(Policy policy) { return {.policy = policy}; }

PrefillPrediction Predict(const PromptShape& shape, BlendOptions options, double ratio,
                          const LoadingCosts& costs, int32_t depth = 2) {
  options.ratio = ratio;
  return PredictPrefill(shape, **CreateSelectionPolicy(options, shape.num_layers), costs, depth);
}

// --- the prediction, by hand

TEST(PredictPrefill, QueryAddsItsRecomputationToLoading) {
  // Reading a layer: 0.5 MB at 10 MB/s, 50 ms. Placing it: 5 ms. Query pass: 10 tokens, 20 ms per layer,
  // hidden under the next read but in the last layer. Recomputation: 10 + 30 tokens, 40 ms per layer.
  const PrefillPrediction prediction = Predict(Shape(), With(Policy::kQuery), 0.1, Costs(1e7));
  EXPECT_NEAR(prediction.seconds, 4 * 0.050 + 0.005 + 0.020 + 4 * 0.040 + 0.001, 1e-12);
  EXPECT_NEAR(prediction.load_seconds, 4 * 0.050 + 0.005, 1e-12);
  EXPECT_NEAR(prediction.compute_seconds, 4 * 0.020 + 4 * 0.040 + 0.001, 1e-12);
}

TEST(PredictPrefill, AQueryPassThatStopsEarlyOverlapsRecomputationWithLoading) {
  const BlendOptions options = {.policy = Policy::kQuery, .query_layers = 1};
  // Layer 0 is there at 50, placed at 55, measured at 75; recomputed until 115, when layer 1 (there at 100)
  // has 5 + 40 ms: 160, then 205, 250.
  EXPECT_NEAR(Predict(Shape(), options, 0.1, Costs(1e7)).seconds, 0.250 + 0.001, 1e-12);
}

TEST(PredictPrefill, HkvdTakesTheLargerOfLoadingAndComputing) {
  // Layer 0: all 310 inexact tokens; layer 1: projections of the 270 that go, all of the 40 that stay.
  const double full = 0.310, check = 0.040 + 0.25 * 0.270;
  const PrefillPrediction fast = Predict(Shape(), With(Policy::kHkvd), 0.1, Costs(1e9));
  EXPECT_NEAR(fast.seconds, 0.0005 + 2 * 0.002 + full + check + 2 * (0.005 + 0.040) + 0.001, 1e-12);
  // Layers arrive at 1, 2, 3 and 4 s.
  const PrefillPrediction slow = Predict(Shape(), With(Policy::kHkvd), 0.1, Costs(5e5));
  EXPECT_NEAR(slow.seconds, 4 + 0.005 + 0.040 + 0.001, 1e-12);
  EXPECT_NEAR(slow.stall_seconds, 4 - 0.002 - full - 0.002 - check - 0.045, 1e-12);
}

TEST(PredictPrefill, NothingReusedIsOnePassWithoutLoading) {
  PromptShape shape = Shape(Tier::kNone);
  for (ShapeSpan& span : shape.spans) span.use = Use::kComputed;
  LoadingCosts costs = Costs(1);
  costs.forward = {.per_layer = 0.1, .per_row = 1e-3, .per_visible_key = 1e-6};
  const double visible = 510.0 * 511 / 2;
  EXPECT_NEAR(Predict(shape, With(Policy::kQuery), 0.15, costs).seconds,
              4 * (0.1 + 0.510 + 1e-6 * visible) + 0.001, 1e-12);
}

TEST(PredictPrefill, RisesWithTheRatioAndFallsWithTheBandwidth) {
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kRandom}) {
    SCOPED_TRACE(static_cast<int>(policy));
    double previous_bandwidth = 1e99;
    for (const double bandwidth : {1e5, 1e6, 1e7, 1e8}) {
      double previous_ratio = 0;
      for (const double ratio : {0.05, 0.1, 0.3, 0.6, 0.9}) {
        const double seconds = Predict(Shape(), With(policy), ratio, Costs(bandwidth)).seconds;
        EXPECT_GE(seconds, previous_ratio);
        previous_ratio = seconds;
      }
      const double seconds = Predict(Shape(), With(policy), 0.3, Costs(bandwidth)).seconds;
      EXPECT_LE(seconds, previous_bandwidth);
      previous_bandwidth = seconds;
    }
  }
}

// --- the choice

const RatioOptions kAuto{.mode = RatioMode::kAuto, .ratio = 0.2, .min = 0.1, .max = 0.6, .min_tokens = 0};

TEST(DecideLoading, AFixedRatioStaysAndNothingIsBypassed) {
  for (const double bandwidth : {1e2, 1e7}) {
    const LoadingDecision decision =
        DecideLoading(Shape(), With(Policy::kQuery), {.ratio = 0.33}, Costs(bandwidth), 2);
    EXPECT_EQ(decision.ratio, 0.33);
    EXPECT_THAT(decision.bypassed, IsEmpty());
    EXPECT_NEAR(decision.prediction->seconds,
                Predict(Shape(), With(Policy::kQuery), 0.33, Costs(bandwidth)).seconds, 1e-12);
  }
}

TEST(DecideLoading, TheSlowerTheTierTheMoreIsRecomputedUntilTheBound) {
  double previous = 1;
  std::vector<double> ratios;
  for (const double bandwidth : {1e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9}) {
    LoadingCosts costs = Costs(bandwidth);
    costs.reads[Tier::kDisk].recent = false;  // so that nothing is bypassed
    const LoadingDecision decision = DecideLoading(Shape(), With(Policy::kHkvd), kAuto, costs, 2);
    ASSERT_THAT(decision.bypassed, IsEmpty());
    EXPECT_LE(decision.ratio, previous);
    EXPECT_GE(decision.ratio, kAuto.min);
    EXPECT_LE(decision.ratio, kAuto.max);
    previous = decision.ratio;
    ratios.push_back(decision.ratio);
    // It is hidden, and the next larger one is not.
    const double allowed =
        (1 + kHiddenTolerance) * Predict(Shape(), With(Policy::kHkvd), kAuto.min, costs).seconds;
    EXPECT_LE(decision.prediction->seconds, allowed);
    if (decision.ratio + kRatioStep <= kAuto.max) {
      EXPECT_GT(Predict(Shape(), With(Policy::kHkvd), decision.ratio + kRatioStep, costs).seconds, allowed);
    }
  }
  EXPECT_EQ(ratios.front(), kAuto.max);
  EXPECT_LT(ratios.back(), kAuto.min + 3 * kRatioStep);  // nothing to hide under but the tolerance
}

TEST(DecideLoading, WithoutMeasurementsTheFixedRatioHoldsWithinTheBounds) {
  const auto ratio = [](const RatioOptions& options, const std::optional<LoadingCosts>& costs) {
    const LoadingDecision decision = DecideLoading(Shape(), With(Policy::kHkvd), options, costs, 2);
    EXPECT_FALSE(decision.prediction.has_value());
    EXPECT_THAT(decision.bypassed, IsEmpty());
    return decision.ratio;
  };
  LoadingCosts no_disk = Costs(1);
  no_disk.reads.clear();
  for (const auto& costs : {std::optional<LoadingCosts>(), std::optional(no_disk)}) {
    EXPECT_EQ(ratio(kAuto, costs), 0.2);
    EXPECT_EQ(ratio({.mode = RatioMode::kAuto, .ratio = 0.05, .min = 0.1, .max = 0.6}, costs), 0.1);
    EXPECT_EQ(ratio({.mode = RatioMode::kAuto, .ratio = 0.9, .min = 0.1, .max = 0.6}, costs), 0.6);
    EXPECT_EQ(ratio({.ratio = 0.9}, costs), 0.9);
  }
  // In host memory nothing is read, so nothing is missing.
  EXPECT_TRUE(
      DecideLoading(Shape(Tier::kNone), With(Policy::kHkvd), kAuto, no_disk, 2).prediction.has_value());
}

TEST(DecideLoading, PoliciesWithoutARatioKeepIt) {
  for (const Policy policy : {Policy::kLink, Policy::kNone, Policy::kAll}) {
    EXPECT_EQ(DecideLoading(Shape(), With(policy), kAuto, Costs(1e6), 2).ratio, 0.2);
  }
}

// --- bypassing

TEST(DecideLoading, WhatTakesLongerToLoadThanToComputeIsBypassed) {
  // A chunk: 4 layers of 0.1 MB against 4 layers of 100 ms. At 10 kB/s everything is computed.
  const LoadingDecision all = DecideLoading(Shape(), With(Policy::kQuery), kAuto, Costs(1e4), 2);
  EXPECT_THAT(all.bypassed, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_NEAR(all.prediction->seconds, 4 * 0.510 + 0.001, 1e-12);
  EXPECT_EQ(all.prediction->load_seconds, 0);
  EXPECT_THAT(DecideLoading(Shape(), With(Policy::kQuery), kAuto, Costs(1e7), 2).bypassed, IsEmpty());
}

TEST(DecideLoading, OnlyTheChunksOfTheSlowTierAreBypassed) {
  PromptShape shape = Shape(Tier::kNone);
  shape.spans[3].tier = Tier::kDisk;
  shape.spans[3].layer_bytes = 100'000;
  EXPECT_THAT(DecideLoading(shape, With(Policy::kQuery), kAuto, Costs(1e4), 2).bypassed, ElementsAre(3));
}

// A span knows its tier from the lookup; meanwhile all of its layers may have arrived, and the tier's first
// reads are too few to tell how fast it is.
TEST(DecideLoading, WhatHasArrivedIsNotBypassedAndNeedsNoRateOfItsTier) {
  PromptShape shape = Shape();
  for (ShapeSpan& span : shape.spans) span.layer_bytes = 0;
  LoadingCosts costs = Costs(1e4);
  costs.reads.clear();
  const LoadingDecision decision = DecideLoading(shape, With(Policy::kQuery), kAuto, costs, 2);
  EXPECT_THAT(decision.bypassed, IsEmpty());
  EXPECT_TRUE(decision.prediction.has_value());
}

TEST(DecideLoading, WhatBypassingLeavesHasTheLeastNumberOfTokensToo) {
  PromptShape shape = Shape();
  shape.spans[2].tier = Tier::kNone;  // 100 candidates that stay
  shape.spans[2].layer_bytes = 0;
  const RatioOptions ratio = WithMinTokens(
      {.mode = RatioMode::kAuto, .ratio = 0.1, .min = 0.1, .max = 0.1, .min_tokens = 60}, shape);
  const LoadingDecision decision = DecideLoading(shape, With(Policy::kQuery), ratio, Costs(1e4), 2);
  ASSERT_THAT(decision.bypassed, ElementsAre(0, 1, 3, 4));
  EXPECT_EQ(decision.ratio, 0.6);
}

TEST(DecideLoading, AMeasurementOfLongAgoBypassesNothing) {
  LoadingCosts costs = Costs(1e4);
  costs.reads[Tier::kDisk].recent = false;
  EXPECT_THAT(DecideLoading(Shape(), With(Policy::kQuery), kAuto, costs, 2).bypassed, IsEmpty());
}

TEST(DecideLoading, BypassingIsNeverPredictedToLose) {
  int bypasses = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    PromptShape shape{.num_layers = kLayers};
    int32_t position = 0;
    for (int i = 0; i < 8; ++i) {
      const int32_t tokens = 1 + static_cast<int32_t>(random() % 200);
      const bool is_last = i == 7;
      ShapeSpan span{.use = is_last ? Use::kComputed : static_cast<Use>(random() % 3),
                     .begin = position,
                     .end = position + tokens};
      if (span.use != Use::kComputed && random() % 2 == 0) {
        span.tier = Tier::kDisk;
        span.layer_bytes = 1000 * tokens;
      }
      shape.spans.push_back(span);
      position += tokens;
    }
    const LoadingCosts costs = Costs(std::exp2(10 + random() % 15));
    for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kNone}) {
      const LoadingDecision decision = DecideLoading(shape, With(policy), kAuto, costs, 2);
      for (const size_t span : decision.bypassed) EXPECT_EQ(shape.spans[span].tier, Tier::kDisk);
      const double loaded = Predict(shape, With(policy), kAuto.min, costs).seconds;
      if (!decision.bypassed.empty()) {
        ++bypasses;
        EXPECT_LT(decision.prediction->seconds, (1 + kHiddenTolerance) * (1 - kBypassGain) * loaded);
      }
      EXPECT_LE(decision.prediction->seconds, (1 + kHiddenTolerance) * loaded);
    }
  }
  EXPECT_GT(bypasses, 0);
}

// --- options

TEST(ResolveRatio, ANumberAloneIsFixedAndWhatIsNotSetIsTheEngines) {
  const RatioOptions engine{.mode = RatioMode::kAuto, .ratio = 0.2, .min = 0.1, .max = 0.4};
  BlendOptions options;
  EXPECT_EQ(ResolveRatio(options, engine).mode, RatioMode::kAuto);
  EXPECT_EQ(ResolveRatio(options, engine).ratio, 0.2);
  options.ratio = 0.3;
  EXPECT_EQ(ResolveRatio(options, engine).mode, RatioMode::kFixed);
  EXPECT_EQ(ResolveRatio(options, engine).ratio, 0.3);
  options.ratio_mode = RatioMode::kAuto;
  EXPECT_EQ(ResolveRatio(options, engine).mode, RatioMode::kAuto);
  EXPECT_EQ(ResolveRatio(options, engine).min, 0.1);
  EXPECT_EQ(ResolveRatio(options, engine).max, 0.4);
  options.ratio_min = 0.5;  // above the engine's maximum: both
  EXPECT_EQ(ResolveRatio(options, engine).min, 0.5);
  EXPECT_EQ(ResolveRatio(options, engine).max, 0.5);
  options.ratio_min.reset();
  options.ratio_max = 0.05;
  EXPECT_EQ(ResolveRatio(options, engine).min, 0.05);
  EXPECT_EQ(ResolveRatio(options, engine).max, 0.05);
}

TEST(ResolveRatio, AShareThatARequestGivesIsTakenAsItIs) {
  EXPECT_EQ(ResolveRatio({}, {.min_tokens = 7}).min_tokens, 7);
  EXPECT_EQ(ResolveRatio({.ratio_mode = RatioMode::kAuto}, {.min_tokens = 7}).min_tokens, 7);
  for (const BlendOptions& options : {BlendOptions{.ratio = 0.3}, {.ratio_min = 0.3}, {.ratio_max = 0.3}}) {
    EXPECT_EQ(ResolveRatio(options, {.min_tokens = 7}).min_tokens, 0);
  }
}

TEST(WithMinTokens, SharesOfFewTokensAreThatOfTheLeastNumber) {
  // Shape() has 300 candidates.
  const auto ratio_of = [](const RatioOptions& ratio) { return WithMinTokens(ratio, Shape()).ratio; };
  EXPECT_EQ(ratio_of({.ratio = 0.1, .min_tokens = 60}), 0.2);
  EXPECT_EQ(ratio_of({.ratio = 0.3, .min_tokens = 60}), 0.3);
  EXPECT_EQ(ratio_of({.ratio = 0.1, .min_tokens = 1000}), 1);
  EXPECT_EQ(ratio_of({.ratio = 0, .min_tokens = 60}), 0);
  const RatioOptions bounds = WithMinTokens(
      {.mode = RatioMode::kAuto, .ratio = 0, .min = 0.02, .max = 0.1, .min_tokens = 60}, Shape());
  EXPECT_EQ(bounds.ratio, 0.2);
  EXPECT_EQ(bounds.min, 0.2);
  EXPECT_EQ(bounds.max, 0.2);
  PromptShape nothing_to_choose = Shape();
  for (ShapeSpan& span : nothing_to_choose.spans) span.use = Use::kExact;
  EXPECT_EQ(WithMinTokens({.ratio = 0.1, .min_tokens = 60}, nothing_to_choose).ratio, 0.1);
}

// --- measurements

TEST(LoadingController, CostsAreThoseOfThePassesThatRan) {
  LoadingController controller(0.25);
  EXPECT_FALSE(controller.Costs({}).has_value());
  controller.Observe({.passes = {{.size = {100, 5000}, .layers = 10, .seconds = 0.5}},
                      .placed_token_layers = 1000,
                      .place_seconds = 0.002,
                      .head_seconds = 0.004});
  LoadingCosts costs = *controller.Costs({{Tier::kDisk, {.bytes_per_second = 7}}});
  EXPECT_NEAR(costs.forward.LayerSeconds({100, 5000}), 0.05, 1e-12);
  EXPECT_DOUBLE_EQ(costs.place_seconds, 2e-6);
  EXPECT_DOUBLE_EQ(costs.head_seconds, 0.004);
  EXPECT_EQ(costs.projection_share, 0.25);
  EXPECT_EQ(costs.reads.at(Tier::kDisk).bytes_per_second, 7);
  // Query passes are known by themselves once one has run.
  EXPECT_NEAR(costs.query.per_row, costs.forward.per_row, 1e-12);
  controller.Observe(
      {.passes = {
           {.kind = PassMeasurement::Kind::kQuery, .size = {10, 5000}, .layers = 10, .seconds = 0.9}}});
  costs = *controller.Costs({});
  EXPECT_NEAR(costs.query.LayerSeconds({10, 5000}), 0.09, 1e-12);
  EXPECT_NEAR(costs.forward.LayerSeconds({100, 5000}), 0.05, 1e-12);
}

}  // namespace
}  // namespace kvblend::blend
