// The order in which waiting jobs get their turn.
//
// Within a lane, fairness keys take turns, one job each; a key's own jobs come in the order of their arrival,
// and a key without jobs loses its place. So a key waits for at most one job of each other key, however many
// those have sent.
//
// Between lanes, interactive jobs come before bulk and those before background ones, but no lane starves: a
// lane that has been passed over kBulkPatience (kBackgroundPatience) times in a row while it had jobs is
// next. Under steady load from all lanes a bulk job follows every 4 others, and every 17th job is a
// background one.
//
// Thread safety: none; the scheduler guards it.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace kvblend::schedule {

enum class Lane : uint8_t {
  kInteractive,  // somebody waits for the answer
  kBulk,         // chunk puts
  kBackground,   // chunk computations behind responses
};
inline constexpr int kNumLanes = 3;

using JobId = int64_t;

/// A choice of lanes: for each, whether it is in it.
using LaneSet = std::array<bool, kNumLanes>;
inline constexpr LaneSet kAllLanes = {true, true, true};

class JobQueue {
 public:
  static constexpr int kBulkPatience = 4;
  static constexpr int kBackgroundPatience = 16;

  /// REQUIRES: `id` is not in the queue.
  void Push(JobId id, Lane lane, const std::string& fairness_key);
  /// The next job of a lane; nullopt when the lane is empty.
  std::optional<JobId> Front(Lane lane) const;
  /// Takes out the next job of these lanes; other lanes do not count as passed over.
  /// REQUIRES: one of these lanes has a job.
  JobId Pop(const LaneSet& lanes = kAllLanes);
  /// Returns whether the job was there. Constant time.
  bool Remove(JobId id);

  bool empty() const { return places_.empty(); }
  int32_t size(Lane lane) const { return lanes_[static_cast<int>(lane)].size; }

 private:
  struct Turn {
    std::string fairness_key;
    std::list<JobId> jobs;  // never empty
  };
  struct LaneQueue {
    std::list<Turn> turns;  // next first
    absl::flat_hash_map<std::string, std::list<Turn>::iterator> turn_of_key;
    int32_t size = 0;
    int32_t times_passed_over = 0;  // since it was last served or empty
  };
  struct Place {
    int lane;
    std::list<Turn>::iterator turn;
    std::list<JobId>::iterator job;
  };

  int ChooseLane(const LaneSet& lanes) const;
  static void EndTurnIfEmpty(LaneQueue& lane, std::list<Turn>::iterator turn);

  std::array<LaneQueue, kNumLanes> lanes_;
  absl::flat_hash_map<JobId, Place> places_;
};

}  // namespace kvblend::schedule
