#include "engine/schedule/job_queue.h"

#include <algorithm>
#include <iterator>

namespace kvblend::schedule {

void JobQueue::Push(JobId id, Lane lane, const std::string& fairness_key, Priority priority) {
  const size_t index = IndexOf(lane, priority);
  Queue& queue = queues_[index];
  auto [entry, is_new] = queue.turn_of_key.try_emplace(fairness_key);
  if (is_new) entry->second = queue.turns.insert(queue.turns.end(), Turn{fairness_key, {}});
  const auto turn = entry->second;
  turn->jobs.push_back(id);
  queue.share.Join(fairness_key);
  ++queue.size;
  places_[id] = {index, turn, std::prev(turn->jobs.end())};
}

JobQueue::Turns::const_iterator JobQueue::Next(const Queue& queue) {
  return std::min_element(queue.turns.begin(), queue.turns.end(),
                          [&](const Turn& a, const Turn& b) { return IsBefore(queue, a, b); });
}

std::optional<JobId> JobQueue::Front(Lane lane, Priority priority) const {
  const Queue& queue = queues_[IndexOf(lane, priority)];
  if (queue.size == 0) return std::nullopt;
  return Next(queue)->jobs.front();
}

std::vector<JobId> JobQueue::InOrder(Lane lane, Priority priority, size_t most) const {
  const Queue& queue = queues_[IndexOf(lane, priority)];
  std::vector<const Turn*> turns;
  for (const Turn& turn : queue.turns) turns.push_back(&turn);
  std::stable_sort(turns.begin(), turns.end(),
                   [&](const Turn* a, const Turn* b) { return IsBefore(queue, *a, *b); });
  std::vector<JobId> jobs;
  for (const Turn* turn : turns) {
    for (const JobId id : turn->jobs) {
      if (jobs.size() == most) return jobs;
      jobs.push_back(id);
    }
  }
  return jobs;
}

int32_t JobQueue::size(Lane lane) const {
  int32_t all = 0;
  for (const Priority priority : kPriorities) all += size(lane, priority);
  return all;
}

bool JobQueue::HasForeground(const std::string& fairness_key) const {
  for (const Lane lane : {Lane::kInteractive, Lane::kBulk}) {
    for (const Priority priority : kPriorities) {
      if (queues_[IndexOf(lane, priority)].turn_of_key.contains(fairness_key)) return true;
    }
  }
  return false;
}

JobId JobQueue::Pop(Lane lane, Priority priority) {
  const JobId id = *Front(lane, priority);
  Take(id);
  return id;
}

void JobQueue::Take(JobId id) {
  const Place place = places_.find(id)->second;
  Turns& turns = queues_[place.queue].turns;
  turns.splice(turns.end(), turns, place.turn);  // behind its equals
  Remove(id);
}

bool JobQueue::Remove(JobId id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return false;
  const Place place = found->second;
  places_.erase(found);
  Queue& queue = queues_[place.queue];
  place.turn->jobs.erase(place.job);
  queue.share.Leave(place.turn->fairness_key);
  --queue.size;
  EndTurnIfEmpty(queue, place.turn);
  return true;
}

void JobQueue::EndTurnIfEmpty(Queue& queue, Turns::iterator turn) {
  if (!turn->jobs.empty()) return;
  queue.turn_of_key.erase(turn->fairness_key);
  queue.turns.erase(turn);
}

}  // namespace kvblend::schedule
