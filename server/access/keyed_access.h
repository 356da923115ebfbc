// Access by the keys of a file, which is read again when it changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/access/key_file.h"
#include "server/access/quota.h"
#include "server/access/store_limits_thread.h"
#include "server/calls/access.h"
#include "server/files/file_watcher.h"

namespace kvblend::server {

/// Thread-safe. The file is read again within a second when it changes. Calls that were admitted go on,
/// whatever becomes of their key.
class KeyedAccess : public Access {
 public:
  /// Told how many bytes namespaces may store; those that it does not name have no limit. Called in Open, and
  /// after a change in a thread of its own, one call at a time.
  using StoreLimits = std::function<void(const StoreLimitsThread::Bytes& bytes)>;

  /// `calls`, and what `store_limits` uses, must outlive it. kInvalidArgument naming the file and what is
  /// wrong with it.
  static absl::StatusOr<std::unique_ptr<KeyedAccess>> Open(const std::string& path, Calls* calls,
                                                           StoreLimits store_limits = nullptr);

  absl::StatusOr<std::shared_ptr<Calls>> Admit(std::string_view authorization) override;
  absl::StatusOr<std::string> TenantOf(std::string_view authorization) const override;

  /// By name, of the tenants that the file has now. Who is taken out of the file and comes back goes on from
  /// where it was.
  std::map<std::string, TenantUse> Use() const;

 private:
  KeyedAccess(std::string path, Calls* calls) : path_(std::move(path)), calls_(*calls) {}
  /// What a key belongs to.
  struct Owner {
    Tenant tenant;
    std::shared_ptr<Quota> quota;
  };
  /// kUnauthenticated: no such key.
  absl::StatusOr<Owner> OwnerOf(std::string_view authorization) const;
  /// The new limits.
  absl::StatusOr<StoreLimitsThread::Bytes> Load();
  void LoadAgain();

  const std::string path_;
  Calls& calls_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<KeyHash, Tenant> keys_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Quota>> quotas_ ABSL_GUARDED_BY(mutex_);  // by tenant
  std::unique_ptr<StoreLimitsThread> store_limits_;                               // null: nobody is told
  std::unique_ptr<FileWatcher> watcher_;                                          // last: it calls LoadAgain
};

}  // namespace kvblend::server
