// Learning a correction of stored KV while serving. A chunk that was missing is computed twice anyway: in its
// prompt, and behind the response for the store. Prompts keep some rows of the first
// (engine/blend/fresh_rows.h); what the store has of the same rows is added when it is there, and from then
// on a thread of low priority does everything: pairs into moments, fits, judging, loading, files. A fit that
// wins comes into force between two prompts.
//
// Where there is a folder, files keep the correction in force if it was learned, and what it was learned from
// (engine/serve/learned_files.h). They are replaced after a fit and at the end.
//
// Where replicas share chunks they share what they learn from as well
// (engine/serve/sharing/moments_sharing.h): the same thread takes a turn at that now and then, and before a
// fit.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/steady_time.h"
#include "engine/api/correction.h"
#include "engine/blend/fresh_rows.h"
#include "engine/kv/correction_learner.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/learned_files.h"
#include "engine/serve/sharing/moments_sharing.h"
#include "engine/store/chunk_handle.h"
#include "engine/store/replica_board.h"

namespace kvblend {

/// Thread-safe. The store of the chunks must outlive it.
class CorrectionLearning {
 public:
  static constexpr int64_t kMinWaitingBytes = int64_t{64} << 20;
  struct Options {
    bool frozen = false;
    std::string folder = {};                 // must be there; empty: nothing outlives the process
    int64_t max_bytes = int64_t{256} << 20;  // of moments
    // Of rows that wait to be learned from. What the store has of them takes as much at most, and waiting
    // chunks keep as many bytes of the store from being evicted.
    int64_t waiting_bytes = kMinWaitingBytes;
    store::ReplicaBoard* board = nullptr;  // where replicas meet, outlives this; null: it learns alone
    absl::Duration share_interval = absl::Minutes(1);
    std::function<absl::Time()> now = SteadyNow;  // how long fits may take in Flush
  };

  /// Puts what was learned before into force. `runtime` must outlive it.
  CorrectionLearning(ModelRuntime& runtime, const Options& options);
  /// Ends what is under way, saves what was learned, and tells other replicas. Waits for a step of one
  /// layer's fit and for the board, which gets five seconds.
  ~CorrectionLearning();

  /// What prompts have to keep.
  blend::FreshRowOptions fresh_rows() const { return {budget_, learner_options_.anchoring}; }

  /// What a prompt computed of a chunk of these tokens that the store now has. `entry` must have arrived.
  void Add(std::shared_ptr<const blend::FreshRows> fresh, store::ChunkHandle entry,
           absl::Span<const int32_t> token_ids);

  /// Done when it returns, which may take as long as a step of one layer's fit. kFailedPrecondition: it
  /// cannot learn.
  absl::StatusOr<CorrectionStats> Update(CorrectionAction action);
  CorrectionStats Stats() const;

  /// Waits until all that was added is learned and saved. A fit has a few seconds more: what it does not end
  /// with then is due again with the next chunk, in the next process too. kDeadlineExceeded.
  absl::Status Flush(absl::Time deadline);

 private:
  struct Chunk {
    /// Bytes that the store can't evict while this waits.
    int64_t held_bytes() const { return entry.has_value() ? entry->size_bytes() : 0; }

    std::shared_ptr<const blend::FreshRows> fresh;
    bool kept_back;
    std::optional<store::ChunkHandle> entry = std::nullopt;  // not set: `stored` has what is needed of it
    std::vector<float> stored = {};                          // as fresh->values()
  };

  // On the thread, or before it starts.
  void Recall();
  void Run();
  void Learn(Chunk& chunk);
  /// Of the correction in force, which leaves `shares` of each layer's deviation: takes away the layers that
  /// do harm, so that nothing of these is left.
  void DropHarm(std::vector<double>& shares);
  bool Due() const;
  bool GoesOn() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool FitGoesOn() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Fit();
  void OpenSharing();
  /// Tells others, and hears of them.
  void Share();
  absl::Time NextTurn() const;
  void Forget();
  void Save();
  void SetInForce(std::optional<kv::LearnedCorrection> correction);
  /// What is in force is new: whether it can be judged decides whether anything is learned.
  void LearnIfItCan() ABSL_LOCKS_EXCLUDED(mutex_);
  /// What the store has of the rows, laid out as FreshRows::values. Empty: it has lost them.
  std::vector<float> StoredRows(const store::ChunkHandle& entry, const std::vector<int32_t>& rows) const;

  std::string GivenVersion() const;
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_ && !reset_asked_ && !turn_asked_; }
  bool Settled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Idle() && queue_.empty() && !dirty_; }
  /// Whether a fit may go on, and come into force.
  bool MayFit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !stopping_ && !reset_asked_ && stats_.learning == LearningState::kOn;
  }
  /// What prompts have kept before a reset or freeze comes too late, whatever was computed since.
  bool Wants(const blend::FreshRows& fresh) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stats_.learning == LearningState::kOn && fresh.generation == budget_->generation();
  }
  void PublishCounts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ModelRuntime& runtime_;
  const Options options_;
  const kv::LearnerOptions learner_options_;
  const std::shared_ptr<blend::FreshRowBudget>
      budget_;                               // a generation of it ends with every reset and freeze
  kv::CorrectionLearner learner_;            // the thread's
  LearnedFiles files_;                       // the thread's
  std::unique_ptr<MomentsSharing> sharing_;  // the thread's, but for its figures; null: it learns alone

  mutable absl::Mutex mutex_;
  std::deque<Chunk> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all chunks that wait or are being learned from
  CorrectionStats stats_ ABSL_GUARDED_BY(mutex_);
  bool frozen_ ABSL_GUARDED_BY(mutex_);  // that is what it was told
  bool can_learn_ ABSL_GUARDED_BY(mutex_) =
      true;  // it can judge what is in force, now or after the last reset
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool learns_a_chunk_ ABSL_GUARDED_BY(mutex_) = false;  // that is what it is busy with
  bool dirty_ ABSL_GUARDED_BY(mutex_) = false;           // the files lack something
  bool save_asked_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time fits_end_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool reset_asked_ ABSL_GUARDED_BY(mutex_) = false;
  bool turn_asked_ ABSL_GUARDED_BY(mutex_) = false;  // to tell others at once
  int updates_ ABSL_GUARDED_BY(mutex_) = 0;          // that wait until the thread is idle
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last
};

}  // namespace kvblend
