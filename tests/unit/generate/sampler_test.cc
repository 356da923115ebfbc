// Exact properties of the sampler: greedy choice, penalty, supports, log-probabilities, determinism, errors.
#include "engine/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/generate/logits_of.h"

namespace kvblend::generate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SamplingOptions Drawing(uint64_t seed = 1) {
  SamplingOptions options;
  options.temperature = 1;
  options.seed = seed;
  return options;
}

Sampler Make(const SamplingOptions& options, size_t vocab_size) {
  return Sampler::Create(options, static_cast<int32_t>(vocab_size)).value();
}

/// Every token that comes up in many draws; `Filter` leaves exactly these when each has a fair probability.
std::set<int32_t> Support(const SamplingOptions& options, const std::vector<float>& logits) {
  Sampler sampler = Make(options, logits.size());
  std::set<int32_t> support;
  for (int i = 0; i < 3000; ++i) support.insert(sampler.Sample(logits).value().token_id);
  return support;
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestIdAmongEquals) {
  Sampler sampler = Make(SamplingOptions(), 5);
  EXPECT_EQ(sampler.Sample({-3, 2, 7, 7, 1}).value().token_id, 2);
  EXPECT_EQ(sampler.Sample({0, 0, 0, 0, 0}).value().token_id, 0);
  EXPECT_EQ(sampler.Sample({-5, -4, -3, -2, -1}).value().token_id, 4);
}

TEST(SamplerTest, GreedyIgnoresTheFilters) {
  SamplingOptions options;
  options.top_k = 2;
  options.top_p = 0.1;
  options.min_p = 1;
  EXPECT_EQ(Make(options, 3).Sample({1, 3, 2}).value().token_id, 1);
}

TEST(SamplerTest, PenaltyDividesPositiveAndMultipliesNegativeLogitsOnce) {
  SamplingOptions options;
  options.repetition_penalty = 2;
  Sampler sampler = Make(options, 3);
  EXPECT_EQ(sampler.Sample({4, 3, -1}).value().token_id, 0);
  sampler.Accept(0);
  EXPECT_EQ(sampler.Sample({4, 3, -1}).value().token_id, 1);     // 4 / 2 = 2 < 3
  EXPECT_EQ(sampler.Sample({6.5f, 3, -1}).value().token_id, 0);  // 3.25 > 3
  sampler.Accept(0);                                             // again: counts once
  EXPECT_EQ(sampler.Sample({6.5f, 3, -1}).value().token_id, 0);
  EXPECT_EQ(sampler.Sample({-1, -1.5f, -9}).value().token_id, 1);  // -1 * 2 = -2 < -1.5
  EXPECT_EQ(sampler.Sample({-1, -2.5f, -9}).value().token_id, 0);  // -2 > -2.5
}

TEST(SamplerTest, PenaltyBelowOneRewardsRepetition) {
  SamplingOptions options;
  options.repetition_penalty = 0.5;
  Sampler sampler = Make(options, 2);
  sampler.Accept(1);
  EXPECT_EQ(sampler.Sample({3, 2}).value().token_id, 1);       // 2 / 0.5 = 4
  EXPECT_EQ(sampler.Sample({-1, -1.5f}).value().token_id, 1);  // -1.5 * 0.5 = -0.75
}

TEST(SamplerTest, PenaltiesOfTheAnswerLeaveThePromptAlone) {
  SamplingOptions options;
  options.presence_penalty = 1;
  options.frequency_penalty = 0.5;
  Sampler sampler = Make(options, 3);
  sampler.AcceptOfPrompt(0);
  EXPECT_EQ(sampler.Sample({3, 2.9f, 0}).value().token_id, 0);
  sampler.Accept(0);  // 1 + 0.5 less
  EXPECT_EQ(sampler.Sample({3, 1.6f, 0}).value().token_id, 1);
  EXPECT_EQ(sampler.Sample({3, 1.4f, 0}).value().token_id, 0);
  sampler.Accept(0);  // and 0.5 more
  EXPECT_EQ(sampler.Sample({3, 1.1f, 0}).value().token_id, 1);
  EXPECT_EQ(sampler.Sample({3, 0.9f, 0}).value().token_id, 0);
  EXPECT_FALSE(sampler.can_look_ahead());
}

