#include "server/tls/server_tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/files/open_file.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

/// The last error that OpenSSL has noted, which it then forgets. In the system's words where the system's
/// error came first ("system lib" says little).
std::string LastProblem() {
  const unsigned long first = ERR_peek_error();      // NOLINT(google-runtime-int): OpenSSL's type
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int)
  ERR_clear_error();
  if (ERR_SYSTEM_ERROR(first)) return std::strerror(ERR_GET_REASON(first));
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "it can't be read" : reason;
}

absl::Status Bad(const char* flag, const std::string& path, const char* allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is '", path, "': ", LastProblem(), "; allowed: ", allowed));
}

/// A file that is open, under a name for OpenSSL, which opens files itself and would wait for a pipe's
/// writer.
class PemFile {
 public:
  static absl::StatusOr<PemFile> Open(const char* flag, const std::string& path, const char* allowed) {
    auto file = OpenToRead(path, Allowed::kFile);
    if (file.ok()) return PemFile(*std::move(file));
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", file.status().message(), " with ", allowed));
  }
  const char* name() const { return name_.c_str(); }

 private:
  explicit PemFile(Descriptor file)
      : file_(std::move(file)), name_(absl::StrCat("/proc/self/fd/", file_.get())) {}
  Descriptor file_;
  std::string name_;
};

int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                   const unsigned char* offered, unsigned offered_size, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  const int result =
      SSL_select_next_proto(&found, chosen_size, kHttp11, sizeof(kHttp11) - 1, offered, offered_size);
  *chosen = found;
  return result == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

std::vector<std::string> TlsFiles::paths() const { return {certificate_path, key_path, client_ca_path}; }

absl::StatusOr<TlsContext> LoadTlsContext(const TlsFiles& files) {
  ERR_clear_error();
  const TlsContext context(SSL_CTX_new(TLS_server_method()), &SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(absl::StrCat("OpenSSL: ", LastProblem()));
  SSL_CTX* raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);  // of connections that wait
  SSL_CTX_set_alpn_select_cb(raw, ChooseProtocol, nullptr);
  constexpr unsigned char kSessions[] = "kvblend";  // sessions are not resumed under other names
  SSL_CTX_set_session_id_context(raw, kSessions, sizeof(kSessions) - 1);
  constexpr char kCertificate[] = "--tls-certificate", kKey[] = "--tls-key", kClientCa[] = "--tls-client-ca";
  constexpr char kChain[] = "a chain of certificates in PEM",
                 kItsKey[] = "the key of --tls-certificate in PEM", kAuthorities[] = "certificates in PEM";
  KVBLEND_ASSIGN_OR_RETURN(const PemFile certificate,
                           PemFile::Open(kCertificate, files.certificate_path, kChain));
  if (SSL_CTX_use_certificate_chain_file(raw, certificate.name()) != 1) {
    return Bad(kCertificate, files.certificate_path, kChain);
  }
  KVBLEND_ASSIGN_OR_RETURN(const PemFile key, PemFile::Open(kKey, files.key_path, kItsKey));
  if (SSL_CTX_use_PrivateKey_file(raw, key.name(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return Bad(kKey, files.key_path, kItsKey);
  }
  if (!files.client_ca_path.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(const PemFile client_ca,
                             PemFile::Open(kClientCa, files.client_ca_path, kAuthorities));
    STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(client_ca.name());
    if (names == nullptr || SSL_CTX_load_verify_locations(raw, client_ca.name(), nullptr) != 1) {
      sk_X509_NAME_pop_free(names, X509_NAME_free);
      return Bad(kClientCa, files.client_ca_path, kAuthorities);
    }
    SSL_CTX_set_client_CA_list(raw, names);
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

absl::StatusOr<TlsPem> ToPem(const TlsContext& context) {
  ERR_clear_error();
  const auto new_text = [] {
    return std::unique_ptr<BIO, decltype(&BIO_free)>(BIO_new(BIO_s_mem()), &BIO_free);
  };
  const auto text_of = [](BIO* bio) {
    char* begin = nullptr;
    const auto size = BIO_get_mem_data(bio, &begin);
    return std::string(begin, static_cast<size_t>(size));
  };
  SSL_CTX* raw = context.get();
  const auto identity = new_text(), client_ca = new_text();
  STACK_OF(X509)* chain = nullptr;
  bool written = PEM_write_bio_PKCS8PrivateKey(identity.get(), SSL_CTX_get0_privatekey(raw), nullptr, nullptr,
                                               0, nullptr, nullptr) == 1 &&
                 PEM_write_bio_X509(identity.get(), SSL_CTX_get0_certificate(raw)) == 1 &&
                 SSL_CTX_get0_chain_certs(raw, &chain) == 1;
  for (int i = 0; written && i < sk_X509_num(chain); ++i) {
    written = PEM_write_bio_X509(identity.get(), sk_X509_value(chain, i)) == 1;
  }
  // Only lookups in folders add to the store of a context that is in use, and there are none.
  const STACK_OF(X509_OBJECT)* trusted = X509_STORE_get0_objects(SSL_CTX_get_cert_store(raw));
  for (int i = 0; written && i < sk_X509_OBJECT_num(trusted); ++i) {
    X509* certificate = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(trusted, i));
    if (certificate != nullptr) written = PEM_write_bio_X509(client_ca.get(), certificate) == 1;
  }
  if (!written) return absl::InternalError(absl::StrCat("OpenSSL: ", LastProblem()));
  return TlsPem{.identity = text_of(identity.get()), .client_ca = text_of(client_ca.get())};
}

absl::StatusOr<std::unique_ptr<ReloadingTls>> ReloadingTls::Open(const TlsFiles& files, std::string listener,
                                                                 Accept accept) {
  std::unique_ptr<ReloadingTls> tls(new ReloadingTls(files, std::move(listener), std::move(accept)));
  std::vector<FileState> seen = LookAt(files.paths());
  KVBLEND_RETURN_IF_ERROR(tls->Load());
  tls->watcher_ =
      std::make_unique<FileWatcher>(files.paths(), std::move(seen), [raw = tls.get()] { raw->Reload(); });
  return tls;
}

TlsContext ReloadingTls::Get() const {
  absl::MutexLock lock(&mutex_);
  return context_;
}

absl::Status ReloadingTls::Load() {
  KVBLEND_ASSIGN_OR_RETURN(TlsContext context, LoadTlsContext(files_));
  if (accept_ != nullptr) KVBLEND_RETURN_IF_ERROR(accept_(context));
  absl::MutexLock lock(&mutex_);
  context_ = std::move(context);
  return absl::OkStatus();
}

void ReloadingTls::Reload() {
  const absl::Status loaded = Load();
  if (loaded.ok()) {
    spdlog::info("read the certificate of {} again for {}", files_.certificate_path, listener_);
  } else {
    spdlog::warn("TLS stays as it was for {}: {}", listener_, std::string(loaded.message()));
  }
}

}  // namespace kvblend::server
