#include "engine/blend/selection_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace kvblend::blend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Candidates MakeCandidates(std::vector<CandidateSpan> spans) {
  Candidates candidates{std::move(spans), 0};
  for (const CandidateSpan& span : candidates.spans) candidates.num_tokens += span.end - span.begin;
  return candidates;
}

BlendOptions Options(Policy policy, double ratio) {
  BlendOptions options;
  options.policy = policy;
  options.ratio = ratio;
  return options;
}

TEST(TopPositions, TakesTheHighestInPromptOrderAndTheEarlierOfEquals) {
  const std::vector<int32_t> positions = {10, 11, 12, 20, 21};
  const std::vector<float> scores = {1, 5, 3, 5, 3};
  EXPECT_THAT(TopPositions(positions, scores, 2), ElementsAre(11, 20));
  EXPECT_THAT(TopPositions(positions, scores, 3), ElementsAre(11, 12, 20));
  EXPECT_THAT(TopPositions(positions, scores, 0), ElementsAre());
  EXPECT_THAT(TopPositions(positions, scores, 99), ElementsAre(10, 11, 12, 20, 21));
}

TEST(TopPositions, NanComesLast) {
  const std::vector<int32_t> positions = {0, 1, 2};
  const std::vector<float> scores = {std::numeric_limits<float>::quiet_NaN(), -1.0f, -2.0f};
  EXPECT_THAT(TopPositions(positions, scores, 2), ElementsAre(1, 2));
}

TEST(TopPositions, AgreesWithSortingOnRandomScores) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int32_t n = 1 + random() % 50;
    std::vector<int32_t> positions(n);
    std::vector<float> scores(n);
    for (int32_t i = 0; i < n; ++i) {
      positions[i] = 3 * i;
      scores[i] = static_cast<float>(random() % 10);
    }
    const int32_t count = random() % (n + 1);
    std::vector<int32_t> order(n);
    for (int32_t i = 0; i < n; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    std::set<int32_t> expected;
    for (int32_t i = 0; i < count; ++i) expected.insert(positions[order[i]]);
    EXPECT_EQ(TopPositions(positions, scores, count), std::vector<int32_t>(expected.begin(), expected.end()))
        << "round " << round;
  }
}

TEST(SelectionPolicy, EveryPolicyChoosesExactlyItsBudgetAmongTheCandidates) {
  const Candidates candidates = MakeCandidates({{0, 5, 45}, {1, 45, 46}, {2, 60, 100}});
  std::vector<float> scores(candidates.num_tokens);
  std::mt19937 random(3);
  for (float& score : scores) score = static_cast<float>(random());
  const std::vector<int32_t> positions = candidates.Positions();
  std::vector<int32_t> numbers(candidates.num_tokens);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto highest = [&](int32_t count) -> absl::StatusOr<std::vector<int32_t>> {
    return TopPositions(numbers, scores, count);
  };
  for (Policy policy :
       {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kNone, Policy::kAll, Policy::kRandom}) {
    int32_t previous = 0;
    for (double ratio : {0.0, 0.05, 0.15, 0.5, 1.0}) {
      const auto selection = *CreateSelectionPolicy(Options(policy, ratio), /*num_layers=*/4);
      const std::vector<int32_t> chosen = *selection->Select(candidates, highest);
      EXPECT_EQ(chosen.size(), selection->Budget(candidates));
      EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
      EXPECT_TRUE(std::includes(positions.begin(), positions.end(), chosen.begin(), chosen.end()));
      EXPECT_GE(selection->Budget(candidates), previous);  // monotone in the ratio
      previous = selection->Budget(candidates);
    }
  }
}

TEST(SelectionPolicy, LinkTakesTheFirstTokensOfEveryChunk) {
  BlendOptions options = Options(Policy::kLink, 0);
  options.link_tokens = 2;
  const auto policy = *CreateSelectionPolicy(options, 4);
  EXPECT_THAT(*policy->Select(MakeCandidates({{0, 5, 9}, {1, 9, 10}, {2, 30, 33}}), NothingMeasured),
              ElementsAre(5, 6, 9, 30, 31));
}

TEST(SelectionPolicy, RandomIsAFunctionOfItsSeed) {
  const Candidates candidates = MakeCandidates({{0, 0, 200}});
  BlendOptions options = Options(Policy::kRandom, 0.1);
  const auto select = [&] {
    return *(*CreateSelectionPolicy(options, 4))->Select(candidates, NothingMeasured);
  };
  const std::vector<int32_t> first = select();
  EXPECT_EQ(select(), first);
  options.random_seed = 1;
  EXPECT_NE(select(), first);
}

TEST(SelectionPolicy, ChoosesThePositionsOfTheHighestCandidatesAndPassesErrorsOn) {
  const Candidates candidates = MakeCandidates({{0, 5, 9}, {1, 20, 24}});
  for (Policy policy : {Policy::kQuery, Policy::kHkvd}) {
    const auto selection = *CreateSelectionPolicy(Options(policy, 0.375), 4);
    const auto chosen = selection->Select(candidates, [](int32_t count) {
      EXPECT_EQ(count, 3);
      return absl::StatusOr<std::vector<int32_t>>({1, 3, 4});
    });
    EXPECT_THAT(*chosen, ElementsAre(6, 8, 20));
    EXPECT_EQ(selection->Select(candidates, NothingMeasured).status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(*(*CreateSelectionPolicy(Options(policy, 0), 4))->Select(candidates, NothingMeasured),
                ElementsAre());
  }
}

TEST(SelectionPolicy, RefusesBadOptionsByName) {
  const auto message = [](const BlendOptions& options) {
    const absl::Status status = ValidateBlendOptions(options, /*num_layers=*/4);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Options(Policy::kQuery, std::nan(""))), HasSubstr("ratio is nan"));
  EXPECT_THAT(message(Options(Policy::kQuery, 1.01)), HasSubstr("ratio is 1.01; allowed: 0 to 1"));
  EXPECT_THAT(message(Options(Policy::kQuery, -0.5)), HasSubstr("ratio is -0.5"));
  BlendOptions options = Options(Policy::kHkvd, 0.1);
  options.hkvd_layer = 4;
  EXPECT_THAT(message(options), HasSubstr("hkvd_layer is 4; allowed: 1 to 3"));
  options = Options(Policy::kQuery, 0.1);
  options.query_layers = 5;
  EXPECT_THAT(message(options), HasSubstr("query_layers is 5"));
  options = Options(Policy::kLink, 0.1);
  options.link_tokens = -1;
  EXPECT_THAT(message(options), HasSubstr("link_tokens is -1"));
  EXPECT_THAT(message(Options(static_cast<Policy>(77), 0.1)),
              HasSubstr("policy is 77; allowed: query, hkvd"));
}

}  // namespace
}  // namespace kvblend::blend
