#include "engine/store/eviction.h"

#include <cassert>
#include <utility>

namespace kvblend::store {

void EvictionQueue::Queue::Insert(const Ticket& ticket) {
  tickets.insert(ticket);
  bytes += ticket.bytes;
}

bool EvictionQueue::Queue::Erase(const Ticket& ticket) {
  if (tickets.erase(ticket) == 0) return false;
  bytes -= ticket.bytes;
  return true;
}

const EvictionQueue::Ticket* EvictionQueue::Queues::Victim() const {
  const bool too_many_on_probation =
      static_cast<double>(probation.bytes) >
      kProbationShare * (static_cast<double>(probation.bytes) + static_cast<double>(proven.bytes));
  const Queue& queue = too_many_on_probation || proven.tickets.empty() ? probation : proven;
  return queue.tickets.empty() ? nullptr : &*queue.tickets.begin();
}

EvictionQueue::Ticket EvictionQueue::Add(EntryId id, int64_t frequency, double cost, int64_t bytes,
                                         Owner owner) {
  assert(frequency >= 1 && cost >= 0 && bytes >= 1);
  const double value = static_cast<double>(frequency) * cost / static_cast<double>(bytes);
  const bool on_probation = frequency == 1;
  const Ticket ticket{.priority = (on_probation ? probation_clock_ : clock_) + value,
                      .sequence = next_sequence_++,
                      .on_probation = on_probation,
                      .id = id,
                      .bytes = bytes,
                      .owner = owner};
  all_.Of(ticket).Insert(ticket);
  if (by_owner_) by_owners_[owner].Of(ticket).Insert(ticket);
  return ticket;
}

void EvictionQueue::CountOwners() {
  if (std::exchange(by_owner_, true)) return;
  for (const Queue* queue : {&all_.probation, &all_.proven}) {
    for (const Ticket& ticket : queue->tickets) by_owners_[ticket.owner].Of(ticket).Insert(ticket);
  }
}

void EvictionQueue::Remove(const Ticket& ticket) {
  if (!all_.Of(ticket).Erase(ticket)) {
    assert(false && "not in the eviction queue");
    return;
  }
  if (!by_owner_) return;
  const auto queues = by_owners_.find(ticket.owner);
  queues->second.Of(ticket).Erase(ticket);
  if (queues->second.Victim() == nullptr) by_owners_.erase(queues);
}

std::optional<EvictionQueue::EntryId> EvictionQueue::Evict(const Ticket* victim) {
  if (victim == nullptr) return std::nullopt;
  const Ticket ticket = *victim;
  Remove(ticket);
  // The lowest of one owner may be above others' entries that stay: then the common clock does not move.
  double& clock = ticket.on_probation ? probation_clock_ : clock_;
  const Queue& queue = all_.Of(ticket);
  if (queue.tickets.empty() || ticket < *queue.tickets.begin()) clock = ticket.priority;
  return ticket.id;
}

std::optional<EvictionQueue::EntryId> EvictionQueue::Pop() { return Evict(all_.Victim()); }

std::optional<EvictionQueue::EntryId> EvictionQueue::PopOf(Owner owner) {
  assert(by_owner_);
  const auto queues = by_owners_.find(owner);
  return queues == by_owners_.end() ? std::nullopt : Evict(queues->second.Victim());
}

int64_t EvictionQueue::bytes_of(Owner owner) const {
  assert(by_owner_);
  const auto queues = by_owners_.find(owner);
  return queues == by_owners_.end() ? 0 : queues->second.probation.bytes + queues->second.proven.bytes;
}

int64_t EvictionQueue::size() const {
  return static_cast<int64_t>(all_.probation.tickets.size() + all_.proven.tickets.size());
}

}  // namespace kvblend::store
