// Which key is next, by how much time each has had: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM
// 1996) over seconds of work.
// A key that is away earns no credit, and one that comes back soon finds its account as it left it.
#pragma once

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
  /// The least of those that are here; what those who are away are forgotten by.
  void Settle();

  absl::flat_hash_map<std::string, Account> accounts_;
  double floor_ = 0;  // nobody who joins begins below it
};

}  // namespace kvblend::schedule
