#include "engine/serve/store_miss_task.h"

#include <limits>
#include <utility>

#include "spdlog/spdlog.h"

namespace kvblend {
namespace {

Caller NobodyIn(std::string tenant_namespace) {
  Caller caller;
  caller.tenant_namespace = std::move(tenant_namespace);
  return caller;
}

}  // namespace

void BackgroundCounts::Failed(int64_t tokens, const absl::Status& status) {
  const int64_t failed = ++failed_;
  // A server that stops ends what it has not begun.
  const bool stops = absl::IsCancelled(status) || absl::IsUnavailable(status);
  absl::MutexLock lock(&mutex_);
  spdlog::log(
      !stops && warn_.IsDue() ? spdlog::level::warn : spdlog::level::debug,
      "a chunk of {} tokens was not stored behind a response, {} since the start, and is a miss once more: {}",
      tokens, failed, std::string(status.message()));
}

StoreMissTask::StoreMissTask(std::string tenant_namespace, blend::MissingEntry entry,
                             std::shared_ptr<BackgroundCounts> counts, CorrectionLearning* learning)
    : Task(NobodyIn(std::move(tenant_namespace))),
      entry_(std::move(entry)),
      counts_(std::move(counts)),
      learning_(learning) {}

int32_t StoreMissTask::max_working_tokens() const {
  return static_cast<int32_t>(entry_.anchor_ids.size() + entry_.token_ids.size());
}

double StoreMissTask::predicted_seconds_left() const {
  return storing_ != nullptr && storing_->is_waiting() ? std::numeric_limits<double>::infinity() : 0;
}

bool StoreMissTask::Advance(PromptRunner& runner) {
  if (storing_ == nullptr) {
    storing_ = runner.BeginStoring(caller().tenant_namespace, entry_.anchor_ids, entry_.token_ids,
                                   {.label = entry_.is_anchor ? kAnchorLabel : ""});
  }
  const absl::StatusOr<bool> done = storing_->Step([this] { return cancellation().Check(); });
  if (done.ok() && !*done) return true;
  const std::unique_ptr<ChunkStoring> storing = std::move(storing_);
  if (!done.ok()) {
    Abandon(done.status());
    return false;
  }
  StoredChunk stored = storing->TakeStored();
  if (learning_ != nullptr && entry_.fresh != nullptr) {
    learning_->Add(std::move(entry_.fresh), *std::move(stored.entry), entry_.token_ids);
  }
  if (!stored.already_present) counts_->stored.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void StoreMissTask::Abandon(const absl::Status& status) {
  counts_->Failed(static_cast<int64_t>(entry_.token_ids.size()), status);
}

}  // namespace kvblend
