// Connection's other half: its beginning and end, and what it writes.
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "server/http/answer.h"
#include "server/http/connection.h"

namespace kvblend::server {
namespace {

// The system would keep megabytes for each client that does not read. Enough for some MB/s around the world.
constexpr int kSendBufferBytes = 128 << 10;
// A reader of a large answer that is slower has gone.
constexpr double kLeastBytesPerSecond = 16 << 10;

// The same words as gRPC's, so that a client has one place in the queue over both protocols: an IPv4 address
// at a socket that listens for both kinds is one, and brackets and '%' are encoded.
std::string HostOf(const asio::ip::address& address) {
  if (address.is_v4()) return absl::StrCat("ipv4:", address.to_string());
  asio::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) {
    return absl::StrCat("ipv4:", asio::ip::make_address_v4(asio::ip::v4_mapped, v6).to_string());
  }
  const auto scope = v6.scope_id();
  v6.scope_id(0);
  return absl::StrCat("ipv6:%5B", v6.to_string(), scope == 0 ? "" : absl::StrCat("%25", scope), "%5D");
}

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, tcp::socket socket, TlsContext tls)
    : core_(std::move(core)),
      stream_(std::move(socket), std::move(tls)),
      read_timer_(stream_.socket().get_executor()),
      write_timer_(stream_.socket().get_executor()) {
  AsioError error;
  const auto endpoint = stream_.socket().remote_endpoint(error);
  if (!error) {
    peer_host_ = HostOf(endpoint.address());
    peer_ = absl::StrCat(peer_host_, ":", endpoint.port());
  }
  stream_.socket().set_option(tcp::no_delay(true), error);
  stream_.socket().set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), error);
}

Connection::~Connection() {
  absl::MutexLock lock(&core_->mutex);
  core_->connections.erase(this);
}

void Connection::Start() {
  asio::post(stream_.socket().get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kClosed) return;  // the server shuts down
    if (!self->stream_.is_tls()) return self->AwaitRequest();
    self->SetReadTimer(self->core_->options.request_timeout);
    self->stream_.Handshake([self](const AsioError& error, size_t) {
      if (self->state_ == State::kClosed) return;
      if (error) return self->CloseNow();
      self->AwaitRequest();
    });
  });
}

void Connection::AwaitRequest() {
  SetReadTimer(core_->options.idle_timeout);
  Read();
}

void Connection::Drain() {
  asio::post(stream_.socket().get_executor(), [self = shared_from_this()] {
    if (self->state_ == State::kIdle) self->CloseNow();
    // The rest of it may take long to come, and would get this answer too.
    if (self->state_ == State::kReceiving) self->Refuse(503, "the server is shutting down");
  });
}

void Connection::Close() {
  asio::post(stream_.socket().get_executor(), [self = shared_from_this()] { self->CloseNow(); });
}

bool Connection::Push(std::string bytes, End end, bool close_after, std::shared_ptr<void> kept) {
  if (gone_ || core_->stopped) return false;
  const int64_t unsent = CountUnsent(static_cast<int64_t>(bytes.size()));
  // Only streams are bounded, in how far they run ahead of readers: a whole answer is in memory already.
  if (end == End::kNone && unsent > core_->options.max_unsent_bytes) {
    Close();
    return false;
  }
  if (core_->unsent_bytes > core_->options.max_unsent_bytes_of_all) core_->CloseLargest();
  asio::post(stream_.socket().get_executor(), [self = shared_from_this(), bytes = std::move(bytes), end,
                                               close_after, kept = std::move(kept)]() mutable {
    self->CountUnsent(-static_cast<int64_t>(bytes.size()));
    self->Queue(std::move(bytes), end, close_after, std::move(kept));
  });
  return true;
}

int64_t Connection::CountUnsent(int64_t bytes) {
  core_->unsent_bytes += bytes;
  return unsent_bytes_ += bytes;
}

void Connection::Queue(std::string bytes, End end, bool close_after, std::shared_ptr<void> kept) {
  if (state_ == State::kClosed) return;
  CountUnsent(static_cast<int64_t>(bytes.size()));
  unsent_.push_back({.bytes = std::move(bytes),
                     .since = SteadyNow(),
                     .end = end,
                     .close_after = close_after,
                     .kept = std::move(kept)});
  if (!writing_) Write();
}

