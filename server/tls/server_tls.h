// TLS of the server's listeners: which files it needs, and what OpenSSL makes of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/files/file_watcher.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace kvblend::server {

/// PEM files. Certificate and key: TLS; without both: plain text.
struct TlsFiles {
  std::string certificate_path;  // the server's chain, its own certificate first
  std::string key_path;
  std::string client_ca_path;  // not empty: clients must show a certificate that one of these has signed

  bool enabled() const { return !certificate_path.empty(); }
  std::vector<std::string> paths() const;
};

using TlsContext = std::shared_ptr<ssl_ctx_st>;

/// TLS 1.2 and later, HTTP/1.1 by ALPN. kInvalidArgument naming flag, file and what is wrong with it.
absl::StatusOr<TlsContext> LoadTlsContext(const TlsFiles& files);

/// The context of the files as they are. Files that change are read again within a second; while they can't be used, as
/// between the writing of a certificate and its key, those before stay. Thread-safe.
class ReloadingTls {
 public:
  /// As LoadTlsContext. REQUIRES: files.enabled().
  static absl::StatusOr<std::unique_ptr<ReloadingTls>> Open(const TlsFiles& files);

  /// For the next connection. Those that are open keep theirs.
  TlsContext Get() const;

 private:
  explicit ReloadingTls(const TlsFiles& files) : files_(files) {}
  void Reload();

  const TlsFiles files_;
  mutable absl::Mutex mutex_;
  TlsContext context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FileWatcher> watcher_;  // last: it calls Reload
};

}  // namespace kvblend::server
