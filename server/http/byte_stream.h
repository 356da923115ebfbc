// The bytes of a connection, in plain text or in TLS. For this room's sources only.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "server/http/asio.h"
#include "server/tls/server_tls.h"

namespace kvblend::server {

/// Not thread-safe: all calls and handlers are the strand's that is the socket's executor. At most one Read
/// and one Write at a time. Close ends what is under way with an error.
class ByteStream {
 public:
  using Handler = std::function<void(const AsioError& error, size_t bytes)>;

  /// Without a TLS context the connection is plain text.
  ByteStream(tcp::socket socket, TlsContext tls);
  ~ByteStream();

  tcp::socket& socket();
  bool is_tls() const;
  /// Whether the client has closed the connection, or its sending half, though there may be bytes of it to
  /// read yet.
  bool HungUp();

  /// Agrees with the client on keys; nothing to do in plain text. REQUIRES: before all else.
  void Handshake(Handler handler);
  /// Reads what there is, at least a byte.
  void Read(asio::mutable_buffer into, Handler handler);
  /// Writes some of the bytes, at least one.
  void Write(const std::vector<asio::const_buffer>& buffers, Handler handler);
  /// Tells the client that nothing more comes; reading goes on. What was written has left before.
  void EndSending(std::shared_ptr<void> keep_alive);
  void Close();

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvblend::server
