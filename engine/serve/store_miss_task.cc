#include "engine/serve/store_miss_task.h"

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

StoreMissTask::StoreMissTask(std::string tenant_namespace, blend::MissingEntry entry,
                             std::shared_ptr<BackgroundCounts> counts, CorrectionLearning* learning)
    : Task(NobodyIn(std::move(tenant_namespace))),
      entry_(std::move(entry)),
      counts_(std::move(counts)),
      learning_(learning) {}

void StoreMissTask::Run(PromptRunner& runner) {
  absl::StatusOr<StoredChunk> stored =
      runner.EnsureStored(caller().tenant_namespace, entry_.anchor_ids, entry_.token_ids, {},
                          [this] { return cancellation().Check(); });
  if (!stored.ok()) return Abandon(stored.status());
  if (learning_ != nullptr && entry_.fresh != nullptr)
    learning_->Add(std::move(entry_.fresh), *std::move(stored->entry));
  if (!stored->already_present) counts_->stored.fetch_add(1, std::memory_order_relaxed);
}

void StoreMissTask::Abandon(const absl::Status& status) {
  counts_->failed.fetch_add(1, std::memory_order_relaxed);
  spdlog::debug("a chunk of {} tokens was not stored behind a response: {}", entry_.token_ids.size(),
                std::string(status.message()));
}

}  // namespace kvblend
