#include "engine/blend/selection_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace kvblend::blend {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Candidates MakeCandidates(std::vector<CandidateSpan> spans) {
  Candidates candidates{std::move(spans), 0};
  for (const CandidateSpan& span : candidates.spans) candidates.num_tokens += span.end - span.begin;
  return candidates;
}

BlendOptions Options(Policy policy, double ratio) { return {.policy = policy, .ratio = ratio}; }

TEST(SelectionPolicy, EveryPolicyChoosesExactlyItsBudgetAmongTheCandidates) {
  const Candidates candidates = MakeCandidates({{0, 5, 45}, {1, 45, 46}, {2, 60, 100}});
  const std::vector<int32_t> positions = candidates.Positions();
  std::vector<int32_t> numbers(candidates.num_tokens);
  std::iota(numbers.begin(), numbers.end(), 0);
  const auto highest = [&](int32_t count) -> absl::StatusOr<std::vector<int32_t>> {
    return std::vector<int32_t>(numbers.end() - count, numbers.end());
  };
  for (Policy policy :
       {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kNone, Policy::kAll, Policy::kRandom}) {
    int32_t previous = 0;
    for (double ratio : {0.0, 0.05, 0.15, 0.5, 1.0}) {
      const auto selection = *CreateSelectionPolicy(Options(policy, ratio), /*num_layers=*/4);
      const std::vector<int32_t> chosen = *selection->Select(candidates, highest);
      EXPECT_EQ(chosen.size(), selection->Budget(candidates));
      EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end(), std::greater_equal<>()), chosen.end());
      EXPECT_TRUE(std::includes(positions.begin(), positions.end(), chosen.begin(), chosen.end()));
      EXPECT_GE(selection->Budget(candidates), previous);  // monotone in the ratio
      previous = selection->Budget(candidates);
    }
  }
}

TEST(SelectionPolicy, LinkTakesTheFirstTokensOfEveryChunk) {
  const auto policy = *CreateSelectionPolicy({.policy = Policy::kLink, .link_tokens = 2}, 4);
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
  EXPECT_THAT(message({.policy = Policy::kHkvd, .hkvd_layer = 4}),
              HasSubstr("hkvd_layer is 4; allowed: 1 to 3"));
  EXPECT_THAT(message({.policy = Policy::kQuery, .query_layers = 5}), HasSubstr("query_layers is 5"));
  EXPECT_THAT(message({.policy = Policy::kLink, .link_tokens = -1}), HasSubstr("link_tokens is -1"));
  EXPECT_THAT(message(Options(static_cast<Policy>(77), 0.1)),
              HasSubstr("policy is 77; allowed: query, hkvd"));
}

}  // namespace
}  // namespace kvblend::blend
