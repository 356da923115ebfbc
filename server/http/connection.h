// One connection: reads requests, has them handled one by one, writes the answers. For this room's sources
// only.
//
//   kIdle -> kReceiving -> kAnswering -> kIdle ..          kAnswering -> kLingering -> kClosed
//
// All members are touched on the connection's strand only, unless they say otherwise. It lives as long as an
// operation of the socket or an answer holds it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "server/http/asio.h"
#include "server/http/byte_stream.h"
#include "server/http/request_parser.h"
#include "server/http/server_core.h"

namespace kvblend::server {

class Answer;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `socket` has a strand as its executor. With `tls` the client must begin with a handshake.
  Connection(std::shared_ptr<ServerCore> core, tcp::socket socket, TlsContext tls);
  ~Connection();

  // --- from any thread

  void Start();
  /// Closes at once if no answer is awaited; of a request that is still arriving 503 is the answer.
  void Drain();
  void Close();
  static constexpr int64_t kBusy = std::numeric_limits<int64_t>::max();
  /// Since when no request has been begun, in nanoseconds of the steady clock; kBusy: one is in work.
  int64_t idle_since() const { return idle_since_; }
  /// Closes if no request has been begun, not even one that is still to be read. Then `done` is called, on
  /// the strand.
  void CloseIfIdle(std::function<void(bool closed)> done);

  // --- for Answer, from any thread

  enum class End : uint8_t {
    kNone,    // more comes
    kAnswer,  // the answer is whole
    kAbort,   // it never will be
  };
  /// Queues bytes of the answer in work; `kept` is dropped before the last of them leaves, or when they never
  /// will. False when the client has gone.
  bool Push(std::string bytes, End end, bool close_after, std::shared_ptr<void> kept = nullptr);
  bool is_http_1_0() const { return http_1_0_; }
  bool head_only() const { return head_only_; }
  /// The connection ends with this answer: by the client's wish, or because the server drains.
  bool closes_after_answer() const { return !keep_alive_ || core_->draining; }
  const ServerCore& core() const { return *core_; }

  // --- for ServerCore, from any thread

  int64_t unsent_bytes() const { return unsent_bytes_; }
  /// Of the body that is being received, so far; 0: none is.
  int64_t arriving_bytes() const { return arriving_bytes_; }
  /// Refuses the request whose body is being received, if there are still too many bytes of bodies.
  void RefuseArriving();

 private:
  enum class State : uint8_t { kIdle, kReceiving, kAnswering, kLingering, kClosed };

  void AwaitRequest();
  void Read();
  void Process();
  /// Refuses what the headers tell is no request for any handler, before its body is read.
  void OnHead();
  /// Of the request's path and method. False: there is none, and the request is refused.
  bool FindHandler(HttpRequest& request);
  /// The host that a request comes from: the peer, or the one for which it forwards the request.
  std::string ClientOf(const HttpRequest& request) const;
  void Dispatch();
  /// Answers without a handler, and closes: what else the client sent may not be another request. With an
  /// answer given, `message` is for the log alone.
  void Refuse(int status, const std::string& message, HttpResponse* given = nullptr);
  /// Whether the handler's guard has an answer, which the request is then refused with.
  bool RefuseByGuard();
  /// Whether this body is the one that there is no room for, and is refused; or has another one refused.
  bool RefuseForRoom();
  /// Whether there is one, and the request is refused for it.
  bool RefuseFor(const RequestParser::Problem& problem);
  void DropRequest();

  struct Piece {
    std::string bytes;
    absl::Time since;      // when it was queued, or when so many of its bytes had left:
    size_t sent_then = 0;  // see SetWriteTimer
    End end = End::kNone;
    bool close_after = false;
    std::shared_ptr<void> kept;  // until the last byte leaves
  };

  /// Counts bytes that came, or (negative) went; returns how many there are.
  int64_t CountUnsent(int64_t bytes);
  void Queue(std::string bytes, End end, bool close_after, std::shared_ptr<void> kept = nullptr);
  void Write();
  void OnWritten(size_t bytes);
  void AfterAnswer();
  void Linger();

  static int64_t SteadyNanos() { return absl::ToUnixNanos(SteadyNow()); }
  void SetReadTimer(absl::Duration timeout);
  void SetWriteTimer();
  void OnReadTimeout();
  void CloseNow();

  const std::shared_ptr<ServerCore> core_;
  ByteStream stream_;
  asio::steady_timer read_timer_;
  asio::steady_timer write_timer_;
  std::string peer_;
  std::string peer_host_;

  State state_ = State::kIdle;
  std::string input_;      // received, not parsed
  std::string read_into_;  // what the read under way fills
  bool reading_ = false;
  std::unique_ptr<RequestParser> parser_;
  const HttpHandler* handler_ = nullptr;  // of the request being received
  const HttpGuard* guard_ = nullptr;      // its; may be null
  HandlerKind handler_kind_ = HandlerKind::kQuick;
  bool refused_ = false;               // the client may still be sending a request that nobody reads
  std::unique_ptr<CountedBody> body_;  // of the request being received; null: none is

  // Set before an answer is made, and constant until its end.
  bool http_1_0_ = false;
  bool head_only_ = false;
  bool keep_alive_ = true;
  std::weak_ptr<Answer> answer_;

  std::deque<Piece> unsent_;
  size_t front_sent_ = 0;  // bytes of the front piece
  bool writing_ = false;
  std::atomic<int64_t> unsent_bytes_{0};            // any thread
  std::atomic<int64_t> arriving_bytes_{0};          // any thread
  std::atomic<int64_t> idle_since_{SteadyNanos()};  // any thread
  std::atomic<bool> gone_{false};                   // any thread
};

}  // namespace kvblend::server
