// Which answers get a token in the next step of decoding, where more are being written than a step has rows
// for.
//
// A step's rows are shared as the scheduler shares time: between priorities as kTimeShares says, and evenly
// between the fairness keys of a priority. Nobody gets more rows than they have answers, and what one leaves
// the others share (max-min fairness: Bertsekas, Gallager, Data Networks, 2nd edition, section 6.5.2). Shares
// are fractions, and who gets less than their share in one step gets it in the next. The answers of one key
// stand in a queue: those that have had a row go to its end.
//
// So a batch that one key has filled takes some answers of others besides (MayJoin), up to twice as many as a
// step has rows for: a newcomer waits for its prompt, not for the end of somebody's long answer. Answers that
// have no turn keep their pages. Those that had given their pages up and got them back are not asked, so that
// there may be more than that for a while.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "engine/schedule/job_queue.h"

namespace kvblend {

/// Those whose answers share rows among themselves.
struct Party {
  schedule::Priority priority = schedule::Priority::kNormal;
  std::string fairness_key;

  friend bool operator==(const Party&, const Party&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Party& party) {
    return H::combine(std::move(state), party.priority, party.fairness_key);
  }
};

/// Not thread-safe.
class StepTurns {
 public:
  /// REQUIRES: num_rows >= 1
  explicit StepTurns(int32_t num_rows) : num_rows_(num_rows) {}

  struct Answer {
    Party party;
    int64_t last_turn = 0;  // the higher, the further back in its queue
  };
  /// Which of these answers have a row in the next step, by their indices: all of them, or as many as there
  /// are rows. In the order in which they go to the ends of their queues.
  std::vector<size_t> Next(absl::Span<const Answer> answers);

  /// Whether another answer of `joining` may be written beside those of `present`, one element for each
  /// answer. Yes where there is a free row. Where there is none, no more than kMostPerRow answers come on
  /// each row; and the party's share must be a row for each of its answers, or this is its first one, and
  /// another party has several.
  bool MayJoin(std::vector<Party> present, const Party& joining) const;

  static constexpr int32_t kMostPerRow = 2;

 private:
  struct Demand {
    double weight = 1;
    int32_t answers = 0;
  };
  /// What each gets of so many rows; at most their answers.
  static std::vector<double> Share(double rows, absl::Span<const Demand> demands);
  using Counts = absl::flat_hash_map<Party, int32_t>;
  absl::flat_hash_map<Party, double> ShareOfParties(const Counts& answers) const;

  const int32_t num_rows_;
  absl::flat_hash_map<Party, double> owed_;  // rows, of steps that had too few
};

}  // namespace kvblend
