// The order in which waiting jobs get their turn.
//
// Within a lane the fairness key that has had least (fair_share.h) is next; a key's own jobs come in the order of their
// arrival. So a flood of one key's jobs delays another's by no more than what is being done.
//
// Thread safety: none; the scheduler guards it.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "engine/schedule/fair_share.h"

namespace kvblend::schedule {

enum class Lane : uint8_t {
  kInteractive,  // somebody waits for the answer
  kBulk,         // chunk puts
  kBackground,   // chunk computations behind responses
};
inline constexpr int kNumLanes = 3;

using JobId = int64_t;

class JobQueue {
 public:
  /// REQUIRES: `id` is not in the queue.
  void Push(JobId id, Lane lane, const std::string& fairness_key);
  /// The next job of a lane; nullopt when the lane is empty.
  std::optional<JobId> Front(Lane lane) const;
  /// Takes out the next job of a lane. REQUIRES: it has one.
  JobId Pop(Lane lane);
  /// Returns whether the job was there.
  bool Remove(JobId id);

  /// What the keys of a lane have had. Those with jobs in the queue have joined.
  FairShare& share(Lane lane) { return lanes_[static_cast<int>(lane)].share; }
  const FairShare& share(Lane lane) const { return lanes_[static_cast<int>(lane)].share; }

  bool empty() const { return places_.empty(); }
  int32_t size(Lane lane) const { return lanes_[static_cast<int>(lane)].size; }

 private:
  struct Turn {
    std::string fairness_key;
    std::list<JobId> jobs;  // never empty
  };
  using Turns = std::list<Turn>;
  struct LaneQueue {
    Turns turns;  // among equals the first is next
    absl::flat_hash_map<std::string, Turns::iterator> turn_of_key;
    FairShare share;
    int32_t size = 0;
  };
  struct Place {
    int lane;
    Turns::iterator turn;
    std::list<JobId>::iterator job;
  };

  static Turns::const_iterator Next(const LaneQueue& lane);
  static void EndTurnIfEmpty(LaneQueue& lane, Turns::iterator turn);

  std::array<LaneQueue, kNumLanes> lanes_;
  absl::flat_hash_map<JobId, Place> places_;
};

}  // namespace kvblend::schedule
