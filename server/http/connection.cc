#include "server/http/connection.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/http/answer.h"
#include "server/http/request_head.h"

namespace kvblend::server {
namespace {

constexpr size_t kReadBytes = 16 << 10;  // at once, of bodies
constexpr size_t kIdleReadBytes =
    2 << 10;  // of connections that may stay idle: this is what each of them costs
constexpr absl::Duration kLookAfter =
    absl::Seconds(1);  // between two looks whether a client is there of whom nothing is read
constexpr char kTooManyBodies[] = "the server has too many large requests in hand; try again later";
// For a client to read the refusal of what it still sends.
constexpr absl::Duration kLingerTimeout = absl::Seconds(2), kLingerWhileDraining = absl::Milliseconds(250);

}  // namespace

void Connection::Read() {
  if (reading_ || state_ == State::kClosed) return;
  // More of later requests stays in the socket. Without reading, a timer looks whether the client has gone.
  if (state_ == State::kAnswering && input_.size() >= kReadBytes) return SetReadTimer(kLookAfter);
  reading_ = true;
  read_into_.resize(state_ == State::kIdle || state_ == State::kAnswering ? kIdleReadBytes : kReadBytes);
  stream_.Read(asio::buffer(read_into_), [self = shared_from_this()](const AsioError& error, size_t bytes) {
    self->reading_ = false;
    if (self->state_ == State::kClosed) return;
    if (error) {
      // A client that closes its half no longer waits for an answer.
      self->CloseNow();
      return;
    }
    if (self->state_ == State::kLingering) {
      self->Read();  // and drop what comes
      return;
    }
    self->input_.append(self->read_into_, 0, bytes);
    self->Process();
  });
}

void Connection::Process() {
  while (!input_.empty() && (state_ == State::kIdle || state_ == State::kReceiving)) {
    if (state_ == State::kIdle) {
      // Empty lines between requests are allowed (RFC 9112, 2.2).
      const size_t begin = input_.find_first_not_of("\r\n");
      input_.erase(0, std::min(begin, input_.size()));
      if (input_.empty()) break;
      state_ = State::kReceiving;
      idle_since_ = kBusy;
      parser_ =
          std::make_unique<RequestParser>(ParserLimits{.max_header_bytes = core_->options.max_header_bytes,
                                                       .max_body_bytes = core_->options.max_body_bytes});
      body_ = std::make_unique<CountedBody>(core_->pending_body_bytes);
      SetReadTimer(core_->options.request_timeout);
    }
    const bool had_head = parser_->header_done();
    RequestParser::Problem problem;
    const size_t consumed = parser_->Parse(input_, &problem);
    input_.erase(0, consumed);
    body_->Set(static_cast<int64_t>(parser_->body_bytes()));
    arriving_bytes_ = body_->bytes();
    if (RefuseFor(problem)) return;
    if (!had_head && parser_->header_done()) {
      OnHead();
      if (state_ != State::kReceiving) break;
    }
    if (RefuseForRoom()) return;
    if (parser_->done()) {
      Dispatch();
      break;
    }
    if (consumed == 0 && had_head == parser_->header_done()) {
      // The parser wants more in one piece: a line of the headers, or one before a chunk of the body.
      if (static_cast<int64_t>(input_.size()) > core_->options.max_header_bytes) {
        return Refuse(
            parser_->header_done() ? 400 : 431,
            absl::StrCat("a line of the request is longer than ", core_->options.max_header_bytes, " bytes"));
      }
      break;
    }
  }
  Read();
}

void Connection::DropRequest() {
  parser_ = nullptr;
  body_ = nullptr;
  arriving_bytes_ = 0;
}

bool Connection::RefuseForRoom() {
  // Small bodies do not fill the memory, so whoever fills it keeps nobody from asking a question.
  if (arriving_bytes_ <= core_->options.small_body_bytes || !core_->HasTooManyBodies()) return false;
  const std::shared_ptr<Connection> largest = core_->LargestArriving();
  if (largest != nullptr && largest->arriving_bytes() > arriving_bytes_) {
    largest->RefuseArriving();
    return false;
  }
  Refuse(503, kTooManyBodies);
  return true;
}

void Connection::RefuseArriving() {
  asio::post(stream_.socket().get_executor(), [self = shared_from_this()] {
    // Meanwhile its body may have come to its end, or another one been refused.
    if (self->arriving_bytes_ <= self->core_->options.small_body_bytes) return;
    if (self->core_->HasTooManyBodies()) self->Refuse(503, kTooManyBodies);
  });
}

void Connection::OnHead() {
  HttpRequest& request = parser_->request();
  head_only_ = request.method == "HEAD";
  if (head_only_) request.method = "GET";
  http_1_0_ = parser_->is_http_1_0();
  keep_alive_ = parser_->keep_alive();
  if (RefuseFor(CheckSingleHeaders(*parser_, core_->options.allowed_hosts))) return;
  if (RefuseFor(CheckTransferEncoding(*parser_)) || RefuseFor(TakeTarget(*parser_))) return;
  if (!FindHandler(request) || RefuseFor(CheckExpectAndBody(*parser_)) || RefuseByGuard()) return;
  if (request.FindHeader("expect") != nullptr && !http_1_0_ && parser_->has_body()) {
    Queue("HTTP/1.1 100 Continue\r\n\r\n", End::kNone, false);
  }
}

bool Connection::RefuseByGuard() {
  if (guard_ == nullptr) return false;
  std::optional<HttpResponse> answer = (*guard_)(parser_->request());
  if (!answer.has_value()) return false;
  Refuse(answer->status, absl::StrCat("asked by ", ClientOf(parser_->request())), &*answer);
  return true;
}

bool Connection::RefuseFor(const RequestParser::Problem& problem) {
  if (problem.status == 0) return false;
  Refuse(problem.status, problem.message);
  return true;
}

bool Connection::FindHandler(HttpRequest& request) {
  Router::Route route = core_->router.Find(request.method, request.path);
  if (route.handler != nullptr) {
    request.path_values = std::move(route.path_values);
    handler_ = route.handler;
    guard_ = route.guard;
    handler_kind_ = route.kind;
    return true;
  }
  if (route.allowed_methods.empty()) {
    Refuse(404, absl::StrCat("there is no ", request.method, " ", request.path));
    return false;
  }
  const std::string allowed = absl::StrJoin(route.allowed_methods, ", ");
  HttpResponse response = core_->error_page(
      405, absl::StrCat(request.method, " ", request.path, " is not possible; allowed: ", allowed));
  response.headers.emplace_back("Allow", allowed);
  Refuse(405, "", &response);
  return false;
}

std::string Connection::ClientOf(const HttpRequest& request) const {
  if (core_->options.trusted_proxies.empty()) return peer_host_;
  std::vector<std::string> values;  // several headers of that name are one list (RFC 9110, 5.3)
  for (const auto& [name, value] : request.headers) {
    if (name == "x-forwarded-for") values.push_back(value);
  }
  return core_->options.trusted_proxies.ClientOf(peer_host_, absl::StrJoin(values, ","));
}

void Connection::Dispatch() {
  read_timer_.cancel();
  state_ = State::kAnswering;
  HttpRequest request = std::move(parser_->request());
  parser_ = nullptr;
  arriving_bytes_ = 0;
  request.peer_host = ClientOf(request);
  request.peer = request.peer_host == peer_host_ ? peer_ : request.peer_host;
  request.id = NewRequestId();
  const std::string turn = request.turn.empty() ? request.peer_host : std::move(request.turn);
  const auto answer = std::make_shared<Answer>(shared_from_this(), request.id);
  answer_ = answer;
  // The router, whose handler it is, lives as long as the connection, which the answer holds. The body stays
  // counted while it waits for a handler, and until that has returned.
  core_->handlers.at(handler_kind_)
      .Run(turn, [handler = handler_, request = std::move(request), answer,
                  body = std::shared_ptr<CountedBody>(std::move(body_))]() mutable {
        // Whoever did not wait for the thread wants no answer.
        if (!answer->gone()) (*handler)(std::move(request), answer);
        body = nullptr;
      });
  Read();  // notices when the client goes
}

void Connection::Refuse(int status, const std::string& message, HttpResponse* given) {
  state_ = State::kAnswering;
  refused_ = true;
  // Of 503 there are several causes, and none has a setting. Other messages may repeat what the client sent.
  const bool is_own_text = given != nullptr || status == 408 || status == 431 || status == 503;
  core_->NoteRefusal(status, is_own_text ? message : "", status == 503 ? "" : core_->LimitName(status));
  read_timer_.cancel();
  const HttpResponse response =
      WithRequestId(given != nullptr ? std::move(*given) : core_->error_page(status, message));
  DropRequest();
  input_.clear();
  keep_alive_ = false;
  std::string bytes = ResponseHead(response, BodyFraming::kLength, /*close=*/true);
  if (!head_only_) bytes += response.body;
  Queue(std::move(bytes), End::kAnswer, /*close_after=*/true);
}

void Connection::OnReadTimeout() {
  switch (state_) {
    case State::kIdle:
    case State::kLingering:
      return CloseNow();
    case State::kReceiving:
      return Refuse(408, absl::StrCat("the request did not arrive within ",
                                      absl::FormatDuration(core_->options.request_timeout)));
    case State::kAnswering:
      return stream_.HungUp() ? CloseNow() : SetReadTimer(kLookAfter);
    case State::kClosed:
      return;
  }
}

void Connection::SetReadTimer(absl::Duration timeout) {
  read_timer_.expires_after(absl::ToChronoMilliseconds(timeout));
  read_timer_.async_wait([self = shared_from_this()](const AsioError& error) {
    // The timer was set anew after it had expired.
    if (error || self->read_timer_.expiry() > std::chrono::steady_clock::now()) return;
    self->OnReadTimeout();
  });
}

void Connection::CloseIfIdle(std::function<void(bool closed)> done) {
  asio::post(stream_.socket().get_executor(), [self = shared_from_this(), done = std::move(done)] {
    AsioError ignored;
    const bool idle = self->state_ == State::kIdle && self->stream_.socket().available(ignored) == 0;
    if (idle) {
      self->CloseNow();
    } else if (self->state_ == State::kIdle) {
      self->idle_since_ = SteadyNanos();  // others are asked first, while what has come is read
    }
    done(idle);
  });
}

void Connection::Linger() {
  state_ = State::kLingering;
  stream_.EndSending(shared_from_this());
  SetReadTimer(core_->draining ? kLingerWhileDraining : kLingerTimeout);
  Read();
}

void Connection::AfterAnswer() {
  answer_.reset();
  state_ = State::kIdle;
  idle_since_ = SteadyNanos();
  head_only_ = false;
  if (core_->draining) return CloseNow();
  SetReadTimer(core_->options.idle_timeout);
  Process();
}

}  // namespace kvblend::server
