// Access by the keys of a file, which is read again when it changes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/access/key_file.h"
#include "server/access/quota.h"
#include "server/calls/access.h"

namespace kvblend::server {

/// Thread-safe. A thread of its own looks at the file several times a second. Calls that were admitted go on, whatever becomes
/// of their key.
class KeyedAccess : public Access {
 public:
  /// `calls` must outlive it. kInvalidArgument naming the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<KeyedAccess>> Open(const std::string& path, Calls* calls);
  ~KeyedAccess() override;

  absl::StatusOr<std::shared_ptr<Calls>> Admit(std::string_view authorization) override;

 private:
  /// When a file is another one.
  struct FileState {
    int64_t changed_nanoseconds = 0, size = -1;
    uint64_t inode = 0;
    bool operator==(const FileState&) const = default;
  };

  KeyedAccess(std::string path, Calls* calls) : path_(std::move(path)), calls_(*calls) {}
  FileState Look() const;
  absl::Status Load();
  void Watch();

  const std::string path_;
  Calls& calls_;
  FileState loaded_;  // before Watch, and then in its thread
  absl::Notification stop_;
  std::thread watcher_;

  absl::Mutex mutex_;
  std::vector<KeyEntry> keys_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Quota>> quotas_ ABSL_GUARDED_BY(mutex_);  // by tenant
};

}  // namespace kvblend::server
