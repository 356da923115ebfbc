// Which idle entry to give up first.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/btree_set.h"

namespace kvblend::store {

/// GreedyDual-Size-Frequency: an entry's priority is clock + frequency * cost / bytes; the lowest goes first,
/// and the clock moves up to its priority. So an entry stays the longer the more computing each of its bytes
/// saves and the more often it was asked for, and loses to newer ones as the clock overtakes it. (Cao and
/// Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997; Cherkasova, "Improving WWW proxies
/// performance with Greedy-Dual-Size-Frequency caching policy", HP Labs HPL-98-69, 1998.)
///
/// Entries that may not be evicted are simply not in the queue. Not thread-safe.
class EvictionQueue {
 public:
  using EntryId = uint64_t;

  /// An entry's place in the queue, to take it out with.
  struct Ticket {
    double priority = 0;
    uint64_t sequence = 0;  // among equals, the one that has waited longest goes first
    EntryId id = 0;
    int64_t bytes = 0;

    friend bool operator<(const Ticket& a, const Ticket& b) {
      return a.priority != b.priority ? a.priority < b.priority : a.sequence < b.sequence;
    }
  };

  /// REQUIRES: frequency >= 1, cost finite and >= 0, bytes >= 1, id not in the queue.
  Ticket Add(EntryId id, int64_t frequency, double cost, int64_t bytes);
  /// Takes out an entry that is used or erased; the clock stays. REQUIRES: it is in the queue.
  void Remove(const Ticket& ticket);
  /// Takes out the next one to evict; nothing when the queue is empty.
  std::optional<EntryId> Pop();

  int64_t size() const { return static_cast<int64_t>(queue_.size()); }
  /// Sum of bytes of all entries in the queue.
  int64_t bytes() const { return bytes_; }
  double clock() const { return clock_; }

 private:
  absl::btree_set<Ticket> queue_;
  double clock_ = 0;
  uint64_t next_sequence_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace kvblend::store
