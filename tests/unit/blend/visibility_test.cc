#include "engine/blend/visibility.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>

#include "engine/blend/blended_prefill.h"

namespace kvblend::blend {
namespace {

using testing::ElementsAre;

bool Sees(int32_t row, int32_t window, int32_t key) {
  return key <= row && (window == 0 || row - key < window);
}

// Against what follows from the definition, key by key.
TEST(Visibility, AnySeesIsThatOfEachPair) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::set<int32_t> rows;
    for (size_t n = random() % 5; n > 0; --n) rows.insert(static_cast<int32_t>(random() % 30));
    const std::vector<int32_t> readers(rows.begin(), rows.end());
    const auto window = static_cast<int32_t>(random() % 8), begin = static_cast<int32_t>(random() % 30),
               end = begin + static_cast<int32_t>(random() % 6);
    bool any = false;
    for (const int32_t row : readers) {
      for (int32_t key = begin; key < end; ++key) any = any || Sees(row, window, key);
    }
    EXPECT_EQ(AnySees(readers, window, begin, end), any)
        << "window " << window << ", keys " << begin << " to " << end << ", rows "
        << testing::PrintToString(readers);
  }
}

// What reaches the last logits, or a token behind the prompt, by way of any layer.
TEST(Visibility, FirstNeededIsWhatReachesTheEnd) {
  std::mt19937 random(8);
  for (int i = 0; i < 500; ++i) {
    std::vector<int32_t> windows(1 + random() % 5);
    for (int32_t& window : windows) window = static_cast<int32_t>(random() % 6);
    const int32_t tokens = 1 + static_cast<int32_t>(random() % 25);
    const std::vector<FirstNeeded> first = FirstNeededPositions(windows, tokens);
    std::set<int32_t> rows = {tokens - 1};  // whose outputs matter
    for (size_t layer = windows.size(); layer-- > 0;) {
      std::set<int32_t> keys;
      for (const int32_t row : rows) {
        for (int32_t key = 0; key <= row; ++key) {
          if (Sees(row, windows[layer], key)) keys.insert(key);
        }
      }
      EXPECT_EQ(first[layer].row, *rows.begin());
      EXPECT_EQ(first[layer].kv, *keys.begin());
      rows = keys;
    }
  }
}

TEST(Visibility, ReadersAreThoseThatAttendInALayer) {
  const std::vector<int32_t> positions = {3, 5, 9, 12};
  const std::vector<FirstNeeded> first = FirstNeededPositions(std::vector<int32_t>{0, 4, 2}, 13);
  EXPECT_THAT((Readers{positions, {}}.In(2)), ElementsAre(3, 5, 9, 12));
  EXPECT_THAT((Readers{positions, first}.In(2)), ElementsAre(12));
  EXPECT_THAT((Readers{positions, first}.In(1)), ElementsAre(12));  // 11 is no row of this pass
  EXPECT_THAT((Readers{positions, first}.In(0)), ElementsAre(9, 12));
}

TEST(VotingLayers, AreThoseThatSeeThePromptWhereThereAreSuch) {
  const std::vector<int32_t> mixed = {512, 512, 0, 512}, all = {512, 512, 512, 512};
  EXPECT_THAT(VotingLayers(mixed, 4, 6000), ElementsAre(2));
  EXPECT_THAT(VotingLayers(mixed, 2, 6000), ElementsAre(0, 1));
  EXPECT_THAT(VotingLayers(mixed, 4, 512), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(VotingLayers(all, 4, 6000), ElementsAre(0, 1, 2, 3));
}

TEST(VotingLayers, OfTheFirstEighthOnlyWhereThereAreNoOthers) {
  const std::vector<int32_t> full(17, 0);
  EXPECT_THAT(VotingLayers(full, 5, 6000), ElementsAre(2, 3, 4));
  EXPECT_THAT(VotingLayers(full, 3, 6000), ElementsAre(2));
  EXPECT_THAT(VotingLayers(full, 2, 6000), ElementsAre(0, 1));
  EXPECT_EQ(VotingLayers(full, 17, 6000).size(), 15u);
  std::vector<int32_t> mixed(17, 512);
  mixed[1] = mixed[9] = 0;
  EXPECT_THAT(VotingLayers(mixed, 17, 6000), ElementsAre(9));
  EXPECT_THAT(VotingLayers(mixed, 9, 6000), ElementsAre(1));
  EXPECT_THAT(VotingLayers(mixed, 1, 6000), ElementsAre(0));
}

}  // namespace
}  // namespace kvblend::blend
