#include "server/http/answer.h"

#include <utility>

namespace kvblend::server {

Answer::~Answer() {
  bool begun = false;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kEnded) return;
    begun = state_ == State::kBegun;
  }
  if (begun) {
    Abort();
  } else {
    Send(connection_->core().error_page(500, "the server gave no answer"));
  }
}

void Answer::Send(HttpResponse response) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kNew) return;
  }
  response = WithRequestId(std::move(response), id_);
  const bool close = connection_->closes_after_answer();
  std::string bytes = ResponseHead(response, BodyFraming::kLength, close);
  // A large body is moved, and not there twice.
  if (!connection_->head_only()) bytes = std::move(response.body.insert(0, bytes));
  EndWith(std::move(bytes), Connection::End::kAnswer, close);
}

void Answer::Begin(HttpResponse head) {
  head = WithRequestId(std::move(head), id_);
  const std::string body = std::move(head.body);
  bool close = connection_->closes_after_answer();
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kNew) return;
    state_ = State::kBegun;
    framing_ = connection_->is_http_1_0() ? BodyFraming::kToClose : BodyFraming::kChunked;
    close = close || framing_ == BodyFraming::kToClose;
    connection_->Push(ResponseHead(head, framing_, close), Connection::End::kNone, close);
  }
  Write(body);
}

void Answer::Write(std::string piece) {
  absl::MutexLock lock(&mutex_);
  if (state_ != State::kBegun || connection_->head_only()) return;
  if (framing_ == BodyFraming::kChunked) piece = Chunk(piece);
  if (!piece.empty()) connection_->Push(std::move(piece), Connection::End::kNone, false);
}

void Answer::Finish() {
  std::string last;
  bool close = false;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kBegun) return;
    close = framing_ == BodyFraming::kToClose || connection_->closes_after_answer();
    if (framing_ == BodyFraming::kChunked && !connection_->head_only()) last = kLastChunk;
  }
  EndWith(std::move(last), Connection::End::kAnswer, close);
}

void Answer::Abort() { EndWith("", Connection::End::kAbort, true); }

void Answer::EndWith(std::string bytes, Connection::End end, bool close_after) {
  std::function<void()> dropped;  // outside of the lock: it may own what owns this object
  std::shared_ptr<void> kept;
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kEnded) return;
    state_ = State::kEnded;
    dropped = std::move(on_gone_);
    on_gone_ = nullptr;
    kept = std::move(kept_);
  }
  connection_->Push(std::move(bytes), end, close_after, std::move(kept));
}

void Answer::KeepUntilSent(std::shared_ptr<void> kept) {
  absl::MutexLock lock(&mutex_);
  if (state_ != State::kEnded) kept_ = std::move(kept);
}

void Answer::OnGone(std::function<void()> callback) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kEnded) return;
    if (!gone_) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Answer::Gone() {
  std::function<void()> callback;
  {
    absl::MutexLock lock(&mutex_);
    if (gone_) return;
    gone_ = true;
    callback = std::move(on_gone_);
    on_gone_ = nullptr;
  }
  if (callback) callback();
}

bool Answer::gone() const {
  absl::MutexLock lock(&mutex_);
  return gone_;
}

}  // namespace kvblend::server
