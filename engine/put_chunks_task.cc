#include "engine/put_chunks_task.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/status_macros.h"

namespace kvblend {

PutChunksTask::PutChunksTask(PutChunksRequest request, std::vector<int32_t> anchor_ids,
                             std::vector<std::vector<int32_t>> chunk_ids,
                             std::shared_ptr<PutChunksObserver> observer)
    : Task(request.caller),
      request_(std::move(request)),
      anchor_ids_(std::move(anchor_ids)),
      chunk_ids_(std::move(chunk_ids)),
      observer_(std::move(observer)) {}

void PutChunksTask::Run(PromptRunner& runner) {
  const absl::Status status = PutNext(runner);
  finished_ = !status.ok() || next_ == static_cast<int32_t>(chunk_ids_.size());
  if (finished_) observer_->OnDone(status);
}

absl::Status PutChunksTask::PutNext(PromptRunner& runner) {
  KVBLEND_RETURN_IF_ERROR(cancellation().Check());
  const absl::StatusOr<StoredChunk> stored = runner.EnsureStored(
      caller().tenant_namespace, anchor_ids_, chunk_ids_[next_],
      {.label = request_.label, .pinned = request_.pin}, [this] { return cancellation().Check(); });
  if (!stored.ok()) {
    return absl::Status(stored.status().code(),
                        absl::StrCat("chunks[", next_, "]: ", stored.status().message()));
  }
  PutChunkProgress progress;
  progress.index = next_++;
  progress.done = next_;
  progress.total = static_cast<int32_t>(chunk_ids_.size());
  progress.key = stored->key.ToHex();
  progress.num_tokens = stored->num_tokens;
  progress.already_present = stored->already_present;
  progress.compute_seconds = stored->compute_seconds;
  observer_->OnProgress(progress);
  return absl::OkStatus();
}

}  // namespace kvblend
