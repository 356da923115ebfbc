// TLS of the server's listeners: which files it needs, and what OpenSSL makes of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
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

/// What a context was made of, for libraries that want it as PEM.
struct TlsPem {
  std::string identity;   // the private key, then the chain
  std::string client_ca;  // empty: no certificates of clients are asked for
};
/// kInternal: OpenSSL can't write it.
absl::StatusOr<TlsPem> ToPem(const TlsContext& context);

/// The context of the files as they are. Files that change are read again within a second; while they can't
/// be used, as between the writing of a certificate and its key, those before stay. Thread-safe.
class ReloadingTls {
 public:
  /// Told of each context before it is used, one call at a time; one that it returns an error for is not.
  using Accept = std::function<absl::Status(const TlsContext&)>;

  /// As LoadTlsContext; or what `accept` has against the first context. `listener` is whose they are, for the
  /// log.
  /// REQUIRES: files.enabled().
  static absl::StatusOr<std::unique_ptr<ReloadingTls>> Open(const TlsFiles& files,
                                                            std::string listener = "the HTTP API",
                                                            Accept accept = nullptr);

  /// For the next connection. Those that are open keep theirs.
  TlsContext Get() const;

 private:
  ReloadingTls(const TlsFiles& files, std::string listener, Accept accept)
      : files_(files), listener_(std::move(listener)), accept_(std::move(accept)) {}
  absl::Status Load();
  void Reload();

  const TlsFiles files_;
  const std::string listener_;
  const Accept accept_;
  mutable absl::Mutex mutex_;
  TlsContext context_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<FileWatcher> watcher_;  // last: it calls Reload
};

}  // namespace kvblend::server
