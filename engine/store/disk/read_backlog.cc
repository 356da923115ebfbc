#include "engine/store/disk/read_backlog.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::store::internal {

namespace {

absl::Status Cancelled() { return absl::CancelledError("the read was cancelled"); }

}  // namespace

absl::Status PendingRead::Begin() {
  KVBLEND_RETURN_IF_ERROR(ended);
  if (request.file == nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(request.file, request.open());
  }
  progress.emplace(*request.file, static_cast<int64_t>(request.out.size()));
  return absl::OkStatus();
}

absl::StatusOr<ReadId> ReadBacklog::Add(ReadRequest request) {
  absl::MutexLock lock(&mutex_);
  if (stopped_) return absl::CancelledError("the read queue is being closed");
  const ReadPriority priority = request.priority;
  if (static_cast<int64_t>(waiting_.size()) >= max_waiting_) {
    absl::Status full = absl::ResourceExhaustedError(
        absl::StrCat("read queue: ", waiting_.size(), " reads wait; allowed: ", max_waiting_));
    if (waiting_.empty() || waiting_.rbegin()->first.first <= priority) return full;
    EndWaiting(std::prev(waiting_.end()), std::move(full));
  }
  const ReadId id = next_id_++;
  priorities_.emplace(id, priority);
  waiting_.emplace(Place(priority, id), std::make_unique<PendingRead>(id, std::move(request)));
  return id;
}

void ReadBacklog::EndWaiting(Waiting::iterator place, absl::Status status) {
  place->second->ended = std::move(status);
  priorities_.erase(place->second->id);
  ended_.push_back(std::move(place->second));
  waiting_.erase(place);
}

void ReadBacklog::Raise(ReadId id, ReadPriority priority) {
  absl::MutexLock lock(&mutex_);
  const auto known = priorities_.find(id);
  if (known == priorities_.end() || known->second <= priority) return;
  const auto place = waiting_.find(Place(known->second, id));
  std::unique_ptr<PendingRead> read = std::move(place->second);
  waiting_.erase(place);
  waiting_.emplace(Place(priority, id), std::move(read));
  known->second = priority;
}

bool ReadBacklog::Cancel(ReadId id) {
  absl::MutexLock lock(&mutex_);
  if (const auto waiting = priorities_.find(id); waiting != priorities_.end()) {
    EndWaiting(waiting_.find(Place(waiting->second, id)), Cancelled());
    return true;
  }
  for (const auto& read : ended_) {
    if (read->id != id) continue;
    read->ended = Cancelled();
    return true;
  }
  const auto running = running_.find(id);
  if (running == running_.end()) return false;
  running->second = true;
  return true;
}

void ReadBacklog::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  while (!waiting_.empty()) EndWaiting(waiting_.begin(), Cancelled());
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
  if (!ended_.empty()) {
    read = std::move(ended_.front());
    ended_.pop_front();
  } else if (!waiting_.empty()) {
    read = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
    priorities_.erase(read->id);
  }
  if (read != nullptr) running_.emplace(read->id, false);
  return read;
}

void ReadBacklog::Finish(std::unique_ptr<PendingRead> read, absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    const auto running = running_.find(read->id);
    if (running->second) status = Cancelled();
    running_.erase(running);
  }
  read->request.done(std::move(status));
}

}  // namespace kvblend::store::internal
