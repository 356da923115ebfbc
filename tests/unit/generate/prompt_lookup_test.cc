#include "engine/generate/prompt_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvblend::generate {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(PromptLookup, GuessesWhatFollowedTheLongestMatch) {
  PromptLookup lookup(std::vector<int32_t>{9, 1, 2, 3, 4, 5, 7, 2, 3, 8, 8, 1, 2, 3});
  EXPECT_EQ(lookup.Next(3).match, 3);  // 1 2 3, and not the later 2 3
  EXPECT_THAT(lookup.Next(3).tokens, ElementsAre(4, 5, 7));
  EXPECT_THAT(lookup.Next(1).tokens, ElementsAre(4));
  EXPECT_THAT(lookup.Next(0).tokens, IsEmpty());
  lookup.Append(6);
  EXPECT_EQ(lookup.Next(3).match, 0);
  EXPECT_THAT(lookup.Next(3).tokens, IsEmpty());
  lookup.Append(7);
  lookup.Append(2);
  EXPECT_THAT(lookup.Next(9).tokens, ElementsAre(3, 8, 8, 1, 2, 3, 6, 7, 2));  // up to what is there
}

TEST(PromptLookup, OfEqualMatchesTheLatest) {
  const PromptLookup lookup(std::vector<int32_t>{1, 2, 30, 1, 2, 40, 5, 1, 2});
  EXPECT_THAT(lookup.Next(1).tokens, ElementsAre(40));
}

TEST(PromptLookup, ShortSequencesGiveNothing) {
  EXPECT_THAT(PromptLookup({}).Next(4).tokens, IsEmpty());
  EXPECT_THAT(PromptLookup(std::vector<int32_t>{1}).Next(4).tokens, IsEmpty());
  EXPECT_THAT(PromptLookup(std::vector<int32_t>{1, 1}).Next(4).tokens, IsEmpty());
  EXPECT_THAT(PromptLookup(std::vector<int32_t>{1, 1, 1}).Next(4).tokens, ElementsAre(1));
}

// Against a search through the whole sequence, where no pair stands more often than is looked at.
TEST(PromptLookup, IsTheBestOfAllPlaces) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> tokens;
    PromptLookup lookup({});
    for (int i = 0; i < 60; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % 6));
      lookup.Append(tokens.back());
      const auto size = static_cast<int32_t>(tokens.size());
      int32_t best = 0, best_end = -1, places = 0;
      for (int32_t end = size - 1; end >= 2; --end) {
        int32_t match = 0;
        while (match < PromptLookup::kMaxMatch && match < end &&
               tokens[end - 1 - match] == tokens[size - 1 - match]) {
          ++match;
        }
        if (match < PromptLookup::kMinMatch || ++places > PromptLookup::kMaxPlaces) continue;
        if (match > best) {
          best = match;
          best_end = end;
        }
      }
      const PromptLookup::Guess guess = lookup.Next(5);
      ASSERT_EQ(guess.match, best);
      if (best == 0) continue;
      const std::vector<int32_t> expected(tokens.begin() + best_end,
                                          tokens.begin() + std::min(best_end + 5, size));
      ASSERT_EQ(std::vector<int32_t>(guess.tokens.begin(), guess.tokens.end()), expected);
    }
  }
}

}  // namespace
}  // namespace kvblend::generate
