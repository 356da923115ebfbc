// Which key is next, by how much time each has had: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM
// 1996) over seconds of work, with the virtual time of weighted fair queueing (Demers, Keshav, Shenker,
// SIGCOMM 1989).
//
// Every key has an account of the seconds that it has had, and the lowest is next. The floor is where an
// account of somebody who has always been here stands: all of them together have had the seconds that were
// charged, so each second raises the floor by a second over the number of keys that share the time. Who comes
// begins at the floor, or at the own account if that is higher. So
//  - a key that is away earns no credit, and one that comes back soon finds its account as it left it;
//  - it then waits for its turn among those who are here, and not for all who come after it: these begin
//    higher with every second.
// Start-time fair queueing alone has the least account of those who are here for a floor, which newcomers
// hold down as long as one of them waits.
#pragma once

#include <cstddef>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace kvblend::schedule {

/// Thread safety: none; the scheduler guards it.
class FairShare {
 public:
  /// A job of the key waits or runs from now on.
  void Join(const std::string& key);
  /// REQUIRES: as many calls of Join before.
  void Leave(const std::string& key);
  /// The key has had so many seconds, at least kLeast, each of which counts so much. It may be away
  /// meanwhile.
  void Charge(const std::string& key, double seconds, double counts = 1);
  /// The key's account, to be compared with those of others: the lowest is next. REQUIRES: it has joined.
  double Of(const std::string& key) const;

  /// What a turn counts however short it was, so that keys take turns.
  static constexpr double kLeast = 1e-6;

 private:
  struct Account {
    double had = 0;
    int jobs = 0;
  };
  /// No lower than the least account of those that are here, since nobody is owed the time in which those
  /// with less were away; and no higher than the highest, since nobody has to begin behind all.
  void KeepFloorAmongThoseHere();
  /// Now and then, forgets those who are away and would begin at the floor.
  void Forget();

  absl::flat_hash_map<std::string, Account> accounts_;
  int here_ = 0;      // keys with jobs
  double floor_ = 0;  // nobody who joins begins below it
  size_t forget_at_ = 32;
};

}  // namespace kvblend::schedule