TEST(SamplerTest, BiasIsAddedBesideThePenalties) {
  SamplingOptions options;
  options.logit_bias = {{0, -100}, {2, 1.5}};
  EXPECT_TRUE(Make(options, 3).can_look_ahead());
  EXPECT_EQ(Make(options, 3).Sample({50, 2, 1}).value().token_id, 2);
  EXPECT_EQ(Make(options, 3).Sample({50, 3, 1}).value().token_id, 1);
  options.frequency_penalty = 1;
  options.repetition_penalty = 2;
  options.top_logprobs = 0;
  Sampler sampler = Make(options, 3);
  sampler.Accept(2);  // 4 / 2 + 1.5 - 1 = 2.5
  EXPECT_EQ(sampler.Sample({0, 2.4f, 4}).value().token_id, 2);
  const Sampled sampled = sampler.Sample({0, 2.6f, 4}).value();
  EXPECT_EQ(sampled.token_id, 1);
  EXPECT_NEAR(sampled.logprob, 2.6 - std::log(1 + std::exp(2.6) + std::exp(4)), 1e-6);  // the model's own
}

TEST(SamplerTest, ExtremePenaltiesStayFinite) {
  SamplingOptions options = Drawing();
  options.repetition_penalty = std::numeric_limits<double>::denorm_min();
  Sampler sampler = Make(options, 3);
  for (int32_t token : {0, 1, -1, 3, 1000000}) sampler.Accept(token);  // ids outside: ignored
  const float largest = std::numeric_limits<float>::max();
  EXPECT_EQ(sampler.Sample({1, -largest, 5}).value().token_id, 0);
}

TEST(SamplerTest, ExtremeTemperatures) {
  SamplingOptions options = Drawing();
  options.temperature = std::numeric_limits<double>::denorm_min();
  const float largest = std::numeric_limits<float>::max();
  EXPECT_THAT(Support(options, {1, 3, 2}), ElementsAre(1));
  EXPECT_THAT(Support(options, {3, 3, 2}), ElementsAre(0, 1));  // equal ones share
  EXPECT_THAT(Support(options, {-largest, largest, 0}), ElementsAre(1));
}

TEST(SamplerTest, TopKKeepsTheKMostLikelyWithTiesToTheLowerId) {
  SamplingOptions options = Drawing();
  options.top_k = 2;
  EXPECT_THAT(Support(options, {1, 3, 2, 3}), ElementsAre(1, 3));
  EXPECT_THAT(Support(options, {1, 2, 2, 2}), ElementsAre(1, 2));
  options.top_k = 1;
  EXPECT_THAT(Support(options, {5, 5, 5}), ElementsAre(0));
  options.top_k = 3;
  EXPECT_THAT(Support(options, {5, 5, 5}), ElementsAre(0, 1, 2));
  options.top_k = 100;
  EXPECT_THAT(Support(options, {5, 5, 5}), ElementsAre(0, 1, 2));
}

TEST(SamplerTest, TopPKeepsTheFewestTokensThatReachP) {
  const std::vector<float> logits = LogitsOf({0.1, 0.5, 0.15, 0.25});
  SamplingOptions options = Drawing();
  for (const auto& [top_p, expected] :
       std::vector<std::pair<double, std::set<int32_t>>>{{1e-300, {1}},
                                                         {0.49, {1}},
                                                         {0.51, {1, 3}},
                                                         {0.74, {1, 3}},
                                                         {0.76, {1, 2, 3}},
                                                         {0.91, {0, 1, 2, 3}}}) {
    options.top_p = top_p;
    EXPECT_EQ(Support(options, logits), expected) << "top_p " << top_p;
  }
}

TEST(SamplerTest, TopPTiesGoToTheLowerId) {
  SamplingOptions options = Drawing();
  options.top_p = 0.6;
  EXPECT_THAT(Support(options, {1, 1, 1, 1}), ElementsAre(0, 1, 2));
}

TEST(SamplerTest, TopPIsOfWhatTopKLeft) {
  // Among all tokens the first two have 0.6; among the first three they have 0.6 / 0.8 = 0.75 >= 0.7.
  SamplingOptions options = Drawing();
  options.top_p = 0.7;
  const std::vector<float> logits = LogitsOf({0.3, 0.3, 0.2, 0.1, 0.1});
  EXPECT_THAT(Support(options, logits), ElementsAre(0, 1, 2));
  options.top_k = 3;
  EXPECT_THAT(Support(options, logits), ElementsAre(0, 1));
}

