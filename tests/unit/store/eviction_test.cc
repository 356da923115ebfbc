#include "engine/store/eviction.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::store {
namespace {

std::vector<EvictionQueue::EntryId> PopAll(EvictionQueue& queue) {
  std::vector<EvictionQueue::EntryId> order;
  while (const auto id = queue.Pop()) order.push_back(*id);
  return order;
}

TEST(EvictionQueueTest, CheapestPerByteGoesFirst) {
  EvictionQueue queue;
  queue.Add(1, /*frequency=*/1, /*cost=*/4.0, /*bytes=*/2);  // 2 per byte
  queue.Add(2, /*frequency=*/1, /*cost=*/8.0, /*bytes=*/8);  // 1
  queue.Add(3, /*frequency=*/3, /*cost=*/8.0, /*bytes=*/8);  // 3
  queue.Add(4, /*frequency=*/9, /*cost=*/0.0, /*bytes=*/1);  // 0
  EXPECT_EQ(queue.bytes(), 19);
  EXPECT_EQ(PopAll(queue), (std::vector<EvictionQueue::EntryId>{4, 2, 1, 3}));
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_EQ(queue.size(), 0);
}

TEST(EvictionQueueTest, EqualsGoInOrderOfWaiting) {
  EvictionQueue queue;
  for (const EvictionQueue::EntryId id : {7, 3, 5}) queue.Add(id, 1, 1.0, 1);
  EXPECT_EQ(PopAll(queue), (std::vector<EvictionQueue::EntryId>{7, 3, 5}));
}

TEST(EvictionQueueTest, TheClockLetsValuableEntriesGrowOld) {
  EvictionQueue queue;
  queue.Add(100, 1, 3.5, 1);
  // Entries worth 1 come and go. Each departure raises the clock by 1, so that after three of them a newcomer
  // (clock 3 + 1) outranks the old entry (3.5), which then goes.
  std::vector<EvictionQueue::EntryId> evicted;
  for (EvictionQueue::EntryId id = 0; id < 5; ++id) {
    queue.Add(id, 1, 1.0, 1);
    evicted.push_back(*queue.Pop());
  }
  EXPECT_EQ(evicted, (std::vector<EvictionQueue::EntryId>{0, 1, 2, 100, 3}));
}

TEST(EvictionQueueTest, RemovedEntriesLeaveTheClockAlone) {
  EvictionQueue queue;
  const auto ticket = queue.Add(1, 1, 5.0, 1);
  queue.Remove(ticket);
  EXPECT_EQ(queue.clock(), 0.0);
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_FALSE(queue.Pop().has_value());
}

// Against a list that is searched from end to end, with the definition written out again.
TEST(EvictionQueueTest, RandomOperationsAgainstAList) {
  struct Row {
    double priority;
    int order;
    EvictionQueue::Ticket ticket;
  };
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{std::random_device()()}}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    EvictionQueue queue;
    std::map<EvictionQueue::EntryId, Row> model;
    double clock = 0;
    for (int step = 0; step < 5000; ++step) {
      const auto id = static_cast<EvictionQueue::EntryId>(random() % 64);
      if (random() % 8 == 0) {
        const auto lowest = std::min_element(model.begin(), model.end(), [](const auto& a, const auto& b) {
          return std::pair(a.second.priority, a.second.order) < std::pair(b.second.priority, b.second.order);
        });
        const auto popped = queue.Pop();
        ASSERT_EQ(popped.has_value(), lowest != model.end());
        if (popped.has_value()) {
          ASSERT_EQ(*popped, lowest->first);
          clock = lowest->second.priority;
          model.erase(lowest);
        }
      } else if (model.contains(id)) {
        queue.Remove(model.at(id).ticket);
        model.erase(id);
      } else {
        const auto frequency = static_cast<int64_t>(1 + random() % 5);
        const auto cost = static_cast<double>(random() % 4);
        const auto bytes = static_cast<int64_t>(1 + random() % 4);
        const auto ticket = queue.Add(id, frequency, cost, bytes);
        model[id] = {clock + static_cast<double>(frequency) * cost / static_cast<double>(bytes), step,
                     ticket};
      }
      int64_t bytes = 0;
      for (const auto& [key, row] : model) bytes += row.ticket.bytes;
      ASSERT_EQ(queue.bytes(), bytes);
      ASSERT_EQ(queue.size(), static_cast<int64_t>(model.size()));
      ASSERT_EQ(queue.clock(), clock);
    }
  }
}

}  // namespace
}  // namespace kvblend::store
