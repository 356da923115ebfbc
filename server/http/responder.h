// How a handler answers, at once or bit by bit, from any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/http_message.h"

namespace kvblend::server {

/// The answer to one request: either Send, or Begin, any number of Writes, and Finish or Abort. Thread-safe;
/// calls return at once, and do nothing once the client has gone. An answer that is dropped before its end is
/// ended by the server: with status 500 if nothing of it was sent, else by closing the connection.
class HttpResponder {
 public:
  virtual ~HttpResponder() = default;

  /// The whole answer.
  virtual void Send(HttpResponse response) = 0;

  /// The status, the headers and the first piece of the body.
  virtual void Begin(HttpResponse head) = 0;
  /// One more piece of the body. What the client does not read is kept; if that is too much, or takes too
  /// long, the connection is closed and the client has gone.
  virtual void Write(std::string piece) = 0;
  virtual void Finish() = 0;
  /// Closes the connection, so that the client notices that the answer is not whole.
  virtual void Abort() = 0;

  /// `callback` is called once if the client goes before the end of the answer, at once if it has already
  /// gone; from any thread. It must return quickly, and is dropped at the end of the answer.
  virtual void OnGone(std::function<void()> callback) = 0;

  /// Keeps `kept` until all of the answer but its last byte has left the server, or never will. So a client
  /// that has read the whole answer can rely on `kept` being gone. Must be called before the end of the
  /// answer.
  virtual void KeepUntilSent(std::shared_ptr<void> kept) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpResponder> responder)>;

/// Answers a request as soon as its headers are there, instead of its handler and before any of its body is
/// read; or nothing: the handler gets it. May say whose turn the request takes (HttpRequest::turn). On a
/// thread of the network, so it must not wait.
using HttpGuard = std::function<std::optional<HttpResponse>(HttpRequest& request)>;

/// Makes an answer of what went wrong before a handler was called: no such path, a body too large. `message`
/// names what it was and what is allowed.
using ErrorPage = std::function<HttpResponse(int status, const std::string& message)>;

}  // namespace kvblend::server