TEST(SamplerTest, MinPIsRelativeToTheMostLikelyToken) {
  const std::vector<float> logits = LogitsOf({0.1, 0.5, 0.15, 0.25});
  SamplingOptions options = Drawing();
  for (const auto& [min_p, expected] : std::vector<std::pair<double, std::set<int32_t>>>{
           {0.19, {0, 1, 2, 3}}, {0.21, {1, 2, 3}}, {0.31, {1, 3}}, {0.49, {1, 3}}, {0.51, {1}}, {1, {1}}}) {
    options.min_p = min_p;
    EXPECT_EQ(Support(options, logits), expected) << "min_p " << min_p;
  }
  options.min_p = 1;
  EXPECT_THAT(Support(options, {2, 3, 3}), ElementsAre(1, 2));
}

TEST(SamplerTest, MinPDoesNotChangeWhatTopPKeeps) {
  // Were top-p's total taken after min-p, 0.5 + 0.25 would be all of it and top_p 0.7 would keep both.
  SamplingOptions options = Drawing();
  options.top_p = 0.5 - 1e-6;
  options.min_p = 0.4;
  EXPECT_THAT(Support(options, LogitsOf({0.5, 0.25, 0.15, 0.1})), ElementsAre(0));
  options.top_p = 0.9;
  EXPECT_THAT(Support(options, LogitsOf({0.5, 0.25, 0.15, 0.1})), ElementsAre(0, 1));
}

TEST(SamplerTest, TemperatureComesBeforeTheFilters) {
  // At temperature 2 the odds 4 : 1 become 2 : 1, so min_p 0.4 keeps both.
  SamplingOptions options = Drawing();
  options.min_p = 0.4;
  EXPECT_THAT(Support(options, LogitsOf({0.8, 0.2})), ElementsAre(0));
  options.temperature = 2;
  EXPECT_THAT(Support(options, LogitsOf({0.8, 0.2})), ElementsAre(0, 1));
}

TEST(SamplerTest, FiltersAgreeWithSortingTheVocabulary) {
  // The oracle follows the definition step by step with a full sort.
  std::mt19937_64 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<float> logits(2 + random() % 12);
    for (float& logit : logits) logit = static_cast<float>(random() % 9) * 0.25f;
    SamplingOptions options = Drawing(random() | 1);
    options.temperature = 0.8 + 0.1 * static_cast<double>(random() % 5);
    options.top_k = static_cast<int32_t>(random() % (logits.size() + 2));
    options.top_p = 0.303 + 0.1 * static_cast<double>(random() % 7);
    options.min_p = 0.037 * static_cast<double>(random() % 10);

    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    if (options.top_k > 0 && static_cast<size_t>(options.top_k) < ids.size()) ids.resize(options.top_k);
    double total = 0;
    for (int32_t id : ids) total += std::exp(logits[id] / options.temperature);
    double reached = 0;
    size_t kept = 0;
    while (kept < ids.size() && reached < options.top_p) {
      reached += std::exp(logits[ids[kept++]] / options.temperature) / total;
    }
    ids.resize(kept);
    std::set<int32_t> expected;
    for (int32_t id : ids) {
      if (std::exp((logits[id] - logits[ids[0]]) / options.temperature) >= options.min_p) expected.insert(id);
    }
    EXPECT_EQ(Support(options, logits), expected) << "round " << round;
  }
}

TEST(SamplerTest, LogprobsAreTheModelsOwnWhateverTheFilters) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(random);
  SamplingOptions options = Drawing();
  options.temperature = 1.7;
  options.top_k = 50;
  options.repetition_penalty = 1.3;
  options.top_logprobs = 7;
  Sampler sampler = Make(options, logits.size());
  for (int32_t token = 0; token < 500; ++token) sampler.Accept(token);

  long double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<long double>(logit));
  std::vector<int32_t> sorted(logits.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (int i = 0; i < 20; ++i) {
    const Sampled sampled = sampler.Sample(logits).value();
    EXPECT_NEAR(sampled.logprob, logits[sampled.token_id] - std::log(sum), 1e-9);
    ASSERT_EQ(sampled.top.size(), 7u);
    for (int rank = 0; rank < 7; ++rank) {
      EXPECT_EQ(sampled.top[rank].token_id, sorted[rank]);
      EXPECT_NEAR(sampled.top[rank].logprob, logits[sorted[rank]] - std::log(sum), 1e-9);
    }
  }
}

