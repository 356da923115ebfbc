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

std::vector<JobId> PopAll(JobQueue& queue) {
  std::vector<JobId> order;
  while (!queue.empty()) order.push_back(queue.Pop());
  return order;
}

TEST(JobQueueTest, KeysTakeTurnsAndEachIsFirstInFirstOut) {
  JobQueue queue;
  for (JobId id : {1, 2, 3, 4}) queue.Push(id, Lane::kInteractive, "flood");
  queue.Push(5, Lane::kInteractive, "b");
  queue.Push(6, Lane::kInteractive, "c");
  queue.Push(7, Lane::kInteractive, "b");
  EXPECT_THAT(PopAll(queue), ElementsAre(1, 5, 6, 2, 7, 3, 4));
}

TEST(JobQueueTest, AKeyThatComesBackGoesToTheEnd) {
  JobQueue queue;
  queue.Push(1, Lane::kInteractive, "a");
  queue.Push(2, Lane::kInteractive, "b");
  queue.Push(3, Lane::kInteractive, "b");
  EXPECT_EQ(queue.Pop(), 1);
  queue.Push(4, Lane::kInteractive, "a");
  EXPECT_THAT(PopAll(queue), ElementsAre(2, 4, 3));
}

TEST(JobQueueTest, RemoveTakesOutOneJobOnce) {
  JobQueue queue;
  queue.Push(1, Lane::kBulk, "a");
  queue.Push(2, Lane::kBulk, "a");
  EXPECT_TRUE(queue.Remove(1));
  EXPECT_FALSE(queue.Remove(1));
  EXPECT_EQ(queue.size(Lane::kBulk), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_FALSE(queue.Remove(2));
  EXPECT_TRUE(queue.empty());
}

TEST(JobQueueTest, LanesShareAsDocumentedUnderSteadyLoad) {
  JobQueue queue;
  JobId id = 0;
  std::map<JobId, Lane> lane_of;
  const auto push = [&](Lane lane) {
    lane_of[++id] = lane;
    queue.Push(id, lane, "k");
  };
  for (Lane lane : {Lane::kInteractive, Lane::kBulk, Lane::kBackground}) push(lane);
  std::string order;
  for (int i = 0; i < 34; ++i) {
    const Lane lane = lane_of[queue.Pop()];
    order += "IbB"[static_cast<int>(lane)];  // b: bulk, B: background
    push(lane);
  }
  EXPECT_EQ(order, "IIIIbIIIIbIIIIbIBIIbIIIIbIIIIbIIIB");
}

TEST(JobQueueTest, LowerLanesRunAtOnceWhenHigherOnesAreEmpty) {
  JobQueue queue;
  queue.Push(1, Lane::kBackground, "k");
  queue.Push(2, Lane::kBulk, "k");
  EXPECT_THAT(PopAll(queue), ElementsAre(2, 1));
}

/// The same rules over plain vectors, by search.
class ModelQueue {
 public:
  struct Item {
    JobId id;
    std::string key;
  };

  void Push(JobId id, Lane lane, const std::string& key) {
    const int l = static_cast<int>(lane);
    items_[l].push_back({id, key});
    if (std::find(keys_[l].begin(), keys_[l].end(), key) == keys_[l].end()) keys_[l].push_back(key);
  }

  JobId Pop() {
    int chosen = -1;
    if (passed_[2] >= 16) {
      chosen = 2;
    } else if (passed_[1] >= 4) {
      chosen = 1;
    } else {
      chosen = !items_[0].empty() ? 0 : !items_[1].empty() ? 1 : 2;
    }
    for (int l = 0; l < 3; ++l) passed_[l] = l == chosen || items_[l].empty() ? 0 : passed_[l] + 1;
    const std::string key = keys_[chosen].front();
    const auto item = std::find_if(items_[chosen].begin(), items_[chosen].end(),
                                   [&](const Item& candidate) { return candidate.key == key; });
    const JobId id = item->id;
    items_[chosen].erase(item);
    keys_[chosen].erase(keys_[chosen].begin());
    keys_[chosen].push_back(key);
    DropKeyWithoutItems(chosen, key);
    return id;
  }

  bool Remove(JobId id) {
    for (int l = 0; l < 3; ++l) {
      const auto item = std::find_if(items_[l].begin(), items_[l].end(),
                                     [&](const Item& candidate) { return candidate.id == id; });
      if (item == items_[l].end()) continue;
      const std::string key = item->key;
      items_[l].erase(item);
      DropKeyWithoutItems(l, key);
      if (items_[l].empty()) passed_[l] = 0;
      return true;
    }
    return false;
  }

  int32_t size(int lane) const { return static_cast<int32_t>(items_[lane].size()); }
  /// Keys of the lane that have jobs.
  const std::vector<std::string>& keys(int lane) const { return keys_[lane]; }

 private:
  void DropKeyWithoutItems(int lane, const std::string& key) {
    for (const Item& item : items_[lane]) {
      if (item.key == key) return;
    }
    std::erase(keys_[lane], key);
  }

  std::array<std::vector<Item>, 3> items_;
  std::array<std::vector<std::string>, 3> keys_;
  std::array<int, 3> passed_ = {};
};

TEST(JobQueueTest, LanesThatMayNotStartKeepTheirPlace) {
  JobQueue queue;
  queue.Push(1, Lane::kInteractive, "a");
  queue.Push(2, Lane::kInteractive, "b");
  queue.Push(3, Lane::kBulk, "a");
  queue.Push(4, Lane::kBackground, "a");
  const LaneSet others = {false, true, true};
  EXPECT_EQ(queue.Front(Lane::kInteractive), 1);
  EXPECT_EQ(queue.Pop(others), 3);
  EXPECT_EQ(queue.Front(Lane::kBulk), std::nullopt);
  EXPECT_EQ(queue.Pop(others), 4);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_TRUE(queue.empty());
}

// A lane that could not start was not passed over: its patience counts turns that it could have had.
TEST(JobQueueTest, PatienceCountsOnlyTurnsThatALaneCouldHaveHad) {
  JobQueue queue;
  constexpr int kTurns = 2 * JobQueue::kBulkPatience;
  for (JobId id = 1; id <= kTurns; ++id) queue.Push(id, Lane::kInteractive, "a");
  queue.Push(100, Lane::kBulk, "a");
  for (JobId id = 1; id <= JobQueue::kBulkPatience + 1; ++id) EXPECT_EQ(queue.Pop({true, false, true}), id);
  for (JobId id = JobQueue::kBulkPatience + 2; id <= kTurns; ++id) EXPECT_EQ(queue.Pop(), id);
  EXPECT_EQ(queue.Pop(), 100);
}

TEST(JobQueueTest, RandomOperationsAgreeWithTheModelAndAreFair) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    JobQueue queue;
    ModelQueue model;
    std::map<JobId, std::pair<int, std::string>> jobs;
    std::array<std::map<std::string, int>, 3> turns_missed;  // per waiting key: picks of its lane without it
    std::array<int, 3> picks_missed = {};                    // per waiting lane
    JobId next = 1;
    for (int step = 0; step < 500; ++step) {
      const auto action = random() % 10;
      if (action < 5) {
        const int lane = static_cast<int>(random() % 3);
        const std::string key(1, static_cast<char>('a' + random() % 4));
        jobs[next] = {lane, key};
        queue.Push(next, static_cast<Lane>(lane), key);
        model.Push(next, static_cast<Lane>(lane), key);
        ++next;
      } else if (action < 6) {
        const auto id = static_cast<JobId>(1 + random() % static_cast<uint64_t>(next));
        ASSERT_EQ(queue.Remove(id), model.Remove(id));
      } else if (!queue.empty()) {
        const std::array<std::vector<std::string>, 3> keys = {model.keys(0), model.keys(1), model.keys(2)};
        const JobId id = queue.Pop();
        ASSERT_EQ(id, model.Pop());
        const auto [lane, key] = jobs[id];
        for (int l = 0; l < 3; ++l) {
          picks_missed[l] = l == lane || keys[l].empty() ? 0 : picks_missed[l] + 1;
        }
        ASSERT_LE(picks_missed[1], JobQueue::kBulkPatience + 1);
        ASSERT_LE(picks_missed[2], JobQueue::kBackgroundPatience);
        for (const std::string& waiting : keys[lane]) {
          int& missed = turns_missed[lane][waiting];
          missed = waiting == key ? 0 : missed + 1;
          ASSERT_LE(missed, 3) << "key " << waiting;  // one turn of each of the three others
        }
      }
      for (int l = 0; l < 3; ++l) {
        ASSERT_EQ(queue.size(static_cast<Lane>(l)), model.size(l));
        if (model.size(l) == 0) picks_missed[l] = 0;
        std::erase_if(turns_missed[l], [&](const auto& entry) {
          return std::find(model.keys(l).begin(), model.keys(l).end(), entry.first) == model.keys(l).end();
        });
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::schedule
