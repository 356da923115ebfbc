#include "server/http/byte_stream.h"

#include <openssl/ssl.h>
#include <poll.h>

#include <boost/asio/ssl/stream.hpp>
#include <optional>
#include <utility>

namespace kvblend::server {
namespace {

/// Asio's context frees the SSL_CTX that it is given, so it gets a reference of its own.
asio::ssl::context Share(const TlsContext& tls) {
  SSL_CTX_up_ref(tls.get());
  return asio::ssl::context(tls.get());
}

}  // namespace

struct ByteStream::Impl {
  explicit Impl(tcp::socket plain) : socket(std::move(plain)) {}

  tcp::socket socket;
  std::optional<asio::ssl::stream<tcp::socket&>> tls;
};

ByteStream::ByteStream(tcp::socket socket, TlsContext tls)
    : impl_(std::make_unique<Impl>(std::move(socket))) {
  if (tls == nullptr) return;
  asio::ssl::context context = Share(tls);  // the stream's SSL holds the SSL_CTX from here on
  impl_->tls.emplace(impl_->socket, context);
}

ByteStream::~ByteStream() = default;

tcp::socket& ByteStream::socket() { return impl_->socket; }
bool ByteStream::is_tls() const { return impl_->tls.has_value(); }

bool ByteStream::HungUp() {
  pollfd polled{.fd = impl_->socket.native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&polled, 1, /*timeout=*/0) > 0;
}

void ByteStream::Handshake(Handler handler) {
  if (!impl_->tls.has_value()) return handler({}, 0);
  impl_->tls->async_handshake(asio::ssl::stream_base::server,
                              [handler = std::move(handler)](const AsioError& error) { handler(error, 0); });
}

void ByteStream::Read(asio::mutable_buffer into, Handler handler) {
  if (impl_->tls.has_value()) {
    impl_->tls->async_read_some(into, std::move(handler));
  } else {
    impl_->socket.async_read_some(into, std::move(handler));
  }
}

void ByteStream::Write(const std::vector<asio::const_buffer>& buffers, Handler handler) {
  if (impl_->tls.has_value()) {
    impl_->tls->async_write_some(buffers, std::move(handler));
  } else {
    impl_->socket.async_write_some(buffers, std::move(handler));
  }
}

void ByteStream::EndSending(std::shared_ptr<void> keep_alive) {
  const auto end = [this, keep_alive = std::move(keep_alive)](const AsioError&) {
    AsioError ignored;
    impl_->socket.shutdown(tcp::socket::shutdown_send, ignored);
  };
  if (impl_->tls.has_value()) {
    impl_->tls->async_shutdown(
        end);  // says so inside TLS: a reader can tell this from an answer that was cut off
  } else {
    end({});
  }
}

void ByteStream::Close() {
  AsioError ignored;
  impl_->socket.close(ignored);
}

}  // namespace kvblend::server
