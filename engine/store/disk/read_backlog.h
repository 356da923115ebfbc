// What waits to be read and what is being read: the half of a ReadQueue that both implementations share.
// Private to this folder.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/store/disk/read_queue.h"

namespace kvblend::store::internal {

/// A read in the hands of one thread at a time.
struct PendingRead {
  PendingRead(ReadId read_id, ReadRequest read_request) : id(read_id), request(std::move(read_request)) {}

  /// Before anything is read: opens the file if need be. An error, which ends the read: `ended`, or that the
  /// file can't be opened.
  absl::Status Begin();

  const ReadId id;
  ReadRequest request;
  std::optional<ReadProgress> progress;  // once it has begun
  absl::Status ended;                    // not OK: it ended before it had begun
};

/// Thread-safe. A read goes: Add -> waiting -> Take -> running -> Finish. Cancel, Stop, and Add for want of
/// room move waiting reads past the others, marked, so that a reading thread takes and finishes them.
class ReadBacklog {
 public:
  explicit ReadBacklog(int64_t max_waiting) : max_waiting_(max_waiting) {}

  absl::StatusOr<ReadId> Add(ReadRequest request);
  void Raise(ReadId id, ReadPriority priority);
  bool Cancel(ReadId id);
  /// No more reads are added; what waits is cancelled.
  void Stop();

  /// Waits for a read. nullptr: stopped, and none is left.
  std::unique_ptr<PendingRead> Take();
  /// nullptr: none waits.
  std::unique_ptr<PendingRead> TryTake();
  bool stopped() const;

  /// Calls the callback, with kCancelled when the read was cancelled meanwhile.
  void Finish(std::unique_ptr<PendingRead> read, absl::Status status);

 private:
  bool CanTake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !waiting_.empty() || !ended_.empty() || stopped_;
  }
  std::unique_ptr<PendingRead> TakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  using Place = std::pair<ReadPriority, ReadId>;  // among equals, the first to come
  using Waiting = absl::btree_map<Place, std::unique_ptr<PendingRead>>;

  void EndWaiting(Waiting::iterator place, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t max_waiting_;
  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  ReadId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  Waiting waiting_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReadId, ReadPriority> priorities_ ABSL_GUARDED_BY(mutex_);  // of waiting_
  std::deque<std::unique_ptr<PendingRead>> ended_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ReadId, bool> running_ ABSL_GUARDED_BY(mutex_);  // whether it was cancelled
};

/// nullptr where the kernel refuses io_uring.
std::unique_ptr<ReadQueue> CreateUringReadQueue(const ReadQueue::Options& options);

}  // namespace kvblend::store::internal
