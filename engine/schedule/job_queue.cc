#include "engine/schedule/job_queue.h"

#include <iterator>

namespace kvblend::schedule {

void JobQueue::Push(JobId id, Lane lane, const std::string& fairness_key) {
  LaneQueue& queue = lanes_[static_cast<int>(lane)];
  auto [entry, is_new] = queue.turn_of_key.try_emplace(fairness_key);
  if (is_new) entry->second = queue.turns.insert(queue.turns.end(), Turn{fairness_key, {}});
  const auto turn = entry->second;
  turn->jobs.push_back(id);
  ++queue.size;
  places_[id] = {static_cast<int>(lane), turn, std::prev(turn->jobs.end())};
}

std::optional<JobId> JobQueue::Front(Lane lane) const {
  const LaneQueue& queue = lanes_[static_cast<int>(lane)];
  if (queue.size == 0) return std::nullopt;
  return queue.turns.front().jobs.front();
}

JobId JobQueue::Pop(const LaneSet& lanes) {
  const int chosen = ChooseLane(lanes);
  for (int i = 0; i < kNumLanes; ++i) {
    LaneQueue& lane = lanes_[i];
    if (i == chosen || lane.size == 0) {
      lane.times_passed_over = 0;
    } else if (lanes[i]) {
      ++lane.times_passed_over;
    }
  }
  LaneQueue& lane = lanes_[chosen];
  const auto turn = lane.turns.begin();
  const JobId id = turn->jobs.front();
  turn->jobs.pop_front();
  lane.turns.splice(lane.turns.end(), lane.turns, turn);  // to the back
  EndTurnIfEmpty(lane, turn);
  --lane.size;
  places_.erase(id);
  return id;
}

bool JobQueue::Remove(JobId id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return false;
  const Place place = found->second;
  places_.erase(found);
  LaneQueue& lane = lanes_[place.lane];
  place.turn->jobs.erase(place.job);
  EndTurnIfEmpty(lane, place.turn);
  if (--lane.size == 0) lane.times_passed_over = 0;
  return true;
}

int JobQueue::ChooseLane(const LaneSet& lanes) const {
  const auto impatient = [&](Lane lane, int patience) {
    const int i = static_cast<int>(lane);
    return lanes[i] && lanes_[i].times_passed_over >= patience;
  };
  if (impatient(Lane::kBackground, kBackgroundPatience)) return static_cast<int>(Lane::kBackground);
  if (impatient(Lane::kBulk, kBulkPatience)) return static_cast<int>(Lane::kBulk);
  int lane = 0;
  while (lane < kNumLanes - 1 && (!lanes[lane] || lanes_[lane].size == 0)) ++lane;
  return lane;
}

void JobQueue::EndTurnIfEmpty(LaneQueue& lane, std::list<Turn>::iterator turn) {
  if (!turn->jobs.empty()) return;
  lane.turn_of_key.erase(turn->fairness_key);
  lane.turns.erase(turn);
}

}  // namespace kvblend::schedule
