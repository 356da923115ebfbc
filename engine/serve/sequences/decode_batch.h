// The sequences that are being decoded together (continuous batching: they join and leave between steps; Yu et al., Orca,
// OSDI 2022). A step reads the weights once for all of them. Each gets one token per step, and more where guesses are
// right: tokens that are likely to come next (engine/generate/prompt_lookup.h) are run in the same step, and those that
// the model would have chosen itself are kept. A sequence gets the same tokens with guesses as without.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "engine/generate/draft_length.h"
#include "engine/serve/sequences/decoding_sequence.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/serve/task.h"

namespace kvblend {

/// For the engine thread only, except counts(). The runner must outlive it.
class DecodeBatch {
 public:
  struct Options {
    int32_t max_sequences = 8;
    int64_t max_tokens = 0;        // of all sequences together, each counted with what may still come
    int32_t max_draft_tokens = 0;  // guessed tokens of one sequence in one step
    int32_t max_draft_rows = 0;    // rows of a step up to which guesses are added
  };

  DecodeBatch(PromptRunner& runner, const Options& options) : runner_(runner), options_(options) {}

  bool empty() const { return members_.empty(); }
  /// Whether a sequence that will have at most so many tokens fits in. An empty batch takes any.
  bool HasRoomFor(int32_t num_tokens) const;
  /// Sets room aside for a sequence whose prompt is being prefilled, until Add or Release. REQUIRES: HasRoomFor
  void Reserve(int32_t num_tokens);
  void Release(int32_t num_tokens);
  /// Sets aside the pages that task->decoding() may need. Where the pool has too few, ends it with that error
  /// and returns false. REQUIRES: Reserve(task->max_decoding_tokens())
  bool Add(std::shared_ptr<Task> task);

  /// A token for every sequence, or more. Returns the tasks that have ended.
  std::vector<std::shared_ptr<Task>> Step();
  /// What a step of a batch as it is now takes, about; 0: not known yet.
  double step_seconds() const { return step_cost_.Seconds(last_rows_); }

  /// Counts since the batch was made, which any thread may read.
  struct Counts {
    std::atomic<int32_t> sequences = 0;  // now
    std::atomic<int64_t> steps = 0;
    std::atomic<int64_t> tokens = 0;    // of those steps
    std::atomic<int64_t> drafted = 0;   // tokens that were guessed and run
    std::atomic<int64_t> accepted = 0;  // of these, those that were right
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Member {
    std::shared_ptr<Task> task;
    DecodingSequence* sequence;  // the task's
    int32_t num_tokens;          // set aside
  };

  /// What to run in the next step: of each sequence its token, and guesses where they are worth it.
  struct Rows {
    std::vector<NextTokens> next;
    std::vector<int32_t> match;  // of each sequence's guess; see PromptLookup
  };
  Rows PlanRows(absl::Span<Member> going);
  /// Delivers what came of a sequence's rows. Returns whether it goes on.
  bool Deliver(DecodingSequence& sequence, const NextTokens& next, int32_t match,
               absl::Span<const kernels::SampledToken> sampled);
  void CountSequences();

  PromptRunner& runner_;
  const Options options_;
  std::vector<Member> members_;
  int32_t num_reserved_ = 0;  // sequences
  int64_t num_tokens_ = 0;    // set aside, together
  int32_t last_rows_ = 1;     // of the last step
  generate::StepCost step_cost_;
  generate::DraftLength draft_length_;
  Counts counts_;
};

}  // namespace kvblend
