#include "server/grpc/certificates.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grpcpp/security/tls_certificate_provider.h"

namespace kvblend::server {
namespace {

constexpr unsigned kLookEverySeconds = 1;

absl::Status NoMemoryFile(const char* what) {
  return absl::UnavailableError(
      absl::StrCat("gRPC's certificates can't be kept in a file of memory: ", what, ": ", strerror(errno)));
}

}  // namespace

absl::Status MemoryFile::Set(const std::string& content) {
  Descriptor file(memfd_create("certificates", MFD_CLOEXEC));
  if (file.get() < 0) return NoMemoryFile("memfd_create");
  for (size_t done = 0; done < content.size();) {
    const ssize_t written = write(file.get(), content.data() + done, content.size() - done);
    if (written < 0 && errno != EINTR) return NoMemoryFile("write");
    if (written > 0) done += static_cast<size_t>(written);
  }
  ++changed_;
  const timespec times[2] = {{.tv_sec = changed_, .tv_nsec = 0}, {.tv_sec = changed_, .tv_nsec = 0}};
  if (futimens(file.get(), times) != 0) return NoMemoryFile("futimens");
  if (file_.get() < 0) {
    file_ = std::move(file);
  } else if (dup3(file.get(), file_.get(), O_CLOEXEC) < 0) {  // at once, for whoever opens the path
    return NoMemoryFile("dup3");
  }
  return absl::OkStatus();
}

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", file_.get()); }

absl::StatusOr<std::unique_ptr<GrpcCertificates>> GrpcCertificates::Open(const TlsFiles& files) {
  std::unique_ptr<GrpcCertificates> certificates(new GrpcCertificates(!files.client_ca_path.empty()));
  KVBLEND_ASSIGN_OR_RETURN(
      certificates->tls_,
      ReloadingTls::Open(files, "gRPC", [raw = certificates.get()](const TlsContext& context) {
        return raw->Accept(context);
      }));
  return certificates;
}

absl::Status GrpcCertificates::Accept(const TlsContext& context) {
  KVBLEND_ASSIGN_OR_RETURN(const TlsPem pem, ToPem(context));
  KVBLEND_RETURN_IF_ERROR(identity_.Set(pem.identity));
  return client_ca_.Set(pem.client_ca);
}

std::shared_ptr<grpc::experimental::CertificateProviderInterface> GrpcCertificates::NewProvider() const {
  // Key and chain are one file, in which gRPC looks for both: so they always fit each other.
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      identity_.path(), identity_.path(), with_client_ca_ ? client_ca_.path() : "", kLookEverySeconds);
}

}  // namespace kvblend::server
