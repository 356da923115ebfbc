#include "engine/serve/put_chunks_task.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/with_message.h"
#include "engine/api/computed_tokens.h"
#include "engine/blend/acquire_layer.h"

namespace kvblend {

PutChunksTask::PutChunksTask(PutChunksRequest request, std::vector<int32_t> anchor_ids,
                             std::vector<std::vector<int32_t>> chunk_ids, double seconds_per_token,
                             std::shared_ptr<PutChunksObserver> observer)
    : Task(request.caller),
      request_(std::move(request)),
      anchor_ids_(std::move(anchor_ids)),
      chunk_ids_(std::move(chunk_ids)),
      seconds_per_token_(seconds_per_token),
      observer_(std::move(observer)) {}

int32_t PutChunksTask::max_working_tokens() const {
  return static_cast<int32_t>(anchor_ids_.size() + chunk_ids_[next_].size());
}

double PutChunksTask::predicted_seconds_left() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (put_.has_value()) return WaitsForDisk(*runner_) ? kInfinity : 0;
  return storing_ != nullptr && storing_->is_waiting() ? kInfinity : 0;
}

double PutChunksTask::SecondsOf(int32_t first, int32_t last) const {
  int64_t tokens = 0;
  for (int32_t i = first; i < last; ++i) tokens += static_cast<int64_t>(chunk_ids_[i].size());
  return seconds_per_token_ * static_cast<double>(tokens);
}

bool PutChunksTask::Advance(PromptRunner& runner) {
  runner_ = &runner;
  if (!put_.has_value()) {
    const absl::StatusOr<bool> stored = PutNext(runner);
    if (stored.ok() && !*stored) return true;
    put_ = stored.status();
    if (!put_->ok() && storing_ != nullptr) put_ = WithComputedTokens(*put_, UnstoredTokens());
    storing_.reset();
  }
  // While this chunk was computed the one before went to disk.
  if (!ReportStored(runner)) return true;
  if (stored_.has_value()) {
    unreported_ = std::exchange(stored_, std::nullopt);
    ++next_;
  }
  finished_ = !put_->ok() || next_ == static_cast<int32_t>(chunk_ids_.size());
  // A chunk that is not being written need not wait for the next one to be reported.
  if ((finished_ || !WaitsForDisk(runner)) && !ReportStored(runner)) return true;
  const absl::Status put = *std::exchange(put_, std::nullopt);
  if (finished_) observer_->OnDone(put);
  return false;
}

absl::StatusOr<bool> PutChunksTask::PutNext(PromptRunner& runner) {
  KVBLEND_RETURN_IF_ERROR(cancellation().Check());
  if (storing_ == nullptr) {
    storing_ = runner.BeginStoring(
        caller().tenant_namespace, anchor_ids_, chunk_ids_[next_],
        {.label = request_.chunk_labels.empty() ? request_.label : request_.chunk_labels[next_],
         .pinned = request_.pin,
         .on_purpose = true});
  }
  const absl::StatusOr<bool> stored = storing_->Step([this] { return cancellation().Check(); });
  if (!stored.ok()) {
    return WithMessage(stored.status(), absl::StrCat("chunks[", next_, "]: ", stored.status().message()));
  }
  if (!*stored) return false;
  stored_ = storing_->TakeStored();
  stored_->entry.reset();
  return true;
}

int64_t PutChunksTask::UnstoredTokens() const {
  const auto all = static_cast<double>(chunk_ids_[next_].size() + anchor_ids_.size());
  const double seconds = storing_->compute_seconds();
  if (seconds <= 0) return 0;
  return static_cast<int64_t>(std::ceil(std::min(all, seconds / seconds_per_token_)));
}

bool PutChunksTask::WaitsForDisk(PromptRunner& runner) const {
  return unreported_.has_value() && SteadyNow() - waits_since_ < kMaxWriteWait &&
         cancellation().Check().ok() && runner.IsBeingWritten(unreported_->key);
}

bool PutChunksTask::ReportStored(PromptRunner& runner) {
  if (!unreported_.has_value()) return true;
  waits_since_ = std::min(waits_since_, SteadyNow());
  if (WaitsForDisk(runner)) {
    runner.WaitUntilDurable(unreported_->key, absl::Now() + blend::kTurnPatience).IgnoreError();
    if (WaitsForDisk(runner)) return false;
  }
  Report(runner);
  return true;
}

void PutChunksTask::Report(PromptRunner& runner) {
  PutChunkProgress progress;
  progress.index = next_ - 1;
  progress.done = next_;
  progress.total = static_cast<int32_t>(chunk_ids_.size());
  progress.key = unreported_->key.ToHex();
  progress.num_tokens = unreported_->num_tokens;
  progress.already_present = unreported_->already_present;
  progress.compute_seconds = unreported_->compute_seconds;
  progress.computed_tokens = unreported_->computed_tokens;
  progress.durable = runner.WaitUntilDurable(unreported_->key, absl::InfinitePast()).ok();
  unreported_.reset();
  waits_since_ = absl::InfiniteFuture();
  observer_->OnProgress(progress);
}

void PutChunksTask::Abandon(const absl::Status& status) {
  if (unreported_.has_value()) Report(*runner_);
  observer_->OnDone(status);
}

}  // namespace kvblend
