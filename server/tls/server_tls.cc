#include "server/tls/server_tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

/// What OpenSSL has noted last, and forgets then.
std::string LastProblem() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "it can't be read" : reason;
}

absl::Status Bad(const char* flag, const std::string& path, const char* allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is '", path, "': ", LastProblem(), "; allowed: ", allowed));
}

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
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate_path.c_str()) != 1) {
    return Bad("--tls-certificate", files.certificate_path, "a chain of certificates in PEM");
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files.key_path.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return Bad("--tls-key", files.key_path, "the key of --tls-certificate in PEM");
  }
  if (!files.client_ca_path.empty()) {
    STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(files.client_ca_path.c_str());
    if (names == nullptr || SSL_CTX_load_verify_locations(raw, files.client_ca_path.c_str(), nullptr) != 1) {
      sk_X509_NAME_pop_free(names, X509_NAME_free);
      return Bad("--tls-client-ca", files.client_ca_path, "certificates in PEM");
    }
    SSL_CTX_set_client_CA_list(raw, names);
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  return context;
}

absl::StatusOr<std::unique_ptr<ReloadingTls>> ReloadingTls::Open(const TlsFiles& files) {
  std::unique_ptr<ReloadingTls> tls(new ReloadingTls(files));
  std::vector<FileState> seen = LookAt(files.paths());
  KVBLEND_ASSIGN_OR_RETURN(TlsContext context, LoadTlsContext(files));
  {
    absl::MutexLock lock(&tls->mutex_);
    tls->context_ = std::move(context);
  }
  tls->watcher_ =
      std::make_unique<FileWatcher>(files.paths(), std::move(seen), [raw = tls.get()] { raw->Reload(); });
  return tls;
}

TlsContext ReloadingTls::Get() const {
  absl::MutexLock lock(&mutex_);
  return context_;
}

void ReloadingTls::Reload() {
  auto context = LoadTlsContext(files_);
  if (!context.ok()) {
    spdlog::warn("TLS stays as it was: {}", std::string(context.status().message()));
    return;
  }
  spdlog::info("read the certificate of {} again", files_.certificate_path);
  absl::MutexLock lock(&mutex_);
  context_ = *std::move(context);
}

}  // namespace kvblend::server