void Connection::Write() {
  while (!unsent_.empty() && front_sent_ == unsent_.front().bytes.size()) {
    Piece piece = std::move(unsent_.front());
    unsent_.pop_front();
    piece.kept = nullptr;  // before the client can know that the answer is over
    front_sent_ = 0;
    CountUnsent(-static_cast<int64_t>(piece.bytes.size()));
    if (piece.end == End::kNone) continue;
    if (piece.end == End::kAbort) return CloseNow();
    write_timer_.cancel();
    // Closing with unread bytes makes the client lose what was sent; and TLS has an end of its own to send.
    if (piece.close_after) return refused_ || !input_.empty() || stream_.is_tls() ? Linger() : CloseNow();
    return AfterAnswer();
  }
  if (unsent_.empty()) {
    write_timer_.cancel();
    return;
  }
  constexpr size_t kPiecesAtOnce = 16;
  std::vector<asio::const_buffer> buffers;
  for (Piece& piece : unsent_) {
    const size_t skipped = buffers.empty() ? front_sent_ : 0;
    size_t size = piece.bytes.size() - skipped;
    // The last byte is sent by itself, after `kept` was dropped: clients that have it may rely on that.
    if (piece.kept != nullptr && buffers.empty() && size == 1) piece.kept = nullptr;
    if (piece.kept != nullptr && size > 0) --size;
    buffers.emplace_back(piece.bytes.data() + skipped, size);
    if (buffers.size() == kPiecesAtOnce || piece.end != End::kNone) break;
  }
  writing_ = true;
  SetWriteTimer();
  stream_.Write(buffers, [self = shared_from_this()](const AsioError& error, size_t bytes) {
    self->writing_ = false;
    if (self->state_ == State::kClosed) return;
    if (error) return self->CloseNow();
    self->OnWritten(bytes);
  });
}

void Connection::OnWritten(size_t bytes) {
  while (bytes > 0) {
    const size_t left = unsent_.front().bytes.size() - front_sent_;
    if (bytes < left) {
      front_sent_ += bytes;
      break;
    }
    bytes -= left;
    if (bytes == 0) {
      front_sent_ += left;
      break;
    }
    CountUnsent(-static_cast<int64_t>(unsent_.front().bytes.size()));
    unsent_.pop_front();
    front_sent_ = 0;
  }
  Write();
}

// Counts from when the oldest piece was queued: a client that reads a byte now and then does not win time by
// it. A large piece, such as an answer that is no stream, has as long again whenever its reader has taken
// enough.
void Connection::SetWriteTimer() {
  const absl::Duration timeout = core_->options.write_timeout;
  const absl::Duration left = unsent_.front().since + timeout - SteadyNow();
  write_timer_.expires_after(absl::ToChronoMilliseconds(std::max(left, absl::ZeroDuration())));
  write_timer_.async_wait([self = shared_from_this(), timeout](const AsioError& error) {
    if (error || !self->writing_ || self->write_timer_.expiry() > std::chrono::steady_clock::now()) return;
    Piece& piece = self->unsent_.front();
    const auto taken = static_cast<double>(self->front_sent_ - piece.sent_then);
    if (taken < kLeastBytesPerSecond * absl::ToDoubleSeconds(timeout)) return self->CloseNow();
    piece.since = SteadyNow();
    piece.sent_then = self->front_sent_;
    self->SetWriteTimer();
  });
}

void Connection::CloseNow() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  gone_ = true;
  read_timer_.cancel();
  write_timer_.cancel();
  stream_.Close();
  for (const Piece& piece : unsent_) CountUnsent(-static_cast<int64_t>(piece.bytes.size()));
  unsent_.clear();
  DropRequest();
  input_.clear();
  if (const std::shared_ptr<Answer> answer = answer_.lock()) answer->Gone();
  // Answers may hold this object for longer, but the server need not wait for it any more.
  absl::MutexLock lock(&core_->mutex);
  core_->connections.erase(this);
}

}  // namespace kvblend::server