TEST(SamplerTest, TopLogprobsZeroGivesTheTokensOwnOnly) {
  SamplingOptions options;
  options.top_logprobs = 0;
  const Sampled sampled = Make(options, 2).Sample({0, 0}).value();
  EXPECT_NEAR(sampled.logprob, std::log(0.5), 1e-12);
  EXPECT_TRUE(sampled.top.empty());
  options.top_logprobs = 20;
  EXPECT_EQ(Make(options, 2).Sample({0, 0}).value().top.size(), 2u);  // no more than there are
}

TEST(SamplerTest, SameSeedSameTokens) {
  std::vector<float> logits(300);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 37) % 101) / 25.0f;
  SamplingOptions options = Drawing(42);
  options.top_p = 0.95;
  Sampler one = Make(options, logits.size());
  Sampler two = Make(options, logits.size());
  options.seed = 43;
  Sampler other = Make(options, logits.size());
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const int32_t token = one.Sample(logits).value().token_id;
    EXPECT_EQ(two.Sample(logits).value().token_id, token);
    different += other.Sample(logits).value().token_id != token ? 1 : 0;
  }
  EXPECT_GT(different, 50);
}

TEST(SamplerTest, DrawsAreFixedForEver) {
  // Clients repeat answers by seed: another release or compiler may not change these.
  Sampler sampler = Make(Drawing(12345), 10);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 12; ++i)
    tokens.push_back(sampler.Sample({0, 1, 2, 3, 2, 1, 0, 1, 2, 3}).value().token_id);
  EXPECT_THAT(tokens, ElementsAre(3, 3, 8, 5, 6, 3, 1, 8, 4, 3, 0, 0));
}

TEST(SamplerTest, SeedZeroIsReplacedAndReported) {
  const SamplingOptions options = Drawing(0);
  const Sampler one = Make(options, 5);
  const Sampler two = Make(options, 5);
  EXPECT_NE(one.seed(), 0u);
  EXPECT_NE(one.seed(), two.seed());
  for (int i = 0; i < 20; ++i) EXPECT_LT(Make(options, 5).seed(), uint64_t{1} << 53) << "doubles hold it";
  // The reported seed repeats the answer.
  Sampler first = Make(options, 5);
  Sampler again = Make(Drawing(first.seed()), 5);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(first.Sample({1, 1, 1, 1, 1}).value().token_id, again.Sample({1, 1, 1, 1, 1}).value().token_id);
  }
  EXPECT_EQ(Make(Drawing(77), 5).seed(), 77u);
}

TEST(SamplerTest, BadRowsAreInternalErrors) {
  for (double temperature : {0.0, 1.0}) {
    SamplingOptions options = Drawing();
    options.temperature = temperature;
    Sampler sampler = Make(options, 3);
    for (float bad : {std::nanf(""), INFINITY, -INFINITY}) {
      EXPECT_EQ(sampler.Sample({0, bad, 0}).status().code(), absl::StatusCode::kInternal);
    }
    EXPECT_EQ(sampler.Sample({0, 0}).status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(sampler.Sample({0, 0}).status().message(), HasSubstr("2 logits"));
    EXPECT_TRUE(sampler.Sample({0, 0, 0}).ok());  // and goes on
  }
}

TEST(SamplerTest, CreateRefusesBadOptions) {
  SamplingOptions options;
  options.top_p = 2;
  EXPECT_EQ(Sampler::Create(options, 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Sampler::Create(SamplingOptions(), 0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SamplerTest, PeeksAtWhatNextWillGive) {
  SamplingOptions options;
  options.seed = 7;
  for (const double temperature : {0.0, 1.0}) {
    options.temperature = temperature;
    auto sampler = *Sampler::Create(options, 100);
    auto other = *Sampler::Create(options, 100);
    for (const int32_t ahead : {3, 0, 1, 5}) {
      const double peeked = sampler.Peek(ahead).uniform;
      for (int32_t i = 0; i < ahead; ++i) EXPECT_EQ(sampler.Next().uniform, other.Next().uniform);
      EXPECT_EQ(sampler.Next().uniform, peeked);
      EXPECT_EQ(other.Next().uniform, peeked);
    }
  }
  EXPECT_TRUE(Sampler::Create(options, 100)->can_look_ahead());
  options.repetition_penalty = 1.1;
  EXPECT_FALSE(Sampler::Create(options, 100)->can_look_ahead());
}

}  // namespace
}  // namespace kvblend::generate
