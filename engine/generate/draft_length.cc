#include "engine/generate/draft_length.h"

#include <algorithm>
#include <cmath>

namespace kvblend::generate {

void StepCost::Add(int32_t rows, double seconds) {
  if (rows < 1 || !(seconds > 0)) return;
  // Averages a few steps; a single one, even the first, may have been interrupted.
  const double expected = Seconds(rows);
  if (static_cast<size_t>(rows) >= seconds_.size()) seconds_.resize(rows + 1, 0);
  double& known = seconds_[rows];
  const double most = expected == 0 ? seconds : (known == 0 ? 4 : 2) * expected;
  const double bounded = std::min(seconds, most);
  known = known == 0 ? bounded : 0.8 * known + 0.2 * bounded;
}

double StepCost::Seconds(int32_t rows) const {
  // Until it is measured, one row more counts as a sixth of a step: little enough to be tried.
  constexpr double kRowShare = 1.0 / 6;
  for (int32_t distance = 0; distance < static_cast<int32_t>(seconds_.size()) + rows; ++distance) {
    for (const int32_t known : {rows - distance, rows + distance}) {
      if (known < 1 || known >= static_cast<int32_t>(seconds_.size()) || seconds_[known] == 0) continue;
      return seconds_[known] * (1 + kRowShare * rows) / (1 + kRowShare * known);
    }
  }
  return 0;
}

DraftLength::Record& DraftLength::RecordOf(int32_t match) {
  return records_[match <= 2 ? 0 : match == 3 ? 1 : match <= 7 ? 2 : 3];
}

int32_t DraftLength::Choose(int32_t match, int32_t available, int32_t rows, const StepCost& cost) {
  if (available < 1 || match < 1) return 0;
  Record& record = RecordOf(match);
  // Begins as if two of four guesses had been right.
  const double p = (record.right + 2) / (record.right + record.wrong + 4);
  const double alone = cost.Seconds(rows);
  if (alone == 0) return 0;
  double best_rate = kLeastGain * rows / alone, expected = rows, next = 1;
  int32_t best = 0;
  for (int32_t length = 1; length <= available; ++length) {
    next *= p;
    expected += next;
    const double rate = expected / cost.Seconds(rows + length);
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = length;
  }
  if (best == 0 && ++record.refused >= kProbe) best = 1;
  if (best > 0) record.refused = 0;
  return best;
}

void DraftLength::Observe(int32_t match, int32_t checked, int32_t right) {
  Record& record = RecordOf(match);
  constexpr double kKept = 0.97;  // share of earlier counts
  record.right = kKept * record.right + right;
  record.wrong = kKept * record.wrong + (right < checked ? 1 : 0);
}

}  // namespace kvblend::generate
