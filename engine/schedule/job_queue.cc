#include "engine/schedule/job_queue.h"

#include <algorithm>
#include <iterator>

namespace kvblend::schedule {

void JobQueue::Push(JobId id, Lane lane, const std::string& fairness_key) {
  LaneQueue& queue = lanes_[static_cast<int>(lane)];
  auto [entry, is_new] = queue.turn_of_key.try_emplace(fairness_key);
  if (is_new) entry->second = queue.turns.insert(queue.turns.end(), Turn{fairness_key, {}});
  const auto turn = entry->second;
  turn->jobs.push_back(id);
  queue.share.Join(fairness_key);
  ++queue.size;
  places_[id] = {static_cast<int>(lane), turn, std::prev(turn->jobs.end())};
}

JobQueue::Turns::const_iterator JobQueue::Next(const LaneQueue& lane) {
  return std::min_element(lane.turns.begin(), lane.turns.end(), [&](const Turn& a, const Turn& b) {
    return lane.share.Of(a.fairness_key) < lane.share.Of(b.fairness_key);
  });
}

std::optional<JobId> JobQueue::Front(Lane lane) const {
  const LaneQueue& queue = lanes_[static_cast<int>(lane)];
  if (queue.size == 0) return std::nullopt;
  return Next(queue)->jobs.front();
}

JobId JobQueue::Pop(Lane lane) {
  LaneQueue& queue = lanes_[static_cast<int>(lane)];
  const auto turn = queue.turn_of_key.find(Next(queue)->fairness_key)->second;
  const JobId id = turn->jobs.front();
  queue.turns.splice(queue.turns.end(), queue.turns, turn);  // behind its equals
  Remove(id);
  return id;
}

bool JobQueue::Remove(JobId id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return false;
  const Place place = found->second;
  places_.erase(found);
  LaneQueue& lane = lanes_[place.lane];
  place.turn->jobs.erase(place.job);
  lane.share.Leave(place.turn->fairness_key);
  --lane.size;
  EndTurnIfEmpty(lane, place.turn);
  return true;
}

void JobQueue::EndTurnIfEmpty(LaneQueue& lane, Turns::iterator turn) {
  if (!turn->jobs.empty()) return;
  lane.turn_of_key.erase(turn->fairness_key);
  lane.turns.erase(turn);
}

}  // namespace kvblend::schedule
