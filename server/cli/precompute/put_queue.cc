#include "server/cli/precompute/put_queue.h"

#include <algorithm>
#include <utility>

#include "base/retry_delay.h"

namespace kvblend::server::cli {
namespace {

// Far below servers' limits, and enough work for some seconds.
constexpr size_t kChunksPerBatch = 16;
constexpr size_t kBytesPerBatch = size_t{32} << 10;

}  // namespace

PutQueue::PutQueue(Client& client, Cancellation& cancellation, CallGate& gate, Options options,
                   OnStored on_stored)
    : client_(client),
      gate_(gate),
      options_(std::move(options)),
      on_stored_(std::move(on_stored)),
      on_cancel_(cancellation, [this] { Fail(absl::CancelledError("interrupted")); }) {
  for (int i = 0; i < std::max(options_.max_in_flight, 1); ++i) workers_.emplace_back([this] { Work(); });
}

PutQueue::~PutQueue() {
  {
    absl::MutexLock lock(&mutex_);
    if (!waiting_.empty() || in_flight_ > 0) gate_.Stop();
    waiting_.clear();
    closed_ = true;
  }
  for (std::thread& worker : workers_) worker.join();
}

absl::Status PutQueue::Add(ChunkToPut chunk) {
  if (!batch_.empty() && batch_bytes_ + chunk.text.size() > kBytesPerBatch) {
    if (absl::Status status = Enqueue(); !status.ok()) return status;
  }
  batch_bytes_ += chunk.text.size();
  batch_.push_back(std::move(chunk));
  return batch_.size() < kChunksPerBatch ? absl::OkStatus() : Enqueue();
}

absl::Status PutQueue::Finish() {
  if (!batch_.empty()) {
    if (absl::Status status = Enqueue(); !status.ok()) return status;
  }
  absl::MutexLock lock(&mutex_);
  const auto done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return !status_.ok() || (waiting_.empty() && in_flight_ == 0);
  };
  mutex_.Await(absl::Condition(&done));
  return status_;
}

absl::Status PutQueue::Enqueue() {
  absl::MutexLock lock(&mutex_);
  // One batch at most waits while others are under way.
  const auto has_room = [this]()
                            ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !status_.ok() || waiting_.empty(); };
  mutex_.Await(absl::Condition(&has_room));
  if (status_.ok()) waiting_.push_back(std::exchange(batch_, {}));
  batch_bytes_ = 0;
  return status_;
}

void PutQueue::Work() {
  while (true) {
    Batch batch;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return closed_ || !status_.ok() || !waiting_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (waiting_.empty() || !status_.ok()) return;
      batch = std::move(waiting_.front());
      waiting_.pop_front();
      ++in_flight_;
    }
    const absl::Status status = Send(batch);
    if (!status.ok()) Fail(status);
    absl::MutexLock lock(&mutex_);
    --in_flight_;
  }
}

absl::Status PutQueue::Send(const Batch& batch) {
  v1::PutChunksRequest request = options_.request;
  for (const ChunkToPut& chunk : batch) {
    request.add_chunks(chunk.text);
    request.add_chunk_labels(chunk.label);
  }
  return gate_.Make([&] {
    bool accepted = false;
    const auto on_progress = [&](const v1::PutChunkProgress& progress) {
      accepted = true;
      if (progress.index() < 0 || static_cast<size_t>(progress.index()) >= batch.size()) return;
      absl::MutexLock lock(&on_stored_mutex_);
      on_stored_(progress, batch[static_cast<size_t>(progress.index())]);
    };
    absl::Status status = client_.Put(request, gate_.deadline(), on_progress);
    if (accepted) status.ErasePayload(kRetryDelayPayload);  // what was stored would be counted twice
    return status;
  });
}

absl::Status PutQueue::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void PutQueue::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
  gate_.Stop();
}

}  // namespace kvblend::server::cli
