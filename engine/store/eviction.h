// Which idle entry to give up first.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"

namespace kvblend::store {

/// Two queues, each ordered by GreedyDual-Size-Frequency: an entry's priority is clock + frequency * cost /
/// bytes; the lowest goes first, and the queue's clock moves up to its priority. So an entry stays the longer
/// the more computing each of its bytes saves and the more often it was asked for, and loses to newer ones as
/// the clock overtakes it. (Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997; Cherkasova,
/// "Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy", HP Labs HPL-98-69,
/// 1998.)
///
/// Entries that were asked for only once are on probation, in a queue of their own that gives up the next
/// entry whenever it holds more than kProbationShare of all bytes: what is used once, as in a scan through
/// the corpus, displaces its like and not what is used again and again. (The window of Einziger, Friedman and
/// Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM ToS 2017; the frequencies are those of
/// FrequencySketch, which remembers keys that were given up.) docs/store-performance.md has what that is
/// worth.
///
/// Entries that may not be evicted are simply not in the queue. Not thread-safe.
class EvictionQueue {
 public:
  using EntryId = uint64_t;
  /// Identifies the owner of an entry: any address, or nullptr.
  using Owner = const void*;

  static constexpr double kProbationShare = 0.1;

  /// An entry's place in the queue, to take it out with.
  struct Ticket {
    double priority = 0;
    uint64_t sequence : 63 = 0;     // among equals, the one that has waited longest goes first
    uint64_t on_probation : 1 = 0;  // here, because a disk has millions of tickets
    EntryId id = 0;
    int64_t bytes = 0;
    Owner owner = nullptr;

    friend bool operator<(const Ticket& a, const Ticket& b) {
      return a.priority != b.priority ? a.priority < b.priority : a.sequence < b.sequence;
    }
  };

  /// `by_owner`: PopOf will be used.
  explicit EvictionQueue(bool by_owner = false) : by_owner_(by_owner) {}
  /// From now on PopOf works, as if the queue had been made with by_owner.
  void CountOwners();

  /// REQUIRES: frequency >= 1, cost finite and >= 0, bytes >= 1, id not in the queue.
  Ticket Add(EntryId id, int64_t frequency, double cost, int64_t bytes, Owner owner = nullptr);
  /// Takes out an entry that is used or erased; the clocks stay. REQUIRES: it is in the queue.
  void Remove(const Ticket& ticket);
  /// Takes out the next one to evict; nothing when the queue is empty.
  std::optional<EntryId> Pop();
  /// Takes out the next one of one owner, by the same rule. REQUIRES: by_owner.
  std::optional<EntryId> PopOf(Owner owner);

  int64_t size() const;
  /// Sum of bytes of all entries in the queue.
  int64_t bytes() const { return all_.proven.bytes + all_.probation.bytes; }
  /// REQUIRES: by_owner.
  int64_t bytes_of(Owner owner) const;

 private:
  struct Queue {
    absl::btree_set<Ticket> tickets;
    int64_t bytes = 0;

    void Insert(const Ticket& ticket);
    bool Erase(const Ticket& ticket);
  };
  struct Queues {
    Queue probation;
    Queue proven;

    Queue& Of(const Ticket& ticket) { return ticket.on_probation ? probation : proven; }
    /// Nothing when both are empty.
    const Ticket* Victim() const;
  };

  std::optional<EntryId> Evict(const Ticket* victim);

  bool by_owner_;
  Queues all_;
  absl::flat_hash_map<Owner, Queues> by_owners_;  // the same tickets once more, when by_owner_
  double probation_clock_ = 0;
  double clock_ = 0;
  uint64_t next_sequence_ = 0;
};

}  // namespace kvblend::store
