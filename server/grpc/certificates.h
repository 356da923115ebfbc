// The certificates that gRPC's listener shows. gRPC 1.51 can be given others while it runs only as files that
// it reads again by itself, and with files that do not fit each other every new connection fails. So it reads
// files of ours, which hold only what was found to be good, and always as a whole.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/files/descriptor.h"
#include "server/tls/server_tls.h"

namespace grpc::experimental {
class CertificateProviderInterface;
}

namespace kvblend::server {

/// The file of one thing that changes: of memory, under a path in /proc, so that no key is written to a disk.
/// Not thread-safe; but who reads the path at any time finds a whole content, the one before or the new one.
class MemoryFile {
 public:
  /// Another modification time, in seconds, whenever `content` is set: by that a reader who reads the file
  /// twice knows that it has changed in between. kUnavailable: the system has none.
  absl::Status Set(const std::string& content);
  /// Valid after the first Set.
  std::string path() const;

 private:
  Descriptor file_;
  time_t changed_ = 0;
};

/// Reads the operator's files when they change; what is no good stays out, and the log says so.
class GrpcCertificates {
 public:
  /// As ReloadingTls::Open; kUnavailable as MemoryFile. REQUIRES: files.enabled().
  static absl::StatusOr<std::unique_ptr<GrpcCertificates>> Open(const TlsFiles& files);

  /// Must not be used after this object.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> NewProvider() const;

 private:
  explicit GrpcCertificates(bool with_client_ca) : with_client_ca_(with_client_ca) {}
  absl::Status Accept(const TlsContext& context);

  const bool with_client_ca_;
  MemoryFile identity_, client_ca_;
  std::unique_ptr<ReloadingTls> tls_;  // last: it calls Accept
};

}  // namespace kvblend::server
