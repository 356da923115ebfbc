#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {
namespace {

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeSession {
  void operator()(SSL* session) const { SSL_free(session); }
};

/// The oldest error of this thread, and none left behind.
std::string TakeErrors() {
  std::array<char, 256> text{};
  const unsigned long error = ERR_get_error();
  if (error == 0) return "unknown error";
  ERR_error_string_n(error, text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

bool IsAddress(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

/// The session reads and writes memory; this moves the bytes. So the inner connection's deadlines, and its
/// faults, are those of TLS too.
class TlsConnection final : public Connection {
 public:
  TlsConnection(std::unique_ptr<SSL, FreeSession> session, std::unique_ptr<Connection> inner,
                std::string peer)
      : inner_(std::move(inner)), session_(std::move(session)), peer_(std::move(peer)) {}

  absl::Status Handshake(absl::Time deadline) {
    while (true) {
      ERR_clear_error();
      const int result = SSL_connect(session_.get());
      const int error = SSL_get_error(session_.get(), result);
      const std::string reason = result == 1 || error == SSL_ERROR_WANT_READ ? "" : HandshakeError();
      absl::Status sent = SendPending(deadline);
      if (result == 1) return sent;
      if (!reason.empty()) return absl::UnauthenticatedError(reason);
      KVBLEND_RETURN_IF_ERROR(sent);
      KVBLEND_RETURN_IF_ERROR(ReceiveMore(deadline));
    }
  }

  absl::StatusOr<size_t> Read(absl::Span<std::byte> buffer, absl::Time deadline) override {
    while (true) {
      size_t count = 0;
      ERR_clear_error();
      const int result = SSL_read_ex(session_.get(), buffer.data(), buffer.size(), &count);
      const int error = SSL_get_error(session_.get(), result);
      if (result == 1) return count;
      if (error == SSL_ERROR_ZERO_RETURN) return absl::UnavailableError(peer_ + " closed the connection");
      if (error != SSL_ERROR_WANT_READ) return Failed("reading");
      KVBLEND_RETURN_IF_ERROR(SendPending(deadline));  // an answer to a change of keys, say
      KVBLEND_RETURN_IF_ERROR(ReceiveMore(deadline));
    }
  }

  absl::Status Write(absl::Span<const std::byte> bytes, absl::Time deadline) override {
    constexpr size_t kStep = size_t{1} << 18;  // of plain text at a time in memory
    while (!bytes.empty()) {
      size_t count = 0;
      ERR_clear_error();
      const int result = SSL_write_ex(session_.get(), bytes.data(), std::min(bytes.size(), kStep), &count);
      // The session's memory takes everything, so it never has to be asked again.
      if (result != 1) return Failed("writing");
      bytes.remove_prefix(count);
      KVBLEND_RETURN_IF_ERROR(SendPending(deadline));
    }
    return absl::OkStatus();
  }

 private:
  std::string HandshakeError() const {
    const long verified = SSL_get_verify_result(session_.get());
    const std::string error = TakeErrors();
    return absl::StrCat("TLS with ", peer_, ": ",
                        verified == X509_V_OK ? error : X509_verify_cert_error_string(verified));
  }
  absl::Status Failed(const char* doing) const {
    return absl::UnavailableError(absl::StrCat("TLS: ", doing, " ", peer_, ": ", TakeErrors()));
  }

  absl::Status SendPending(absl::Time deadline) {
    std::array<std::byte, 1 << 14> buffer;
    while (true) {
      const int count = BIO_read(SSL_get_wbio(session_.get()), buffer.data(), buffer.size());
      if (count <= 0) return absl::OkStatus();
      KVBLEND_RETURN_IF_ERROR(
          inner_->Write(absl::MakeConstSpan(buffer).first(static_cast<size_t>(count)), deadline));
    }
  }

  absl::Status ReceiveMore(absl::Time deadline) {
    const absl::StatusOr<size_t> count = inner_->Read(absl::MakeSpan(received_), deadline);
    if (!count.ok()) return count.status();
    if (BIO_write(SSL_get_rbio(session_.get()), received_.data(), static_cast<int>(*count)) !=
        static_cast<int>(*count)) {
      return absl::ResourceExhaustedError(absl::StrCat("TLS: no memory for bytes from ", peer_));
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<Connection> inner_;
  const std::unique_ptr<SSL, FreeSession> session_;
  const std::string peer_;
  std::array<std::byte, 1 << 16> received_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(std::unique_ptr<SSL_CTX, FreeContext> context, std::string server_name,
               std::unique_ptr<Transport> inner)
      : context_(std::move(context)), server_name_(std::move(server_name)), inner_(std::move(inner)) {}

  absl::StatusOr<std::unique_ptr<Connection>> Connect(const Endpoint& endpoint,
                                                      absl::Time deadline) override {
    absl::StatusOr<std::unique_ptr<Connection>> inner = inner_->Connect(endpoint, deadline);
    if (!inner.ok()) return inner.status();
    std::unique_ptr<SSL, FreeSession> session(SSL_new(context_.get()));
    BIO* received = BIO_new(BIO_s_mem());
    BIO* to_send = BIO_new(BIO_s_mem());
    if (session == nullptr || received == nullptr || to_send == nullptr) {
      BIO_free(received);
      BIO_free(to_send);
      return absl::ResourceExhaustedError("TLS: no memory for a session");
    }
    BIO_set_mem_eof_return(received, -1);  // empty: more may come
    BIO_set_mem_eof_return(to_send, -1);
    SSL_set_bio(session.get(), received, to_send);
    const std::string& name = server_name_.empty() ? endpoint.host : server_name_;
    bool named = false;
    if (IsAddress(name)) {
      named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session.get()), name.c_str()) == 1;
    } else {
      named = SSL_set1_host(session.get(), name.c_str()) == 1 &&
              SSL_set_tlsext_host_name(session.get(), name.c_str()) == 1;
    }
    if (!named) return absl::InvalidArgumentError(absl::StrCat("TLS: '", name, "' can't be checked"));
    auto connection =
        std::make_unique<TlsConnection>(std::move(session), *std::move(inner), endpoint.ToString());
    KVBLEND_RETURN_IF_ERROR(connection->Handshake(deadline));
    return connection;
  }

 private:
  const std::unique_ptr<SSL_CTX, FreeContext> context_;
  const std::string server_name_;
  const std::unique_ptr<Transport> inner_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTlsTransport(const TlsOptions& options,
                                                            std::unique_ptr<Transport> inner) {
  ERR_clear_error();
  std::unique_ptr<SSL_CTX, FreeContext> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return absl::ResourceExhaustedError("TLS: " + TakeErrors());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // A key with a pass phrase is refused; the default would ask the terminal.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return 0; });
  const auto unusable = [](const char* what, const std::string& path) {
    return absl::InvalidArgumentError(absl::StrCat("TLS: ", what, " ", path, ": ", TakeErrors()));
  };
  if (options.ca_path.empty()) {
    SSL_CTX_set_default_verify_paths(context.get());
  } else if (SSL_CTX_load_verify_file(context.get(), options.ca_path.c_str()) != 1) {
    return unusable("certificate authority", options.ca_path);
  }
  if (options.certificate_path.empty() != options.key_path.empty()) {
    return absl::InvalidArgumentError("TLS: a client certificate and its key go together; one is missing");
  }
  if (!options.certificate_path.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context.get(), options.certificate_path.c_str()) != 1) {
      return unusable("certificate", options.certificate_path);
    }
    if (SSL_CTX_use_PrivateKey_file(context.get(), options.key_path.c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(context.get()) != 1) {
      return unusable("key", options.key_path);
    }
  }
  return std::make_unique<TlsTransport>(std::move(context), options.server_name, std::move(inner));
}

}  // namespace kvblend::store::redis
