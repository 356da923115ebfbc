// Hands new store limits on without keeping the reader of the key file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::server {

/// Keeping to new limits may remove many chunks from a slow disk. Meanwhile the key file may change again,
/// and a key that was taken out of it may not open anything for so long. Thread-safe.
class StoreLimitsThread {
 public:
  using Bytes = std::map<std::string, int64_t>;  // by namespace

  /// `limit` is called in this object's thread, one call at a time.
  explicit StoreLimitsThread(std::function<void(const Bytes& bytes)> limit);
  /// Waits for a call under way; what was set behind it is dropped.
  ~StoreLimitsThread();

  /// Returns at once. Limits that are set before earlier ones had their turn replace these.
  void Set(Bytes bytes);

 private:
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || newest_.has_value(); }

  const std::function<void(const Bytes& bytes)> limit_;
  absl::Mutex mutex_;
  std::optional<Bytes> newest_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kvblend::server
