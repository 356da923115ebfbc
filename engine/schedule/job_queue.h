// The order in which waiting jobs get their turn.
//
// Each lane has a queue per priority. In it, the fairness key that has had the least time (fair_share.h) is
// next; jobs of the same key come in the order of their arrival. So many jobs of one key do not delay those
// of another, except by the work in progress.
//
// Thread safety: none; the scheduler guards it.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/schedule/fair_share.h"

namespace kvblend::schedule {

enum class Lane : uint8_t {
  kInteractive,  // somebody waits for the answer
  kBulk,         // chunk puts
  kBackground,   // chunks that are computed after their requests were answered
};
inline constexpr int kNumLanes = 3;

/// The most urgent first.
enum class Priority : uint8_t { kHigh, kNormal, kLow };
inline constexpr std::array kPriorities = {Priority::kHigh, Priority::kNormal, Priority::kLow};

/// How lanes share the time, and the priorities of a lane its part of it, by their numbers.
inline constexpr std::array<double, 3> kTimeShares = {16, 4, 1};
static_assert(kTimeShares.size() == kNumLanes && kTimeShares.size() == kPriorities.size());

using JobId = int64_t;

class JobQueue {
 public:
  /// REQUIRES: `id` is not in the queue.
  void Push(JobId id, Lane lane, const std::string& fairness_key, Priority priority = Priority::kNormal);
  /// The next job of a lane and priority; nullopt when there is none.
  std::optional<JobId> Front(Lane lane, Priority priority = Priority::kNormal) const;
  /// The first `most` jobs of a lane and priority: all of the key whose turn it is, then all of the next one,
  /// and so on.
  std::vector<JobId> InOrder(Lane lane, Priority priority, size_t most) const;
  /// Takes out the next job of a lane and priority. REQUIRES: there is one.
  JobId Pop(Lane lane, Priority priority = Priority::kNormal);
  /// Takes out this job, which is its key's turn. REQUIRES: it is in the queue.
  void Take(JobId id);
  /// Returns whether the job was there.
  bool Remove(JobId id);

  /// How much time the keys of a lane and priority have had. Keys with jobs in the queue have joined.
  FairShare& share(Lane lane, Priority priority = Priority::kNormal) {
    return queues_[IndexOf(lane, priority)].share;
  }
  const FairShare& share(Lane lane, Priority priority = Priority::kNormal) const {
    return queues_[IndexOf(lane, priority)].share;
  }

  /// Whether jobs of the key are in any of the other lanes than kBackground.
  bool HasForeground(const std::string& fairness_key) const;

  bool empty() const { return places_.empty(); }
  int32_t size(Lane lane, Priority priority) const { return queues_[IndexOf(lane, priority)].size; }
  /// The jobs of a lane, of all priorities.
  int32_t size(Lane lane) const;

 private:
  struct Turn {
    std::string fairness_key;
    std::list<JobId> jobs;  // never empty
  };
  using Turns = std::list<Turn>;
  struct Queue {
    Turns turns;  // among equals the first is next
    absl::flat_hash_map<std::string, Turns::iterator> turn_of_key;
    FairShare share;
    int32_t size = 0;
  };
  struct Place {
    size_t queue;
    Turns::iterator turn;
    std::list<JobId>::iterator job;
  };

  static size_t IndexOf(Lane lane, Priority priority) {
    return static_cast<size_t>(lane) * kPriorities.size() + static_cast<size_t>(priority);
  }
  static bool IsBefore(const Queue& queue, const Turn& a, const Turn& b) {
    return queue.share.Of(a.fairness_key) < queue.share.Of(b.fairness_key);
  }
  static Turns::const_iterator Next(const Queue& queue);
  static void EndTurnIfEmpty(Queue& queue, Turns::iterator turn);

  std::array<Queue, kNumLanes * kPriorities.size()> queues_;
  absl::flat_hash_map<JobId, Place> places_;
};

}  // namespace kvblend::schedule
