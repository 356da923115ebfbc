#include "engine/store/disk/read_backlog.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::store::internal {

absl::Status PendingRead::Begin() {
  if (request.file == nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(request.file, request.open());
  }
  progress.emplace(*request.file, static_cast<int64_t>(request.out.size()));
  return absl::OkStatus();
}

absl::StatusOr<ReadId> ReadBacklog::Add(ReadRequest request) {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return absl::CancelledError("the read queue is being closed");
  if (static_cast<int64_t>(waiting_.size()) >= max_waiting_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("read queue: ", waiting_.size(), " reads wait; allowed: ", max_waiting_));
  }
  const ReadId id = next_id_++;
  const ReadPriority priority = request.priority;
  priorities_.emplace(id, priority);
  waiting_.emplace(Place(priority, id), std::make_unique<PendingRead>(id, std::move(request)));
  return id;
}

bool ReadBacklog::Cancel(ReadId id) {
  absl::MutexLock lock(&mutex_);
  if (const auto waiting = priorities_.find(id); waiting != priorities_.end()) {
    const auto place = waiting_.find(Place(waiting->second, id));
    place->second->cancelled_before_start = true;
    cancelled_.push_back(std::move(place->second));
    waiting_.erase(place);
    priorities_.erase(waiting);
    return true;
  }
  for (const auto& read : cancelled_) {
    if (read->id == id) return true;
  }
  const auto running = running_.find(id);
  if (running == running_.end()) return false;
  running->second = true;
  return true;
}

void ReadBacklog::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  for (auto& [place, read] : waiting_) {
    read->cancelled_before_start = true;
    cancelled_.push_back(std::move(read));
  }
  waiting_.clear();
  priorities_.clear();
}

std::unique_ptr<PendingRead> ReadBacklog::Take() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ReadBacklog::CanTake));
  return TakeLocked();
}

std::unique_ptr<PendingRead> ReadBacklog::TryTake() {
  absl::MutexLock lock(&mutex_);
  return TakeLocked();
}

bool ReadBacklog::stopped() const {
  absl::MutexLock lock(&mutex_);
  return stopped_;
}

std::unique_ptr<PendingRead> ReadBacklog::TakeLocked() {
  std::unique_ptr<PendingRead> read;
  if (!cancelled_.empty()) {
    read = std::move(cancelled_.front());
    cancelled_.pop_front();
  } else if (!waiting_.empty()) {
    read = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    priorities_.erase(read->id);
  }
  if (read != nullptr) running_.emplace(read->id, read->cancelled_before_start);
  return read;
}

void ReadBacklog::Finish(std::unique_ptr<PendingRead> read, absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    const auto running = running_.find(read->id);
    if (running->second) status = absl::CancelledError("the read was cancelled");
    running_.erase(running);
  }
  read->request.done(std::move(status));
}

}  // namespace kvblend::store::internal
