// Access by the keys of a file, which is read again when it changes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/access/key_file.h"
#include "server/access/quota.h"
#include "server/calls/access.h"
#include "server/files/file_watcher.h"

namespace kvblend::server {

/// Thread-safe. The file is read again within a second when it changes. Calls that were admitted go on, whatever becomes
/// of their key.
class KeyedAccess : public Access {
 public:
  /// `calls` must outlive it. kInvalidArgument naming the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<KeyedAccess>> Open(const std::string& path, Calls* calls);

  absl::StatusOr<std::shared_ptr<Calls>> Admit(std::string_view authorization) override;

 private:
  KeyedAccess(std::string path, Calls* calls) : path_(std::move(path)), calls_(*calls) {}
  absl::Status Load();
  void LoadAgain();

  const std::string path_;
  Calls& calls_;
  absl::Mutex mutex_;
  std::vector<KeyEntry> keys_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Quota>> quotas_ ABSL_GUARDED_BY(mutex_);  // by tenant
  std::unique_ptr<FileWatcher> watcher_;                                          // last: it calls LoadAgain
};

}  // namespace kvblend::server
