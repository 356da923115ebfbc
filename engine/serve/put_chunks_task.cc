#include "engine/serve/put_chunks_task.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend {

PutChunksTask::PutChunksTask(PutChunksRequest request, std::vector<int32_t> anchor_ids,
                             std::vector<std::vector<int32_t>> chunk_ids,
                             std::shared_ptr<PutChunksObserver> observer)
    : Task(request.caller),
      request_(std::move(request)),
      anchor_ids_(std::move(anchor_ids)),
      chunk_ids_(std::move(chunk_ids)),
      observer_(std::move(observer)) {}

int32_t PutChunksTask::max_working_tokens() const {
  return static_cast<int32_t>(anchor_ids_.size() + chunk_ids_[next_].size());
}

bool PutChunksTask::Advance(PromptRunner& runner) {
  const absl::StatusOr<bool> stored = PutNext(runner);
  if (stored.ok() && !*stored) return true;
  storing_.reset();
  finished_ = !stored.ok() || next_ == static_cast<int32_t>(chunk_ids_.size());
  if (!finished_) return false;
  ReportStored(runner);
  observer_->OnDone(stored.status());
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
  if (stored.ok() && !*stored) return false;
  // While this chunk was computed the one before went to disk.
  ReportStored(runner);
  if (!stored.ok()) {
    return absl::Status(stored.status().code(),
                        absl::StrCat("chunks[", next_, "]: ", stored.status().message()));
  }
  unreported_ = storing_->TakeStored();
  unreported_->entry.reset();
  ++next_;
  // A chunk that is not being written need not wait for the next one to be reported.
  if (!runner.IsBeingWritten(unreported_->key)) ReportStored(runner);
  return true;
}

void PutChunksTask::ReportStored(PromptRunner& runner) {
  if (!unreported_.has_value()) return;
  PutChunkProgress progress;
  progress.index = next_ - 1;
  progress.done = next_;
  progress.total = static_cast<int32_t>(chunk_ids_.size());
  progress.key = unreported_->key.ToHex();
  progress.num_tokens = unreported_->num_tokens;
  progress.already_present = unreported_->already_present;
  progress.compute_seconds = unreported_->compute_seconds;
  progress.durable = runner.WaitUntilDurable(unreported_->key, [this] { return cancellation().Check(); });
  unreported_.reset();
  observer_->OnProgress(progress);
}

}  // namespace kvblend
