#include "engine/serve/sequences/step_turns.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

namespace kvblend {
namespace {

// What sums of fractions of rows may be off.
constexpr double kRounding = 1e-6;

}  // namespace

std::vector<double> StepTurns::Share(double rows, absl::Span<const Demand> demands) {
  std::vector<double> shares(demands.size(), 0.0);
  std::vector<size_t> open;  // who would take more
  for (size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].answers > 0) open.push_back(i);
  }
  while (!open.empty()) {
    double weights = 0;
    for (const size_t i : open) weights += demands[i].weight;
    const double level = rows / weights;
    const auto rest = std::partition(
        open.begin(), open.end(), [&](size_t i) { return demands[i].answers > level * demands[i].weight; });
    if (rest == open.end()) {
      for (const size_t i : open) shares[i] = level * demands[i].weight;
      break;
    }
    for (auto i = rest; i != open.end(); ++i) {
      shares[*i] = demands[*i].answers;
      rows -= shares[*i];
    }
    open.erase(rest, open.end());
  }
  return shares;
}

absl::flat_hash_map<Party, double> StepTurns::ShareOfParties(const Counts& answers) const {
  std::array<Demand, schedule::kPriorities.size()> priorities;
  std::array<std::vector<Demand>, schedule::kPriorities.size()> keys;
  std::array<std::vector<const Party*>, schedule::kPriorities.size()> parties;
  for (const auto& [party, count] : answers) {
    const auto priority = static_cast<size_t>(party.priority);
    priorities[priority].weight = schedule::kTimeShares[priority];
    priorities[priority].answers += count;
    keys[priority].push_back({.answers = count});
    parties[priority].push_back(&party);
  }
  const std::vector<double> of_priorities = Share(num_rows_, priorities);
  absl::flat_hash_map<Party, double> shares;
  for (size_t priority = 0; priority < keys.size(); ++priority) {
    const std::vector<double> of_keys = Share(of_priorities[priority], keys[priority]);
    for (size_t i = 0; i < of_keys.size(); ++i) shares.emplace(*parties[priority][i], of_keys[i]);
  }
  return shares;
}

std::vector<size_t> StepTurns::Next(absl::Span<const Answer> answers) {
  std::vector<size_t> chosen;
  if (answers.size() <= static_cast<size_t>(num_rows_)) {
    owed_.clear();
    chosen.resize(answers.size());
    std::iota(chosen.begin(), chosen.end(), size_t{0});
    return chosen;
  }
  absl::flat_hash_map<Party, std::vector<size_t>> waiting;  // who is next stands last
  for (size_t i = answers.size(); i-- > 0;) waiting[answers[i].party].push_back(i);
  Counts counts;
  for (auto& [party, own] : waiting) {
    counts.emplace(party, static_cast<int32_t>(own.size()));
    std::stable_sort(own.begin(), own.end(),
                     [&](size_t a, size_t b) { return answers[a].last_turn > answers[b].last_turn; });
  }
  absl::flat_hash_map<Party, double> owed = ShareOfParties(counts);
  for (auto& [party, rows] : owed) {
    if (const auto before = owed_.find(party); before != owed_.end()) rows += before->second;
  }
  for (int32_t row = 0; row < num_rows_; ++row) {
    auto next = owed.end();
    for (auto i = owed.begin(); i != owed.end(); ++i) {
      const std::vector<size_t>& own = waiting[i->first];
      if (own.empty()) continue;
      // Among equals the one whose answer has waited longest: not the order of a hash table.
      const auto rank = [&](const auto& of) {
        const size_t first = waiting[of->first].back();
        return std::pair(answers[first].last_turn, first);
      };
      if (next == owed.end() || i->second > next->second + kRounding ||
          (i->second > next->second - kRounding && rank(i) < rank(next))) {
        next = i;
      }
    }
    std::vector<size_t>& own = waiting[next->first];
    chosen.push_back(own.back());
    own.pop_back();
    next->second -= 1;
  }
  owed_ = std::move(owed);
  return chosen;
}

bool StepTurns::MayJoin(std::vector<Party> present, const Party& joining) const {
  if (present.size() < static_cast<size_t>(num_rows_)) return true;
  if (present.size() >= static_cast<size_t>(kMostPerRow) * static_cast<size_t>(num_rows_)) return false;
  present.push_back(joining);
  Counts counts;
  for (const Party& party : present) ++counts[party];
  const int32_t own = counts[joining];
  const bool others_have_several =
      std::any_of(counts.begin(), counts.end(), [](const auto& party) { return party.second > 1; });
  return (own == 1 && others_have_several) || ShareOfParties(counts)[joining] > own - kRounding;
}

}  // namespace kvblend
