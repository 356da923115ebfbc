#include "engine/schedule/job_queue.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::schedule {
namespace {

using ::testing::ElementsAre;

/// Every job takes as long.
std::vector<JobId> PopAll(JobQueue& queue, const std::map<JobId, std::string>& keys) {
  std::vector<JobId> order;
  while (!queue.empty()) {
    FairShare& share = queue.share(Lane::kInteractive);
    const std::string key = keys.at(*queue.Front(Lane::kInteractive));
    share.Join(key);
    order.push_back(queue.Pop(Lane::kInteractive));
    share.Charge(key, 1);
    share.Leave(key);
  }
  return order;
}

TEST(JobQueueTest, KeysTakeTurnsAndEachIsFirstInFirstOut) {
  JobQueue queue;
  const std::map<JobId, std::string> keys = {{1, "flood"}, {2, "flood"}, {3, "flood"}, {4, "flood"},
                                             {5, "b"},     {6, "c"},     {7, "b"}};
  for (const auto& [id, key] : keys) queue.Push(id, Lane::kInteractive, key);
  EXPECT_THAT(PopAll(queue, keys), ElementsAre(1, 5, 6, 2, 7, 3, 4));
}

TEST(JobQueueTest, AKeyThatHasHadMoreWaitsForTheOthers) {
  JobQueue queue;
  const std::map<JobId, std::string> keys = {{1, "a"}, {2, "a"}, {3, "b"}, {4, "b"}, {5, "b"}};
  for (const auto& [id, key] : keys) queue.Push(id, Lane::kInteractive, key);
  queue.share(Lane::kInteractive).Charge("a", 2.5);
  EXPECT_THAT(PopAll(queue, keys), ElementsAre(3, 4, 5, 1, 2));
}

TEST(JobQueueTest, JobsInOrderAreTheNextKeysFirst) {
  JobQueue queue;
  queue.Push(1, Lane::kInteractive, "a");
  queue.Push(2, Lane::kInteractive, "b");
  queue.Push(3, Lane::kInteractive, "a");
  queue.Push(4, Lane::kBulk, "a");
  queue.share(Lane::kInteractive).Charge("a", 1);
  EXPECT_EQ(queue.InOrder(Lane::kInteractive, Priority::kNormal, 9), (std::vector<JobId>{2, 1, 3}));
  EXPECT_EQ(queue.InOrder(Lane::kInteractive, Priority::kNormal, 2), (std::vector<JobId>{2, 1}));
  EXPECT_TRUE(queue.InOrder(Lane::kInteractive, Priority::kHigh, 9).empty());
  queue.Take(3);
  EXPECT_EQ(queue.InOrder(Lane::kInteractive, Priority::kNormal, 9), (std::vector<JobId>{2, 1}));
}

TEST(JobQueueTest, RemoveTakesOutOneJobOnce) {
  JobQueue queue;
  queue.Push(1, Lane::kBulk, "a");
  queue.Push(2, Lane::kBulk, "a");
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_EQ(queue.size(Lane::kBulk), 1);
  EXPECT_EQ(queue.Front(Lane::kInteractive), std::nullopt);
  EXPECT_EQ(queue.Pop(Lane::kBulk), 2);
  EXPECT_FALSE(queue.Remove(2));
  EXPECT_TRUE(queue.empty());
}

TEST(FairShareTest, WhoIsAwayGathersNoCreditAndIsNotForgottenAtOnce) {
  FairShare share;
  share.Join("a");
  share.Charge("a", 10);
  share.Join("b");  // as if it had had what the least has had
  EXPECT_EQ(share.Of("b"), 10);
  share.Charge("a", 5);
  share.Leave("a");
  share.Join("a");  // that was no way to get rid of a debt
  EXPECT_EQ(share.Of("a"), 15);
  share.Charge("b", 20);
  share.Leave("b");
  share.Charge("a", 100);
  share.Join("b");
  EXPECT_EQ(share.Of("b"), 115);
}

// One comes back while others, who have never been here, come without end.
TEST(FairShareTest, NewcomersWithoutEndDoNotKeepOutWhoComesBack) {
  FairShare share;
  std::vector<std::string> here;
  int next = 0;
  const auto newcomer = [&] {
    here.push_back(std::to_string(next++));
    share.Join(here.back());
  };
  for (int i = 0; i < 20; ++i) newcomer();
  share.Join("back");
  share.Charge("back", 1);
  share.Leave("back");
  share.Join("back");
  here.push_back("back");
  int turns = 0;
  while (true) {
    const auto lowest = std::min_element(
        here.begin(), here.end(), [&](const auto& a, const auto& b) { return share.Of(a) < share.Of(b); });
    if (*lowest == "back") break;
    ASSERT_LT(++turns, 2 * 21) << "two rounds of all who were here";
    share.Charge(*lowest, 1);
    share.Leave(*lowest);
    here.erase(lowest);
    newcomer();
  }
  EXPECT_GE(turns, 20) << "those who waited before it came back go first";
}

// The floor never makes up time: whoever is here alone owes nothing to those who come.
TEST(FairShareTest, OneWhoWasAloneBeginsLevelWithWhoComes) {
  FairShare share;
  share.Join("alone");
  share.Charge("alone", 100);
  share.Join("late");
  EXPECT_EQ(share.Of("late"), share.Of("alone"));
  share.Charge("late", 3);
  share.Leave("late");
  share.Leave("alone");
  share.Charge("late", 5);  // behind its last job
  share.Join("alone");
  share.Join("late");
  EXPECT_EQ(share.Of("late"), share.Of("alone")) << "everybody was away";
}

// Whoever comes and goes: of two keys that have jobs all the while, neither gets more than one job ahead of
// the other.
TEST(JobQueueTest, RandomOperationsAreFair) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    JobQueue queue;
    FairShare& share = queue.share(Lane::kInteractive);
    std::map<std::string, std::vector<JobId>> waiting;
    std::map<std::pair<std::string, std::string>, std::array<double, 2>> had;  // while both had jobs
    JobId next = 1;
    for (int step = 0; step < 800; ++step) {
      const std::string key(1, static_cast<char>('a' + random() % 4));
      std::vector<JobId>& jobs = waiting[key];
      if (random() % 2 == 0) {
        queue.Push(next, Lane::kInteractive, key);
        jobs.push_back(next++);
      } else if (random() % 8 == 0 && !jobs.empty()) {
        const size_t index = random() % jobs.size();
        EXPECT_TRUE(queue.Remove(jobs[index]));
        jobs.erase(jobs.begin() + static_cast<int64_t>(index));
      } else if (!queue.empty()) {
        const JobId id = *queue.Front(Lane::kInteractive);
        const auto owner = std::find_if(waiting.begin(), waiting.end(), [&](const auto& entry) {
          return !entry.second.empty() && entry.second[0] == id;
        });
        ASSERT_NE(owner, waiting.end());  // the first of its key
        const double seconds = static_cast<double>(1 + random() % 100) / 100;
        share.Join(owner->first);
        EXPECT_EQ(queue.Pop(Lane::kInteractive), id);
        owner->second.erase(owner->second.begin());
        share.Charge(owner->first, seconds);
        share.Leave(owner->first);
        for (auto& [pair, both] : had) {
          if (pair.first == owner->first) both[0] += seconds;
          if (pair.second == owner->first) both[1] += seconds;
        }
      }
      for (const auto& [a, jobs_of_a] : waiting) {
        for (const auto& [b, jobs_of_b] : waiting) {
          if (a >= b) continue;
          if (jobs_of_a.empty() || jobs_of_b.empty()) {
            had.erase({a, b});
            continue;
          }
          const auto& both = had[{a, b}];
          // They may begin up to one job apart.
          ASSERT_LE(std::abs(both[0] - both[1]), 2.0) << a << " and " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::schedule
