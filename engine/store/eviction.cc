#include "engine/store/eviction.h"

#include <cassert>

namespace kvblend::store {

EvictionQueue::Ticket EvictionQueue::Add(EntryId id, int64_t frequency, double cost, int64_t bytes) {
  assert(frequency >= 1 && cost >= 0 && bytes >= 1);
  const double value = static_cast<double>(frequency) * cost / static_cast<double>(bytes);
  const Ticket ticket{.priority = clock_ + value, .sequence = next_sequence_++, .id = id, .bytes = bytes};
  queue_.insert(ticket);
  bytes_ += bytes;
  return ticket;
}

void EvictionQueue::Remove(const Ticket& ticket) {
  if (queue_.erase(ticket) == 1) {
    bytes_ -= ticket.bytes;
  } else {
    assert(false && "not in the eviction queue");
  }
}

std::optional<EvictionQueue::EntryId> EvictionQueue::Pop() {
  if (queue_.empty()) return std::nullopt;
  const Ticket lowest = *queue_.begin();
  queue_.erase(queue_.begin());
  bytes_ -= lowest.bytes;
  clock_ = lowest.priority;
  return lowest.id;
}

}  // namespace kvblend::store
