#include "engine/store/eviction.h"

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
  queue.Add(1, /*frequency=*/2, /*cost=*/4.0, /*bytes=*/4);  // 2 per byte
  queue.Add(2, /*frequency=*/2, /*cost=*/4.0, /*bytes=*/8);  // 1
  queue.Add(3, /*frequency=*/3, /*cost=*/8.0, /*bytes=*/8);  // 3
  queue.Add(4, /*frequency=*/9, /*cost=*/0.0, /*bytes=*/1);  // 0
  EXPECT_EQ(queue.bytes(), 21);
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
  queue.Add(100, 2, 3.5, 2);
  // Entries worth 1 come and go. Each departure raises the clock by 1, so that after three of them a newcomer
  // (clock 3 + 1) outranks the old entry (3.5), which then goes.
  std::vector<EvictionQueue::EntryId> evicted;
  for (EvictionQueue::EntryId id = 0; id < 5; ++id) {
    queue.Add(id, 2, 1.0, 2);
    evicted.push_back(*queue.Pop());
  }
  EXPECT_EQ(evicted, (std::vector<EvictionQueue::EntryId>{0, 1, 2, 100, 3}));
}

TEST(EvictionQueueTest, WhatIsUsedOnceDisplacesItsLike) {
  EvictionQueue queue;
  for (EvictionQueue::EntryId id = 0; id < 90; ++id) queue.Add(id, 2, 0.001, 1);
  // However dear to compute: thousands that are used once leave the others alone.
  for (EvictionQueue::EntryId id = 100; id < 5000; ++id) {
    queue.Add(id, 1, 1000.0, 1);
    if (queue.size() > 100) {
      ASSERT_EQ(queue.Pop(), id - 10);
    }
  }
  // With a tenth of the bytes they are safe, and the others give way among themselves; with more they go.
  EXPECT_EQ(queue.Pop(), EvictionQueue::EntryId{0});
  EXPECT_EQ(queue.Pop(), EvictionQueue::EntryId{4990});
}

TEST(EvictionQueueTest, AnOwnersEntriesGoInTheSameOrder) {
  const int owners[2] = {};
  EvictionQueue queue(/*by_owner=*/true);
  queue.Add(1, 2, 1.0, 2, &owners[0]);
  queue.Add(2, 2, 2.0, 2, &owners[1]);
  queue.Add(3, 2, 3.0, 2, &owners[0]);
  queue.Add(4, 1, 9.0, 2, &owners[1]);
  EXPECT_EQ(queue.bytes_of(&owners[0]), 4);
  EXPECT_EQ(queue.bytes_of(&owners[1]), 4);
  EXPECT_EQ(queue.PopOf(&owners[1]),
            EvictionQueue::EntryId{4});  // half of its owner's: too much on probation
  EXPECT_EQ(queue.PopOf(&owners[1]), EvictionQueue::EntryId{2});
  EXPECT_FALSE(queue.PopOf(&owners[1]).has_value());
  EXPECT_EQ(queue.bytes_of(&owners[1]), 0);
  EXPECT_EQ(PopAll(queue), (std::vector<EvictionQueue::EntryId>{1, 3}));
}

// Against a list that is searched from end to end, with the definition written out again.
TEST(EvictionQueueTest, RandomOperationsAgainstAList) {
  struct Row {
    double priority;
    int order;
    EvictionQueue::Ticket ticket;
    bool once;
    int owner;
  };
  const int owners[3] = {};
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{std::random_device()()}}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    EvictionQueue queue(/*by_owner=*/true);
    std::map<EvictionQueue::EntryId, Row> model;
    double clocks[2] = {};  // of those used once, of the others
    // owner -1: any
    const auto lowest = [&](int owner, bool once) {
      auto best = model.end();
      for (auto it = model.begin(); it != model.end(); ++it) {
        if (it->second.once != once || (owner >= 0 && it->second.owner != owner)) continue;
        if (best == model.end() || std::pair(it->second.priority, it->second.order) <
                                       std::pair(best->second.priority, best->second.order)) {
          best = it;
        }
      }
      return best;
    };
    const auto bytes_of = [&](int owner, bool once) {
      int64_t bytes = 0;
      for (const auto& [id, row] : model) {
        if (row.once == once && (owner < 0 || row.owner == owner)) bytes += row.ticket.bytes;
      }
      return bytes;
    };
    for (int step = 0; step < 5000; ++step) {
      const auto id = static_cast<EvictionQueue::EntryId>(random() % 64);
      if (const uint64_t pick = random() % 8; pick < 2) {
        const int owner = pick == 0 ? -1 : static_cast<int>(random() % 3);
        const auto once_bytes = static_cast<double>(bytes_of(owner, true));
        const auto other_bytes = static_cast<double>(bytes_of(owner, false));
        const bool once = once_bytes > 0.1 * (once_bytes + other_bytes) || other_bytes == 0;
        const auto expected = lowest(owner, once);
        const auto popped = owner < 0 ? queue.Pop() : queue.PopOf(&owners[owner]);
        ASSERT_EQ(popped.has_value(), expected != model.end());
        if (popped.has_value()) {
          ASSERT_EQ(*popped, expected->first);
          if (expected == lowest(-1, once)) clocks[once ? 0 : 1] = expected->second.priority;
          model.erase(expected);
        }
      } else if (model.contains(id)) {
        queue.Remove(model.at(id).ticket);
        model.erase(id);
      } else {
        const auto frequency = static_cast<int64_t>(1 + random() % 3);
        const auto cost = static_cast<double>(random() % 4);
        const auto bytes = static_cast<int64_t>(1 + random() % 4);
        const int owner = static_cast<int>(random() % 3);
        const auto ticket = queue.Add(id, frequency, cost, bytes, &owners[owner]);
        model[id] = {clocks[frequency == 1 ? 0 : 1] +
                         static_cast<double>(frequency) * cost / static_cast<double>(bytes),
                     step, ticket, frequency == 1, owner};
      }
      ASSERT_EQ(queue.bytes(), bytes_of(-1, true) + bytes_of(-1, false));
      ASSERT_EQ(queue.bytes_of(&owners[1]), bytes_of(1, true) + bytes_of(1, false));
      ASSERT_EQ(queue.size(), static_cast<int64_t>(model.size()));
    }
  }
}

}  // namespace
}  // namespace kvblend::store
