#include "engine/serve/sequences/step_turns.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend {
namespace {

using schedule::Priority::kHigh, schedule::Priority::kLow, schedule::Priority::kNormal;

Party Keyed(std::string key, schedule::Priority priority = kNormal) { return {priority, std::move(key)}; }

/// Answers that are written by turns: how many rows each has had.
class Written {
 public:
  explicit Written(int32_t num_rows) : num_rows_(num_rows), turns_(num_rows) {}

  void Add(const Party& party, int count = 1) {
    for (int i = 0; i < count; ++i) answers_.push_back({.party = party});
    rows_.resize(answers_.size());
  }
  void Step() {
    const std::vector<size_t> next = turns_.Next(answers_);
    EXPECT_EQ(next.size(), std::min(answers_.size(), static_cast<size_t>(num_rows_)));
    EXPECT_EQ(std::set<size_t>(next.begin(), next.end()).size(), next.size());
    for (const size_t i : next) {
      ASSERT_LT(i, answers_.size());
      ++rows_[i];
      answers_[i].last_turn = ++num_turns_;
    }
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) Step();
  }

  const std::vector<int>& rows() const { return rows_; }
  int RowsOf(const Party& party) const {
    int sum = 0;
    for (size_t i = 0; i < answers_.size(); ++i) sum += answers_[i].party == party ? rows_[i] : 0;
    return sum;
  }
  void Forget() { std::fill(rows_.begin(), rows_.end(), 0); }
  size_t size() const { return answers_.size(); }
  std::vector<Party> parties() const {
    std::vector<Party> parties;
    for (const StepTurns::Answer& answer : answers_) parties.push_back(answer.party);
    return parties;
  }
  bool MayJoin(const Party& party) const { return turns_.MayJoin(parties(), party); }

 private:
  const int32_t num_rows_;
  StepTurns turns_;
  std::vector<StepTurns::Answer> answers_;
  std::vector<int> rows_;
  int64_t num_turns_ = 0;
};

TEST(StepTurnsTest, AllHaveARowWhereThereAreEnough) {
  Written written(4);
  written.Step();  // nothing to write
  written.Add(Keyed("a"), 3);
  written.Add(Keyed("b", kLow));
  written.Steps(5);
  EXPECT_EQ(written.rows(), (std::vector<int>{5, 5, 5, 5}));
}

TEST(StepTurnsTest, WhoHasLessThanTheirShareIsInEveryStepAndOthersTakeTurns) {
  Written written(8);
  written.Add(Keyed("many"), 8);
  written.Add(Keyed("one"));
  written.Steps(80);
  EXPECT_EQ(written.RowsOf(Keyed("one")), 80);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(written.rows()[i], 70);
}

TEST(StepTurnsTest, KeysShareRowsEvenlyHoweverManyAnswersTheyHave) {
  Written written(4);
  written.Add(Keyed("a"), 5);
  written.Add(Keyed("b"), 3);
  written.Steps(300);
  EXPECT_EQ(written.RowsOf(Keyed("a")), 600);
  EXPECT_EQ(written.RowsOf(Keyed("b")), 600);
  // What one leaves, the others share.
  Written uneven(8);
  uneven.Add(Keyed("a"), 9);
  uneven.Add(Keyed("b"), 5);
  uneven.Add(Keyed("c"), 1);
  uneven.Steps(200);
  EXPECT_EQ(uneven.RowsOf(Keyed("c")), 200);
  EXPECT_EQ(uneven.RowsOf(Keyed("a")), 700);
  EXPECT_EQ(uneven.RowsOf(Keyed("b")), 700);
}

TEST(StepTurnsTest, SharesOfLessThanARowAddUp) {
  Written written(2);
  for (const char* key : {"a", "b", "c"}) written.Add(Keyed(key));
  written.Steps(300);
  EXPECT_EQ(written.rows(), (std::vector<int>{200, 200, 200}));
}

TEST(StepTurnsTest, PrioritiesShareRowsAsTheyShareTime) {
  Written written(7);
  written.Add(Keyed("a", kHigh), 10);
  written.Add(Keyed("a", kNormal), 4);
  written.Add(Keyed("a", kLow), 4);
  written.Steps(300);
  EXPECT_NEAR(written.RowsOf(Keyed("a", kHigh)), 1600, 2);
  EXPECT_NEAR(written.RowsOf(Keyed("a", kNormal)), 400, 2);
  EXPECT_NEAR(written.RowsOf(Keyed("a", kLow)), 100, 2);
}

