// Computes one missing entry behind the response that missed it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/once_a_minute.h"
#include "engine/blend/reuse_plan.h"
#include "engine/serve/correction_learning.h"
#include "engine/serve/task.h"

namespace kvblend {

/// Outcomes since start, for metrics. Thread-safe.
class BackgroundCounts {
 public:
  std::atomic<int64_t> stored = 0;

  /// A chunk was not stored, most often because too many wait for that: the log says so once a minute.
  void Failed(int64_t tokens, const absl::Status& status);
  int64_t failed() const { return failed_; }

 private:
  std::atomic<int64_t> failed_ = 0;
  absl::Mutex mutex_;
  OnceAMinute warn_ ABSL_GUARDED_BY(mutex_);
};

class StoreMissTask final : public Task {
 public:
  /// `learning` gets what the prompt kept of the chunk once it is stored, and must outlive the task; null:
  /// nobody does.
  StoreMissTask(std::string tenant_namespace, blend::MissingEntry entry,
                std::shared_ptr<BackgroundCounts> counts, CorrectionLearning* learning);

  bool Advance(PromptRunner& runner) override;
  double predicted_seconds_left() const override;
  int32_t max_working_tokens() const override;
  void Abandon(const absl::Status& status) override;

 private:
  blend::MissingEntry entry_;
  const std::shared_ptr<BackgroundCounts> counts_;
  CorrectionLearning* const learning_;
  std::unique_ptr<ChunkStoring> storing_;  // while it is in progress
};

}  // namespace kvblend
