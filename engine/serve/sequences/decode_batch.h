// The sequences that are being decoded, one token each per step (continuous batching: they join and leave
// between steps; Yu et al., Orca, OSDI 2022). A step reads the weights once for all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/serve/sequences/prompt_runner.h"
#include "engine/serve/task.h"

namespace kvblend {

/// For the engine thread only, except counts(). The runner must outlive it.
class DecodeBatch {
 public:
  struct Options {
    int32_t max_sequences = 8;
    int64_t max_tokens = 0;  // of all sequences together, each counted with what may still come
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

  /// A token for every sequence. Returns the tasks that have ended.
  std::vector<std::shared_ptr<Task>> Step();
  /// What a step of a batch as it is now takes, about; 0: not known yet.
  double step_seconds() const { return step_seconds_; }

  /// Counts since the batch was made, which any thread may read.
  struct Counts {
    std::atomic<int32_t> sequences = 0;  // now
    std::atomic<int64_t> steps = 0;
    std::atomic<int64_t> tokens = 0;  // of those steps
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Member {
    std::shared_ptr<Task> task;
    DecodingSequence* sequence;  // the task's
    int32_t num_tokens;          // set aside
  };

  void CountSequences();

  PromptRunner& runner_;
  const Options options_;
  std::vector<Member> members_;
  int32_t num_reserved_ = 0;  // sequences
  int64_t num_tokens_ = 0;    // set aside, together
  double step_seconds_ = 0;
  Counts counts_;
};

}  // namespace kvblend