// Keys share what their priority has: many keys of one do not take from another.
TEST(StepTurnsTest, ManyKeysDoNotOutweighAnotherPriority) {
  Written written(4);
  written.Add(Keyed("urgent", kHigh), 4);
  for (int i = 0; i < 4; ++i) written.Add(Keyed("normal " + std::to_string(i)));
  written.Steps(500);
  EXPECT_NEAR(written.RowsOf(Keyed("urgent", kHigh)), 1600, 2);  // four fifths
}

// Someone who has left rows to others is not owed them later.
TEST(StepTurnsTest, RowsThatWereNotWantedAreNoCredit) {
  Written written(4);
  written.Add(Keyed("many"), 6);
  written.Add(Keyed("one"));
  written.Steps(1000);
  written.Forget();
  written.Add(Keyed("one"), 5);
  written.Steps(10);
  EXPECT_NEAR(written.RowsOf(Keyed("many")), 20, 1);
}

TEST(StepTurnsTest, NewcomersJoinAFullBatchUpToTheirShare) {
  Written written(8);
  written.Add(Keyed("many"), 8);
  EXPECT_FALSE(written.MayJoin(Keyed("many")));
  int joined = 0;
  for (; written.MayJoin(Keyed("other")); ++joined) written.Add(Keyed("other"));
  EXPECT_EQ(joined, 4);
  EXPECT_FALSE(written.MayJoin(Keyed("many")));
  for (joined = 0; written.MayJoin(Keyed("third")); ++joined) written.Add(Keyed("third"));
  EXPECT_EQ(joined, 2);
  // But not without end: pages and a token's time are for so many only.
  for (joined = 0; written.MayJoin(Keyed("new " + std::to_string(joined))); ++joined) {
    written.Add(Keyed("new " + std::to_string(joined)));
  }
  EXPECT_EQ(written.size(), 16U);
}

TEST(StepTurnsTest, NobodyJoinsWhereEachHasOneAnswerUnlessMoreUrgent) {
  Written written(4);
  for (const char* key : {"a", "b", "c", "d"}) written.Add(Keyed(key));
  EXPECT_FALSE(written.MayJoin(Keyed("e")));
  EXPECT_FALSE(written.MayJoin(Keyed("e", kLow)));
  EXPECT_TRUE(written.MayJoin(Keyed("e", kHigh)));
  EXPECT_TRUE(written.MayJoin(Keyed("a", kHigh)));
}

TEST(StepTurnsTest, ALessUrgentOneJoinsThoseWhoHaveSeveral) {
  Written written(4);
  written.Add(Keyed("a", kHigh), 4);
  EXPECT_TRUE(written.MayJoin(Keyed("b", kLow)));
  written.Add(Keyed("b", kLow));
  EXPECT_FALSE(written.MayJoin(Keyed("b", kLow)));
  written.Steps(170);
  EXPECT_NEAR(written.RowsOf(Keyed("b", kLow)), 40, 1);  // a seventeenth of four rows
}

// Answers come and go: nobody who waits is passed over for long, and rows stay shares.
TEST(StepTurnsTest, RandomCompaniesAreServed) {
  std::mt19937 random(20261128);
  for (int round = 0; round < 20; ++round) {
    const auto num_rows = static_cast<int32_t>(1 + random() % 9);
    StepTurns turns(num_rows);
    std::vector<StepTurns::Answer> answers;
    std::vector<int> missed;  // steps, since its last turn
    const auto limit = static_cast<size_t>(StepTurns::kMostPerRow * num_rows);
    int64_t num_turns = 0;
    for (int step = 0; step < 600; ++step) {
      if (random() % 4 == 0 && answers.size() < limit) {
        const auto key = static_cast<char>('a' + random() % 4);
        answers.push_back({.party = Keyed(std::string(1, key)), .last_turn = num_turns});
        missed.push_back(0);
      }
      if (random() % 6 == 0 && !answers.empty()) {
        const auto gone = static_cast<std::ptrdiff_t>(random() % answers.size());
        answers.erase(answers.begin() + gone);
        missed.erase(missed.begin() + gone);
      }
      const std::vector<size_t> next = turns.Next(answers);
      ASSERT_EQ(next.size(), std::min(answers.size(), static_cast<size_t>(num_rows)));
      for (int& steps : missed) ++steps;
      for (const size_t i : next) {
        answers[i].last_turn = ++num_turns;
        missed[i] = 0;
      }
      // Each of four keys has a quarter of n rows at least, so that the last of 2n answers of one has its
      // turn in the eighth step; a few more for fractions.
      for (const int steps : missed) EXPECT_LE(steps, 8 + 4) << num_rows;
    }
  }
}

}  // namespace
}  // namespace kvblend
