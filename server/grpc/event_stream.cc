#include "server/grpc/event_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/grpc/status.h"

namespace kvblend::server {

namespace {

// The client's clock and ours start at different ends of the network: its cancellation at the deadline
// arrives when ours has about this much left, at most.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(250);

class Reactor : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public MessageSender {
 public:
  explicit Reactor(std::shared_ptr<EventStream> stream) : stream_(std::move(stream)) {}

  void Send(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void FinishCall(grpc::Status status) override { Finish(std::move(status)); }

  void OnWriteDone(bool ok) override { stream_->OnSent(ok); }
  void OnCancel() override { stream_->OnCancel(); }
  void OnDone() override { delete this; }

 private:
  const std::shared_ptr<EventStream> stream_;
};

}  // namespace

EventStream::EventStream(size_t max_unsent_bytes, absl::Time deadline,
                         std::function<void(const absl::Status&)> on_closed)
    : max_unsent_bytes_(max_unsent_bytes), deadline_(deadline), on_closed_(std::move(on_closed)) {}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EventStream::MakeReactor(std::shared_ptr<EventStream> stream) {
  auto* reactor = new Reactor(stream);
  stream->Attach(reactor);
  return reactor;
}

bool EventStream::gone() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void EventStream::SetHandle(std::shared_ptr<RequestHandle> handle) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closing_) handle_ = handle;
    if (!cancelled_ && !too_slow_) return;
  }
  handle->Cancel();
}

void EventStream::Push(grpc::ByteBuffer message) {
  bool cancel = false;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) return;
    unsent_bytes_ += message.Length();
    unsent_.push_back(std::move(message));
    if (unsent_bytes_ > max_unsent_bytes_) {
      broken_ = too_slow_ = cancel = true;
      unsent_.clear();
    }
  }
  if (cancel) CancelRequest();
  Advance();
}

void EventStream::Close(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (too_slow_) {
      status = absl::ResourceExhaustedError(absl::StrCat("the client reads too slowly: more than ",
                                                         max_unsent_bytes_,
                                                         " bytes of the answer were waiting to be sent"));
    } else if (absl::IsCancelled(status) && absl::Now() >= deadline_ - kDeadlineSlack) {
      status = absl::DeadlineExceededError("the call's deadline has passed");
    }
    closing_ = true;
    handle_ = nullptr;
  }
  on_closed_(status);
  {
    // Not before: the message that is being sent may be done meanwhile, and would finish the call.
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
    closed_ = true;
  }
  Advance();
}

void EventStream::OnSent(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    busy_ = false;
    sending_.Clear();
    if (!ok) {
      broken_ = true;
      unsent_.clear();
    }
  }
  Advance();
}

void EventStream::OnCancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = broken_ = true;
    unsent_.clear();
  }
  CancelRequest();
  Advance();
}

void EventStream::CancelRequest() {
  std::shared_ptr<RequestHandle> handle;
  {
    absl::MutexLock lock(&mutex_);
    handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
}

void EventStream::Advance() {
  bool finish = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    finish = unsent_.empty();
    if (busy_ || (finish && !closed_)) return;
    busy_ = true;
    if (!finish) {
      sending_ = std::move(unsent_.front());
      unsent_.pop_front();
      unsent_bytes_ -= sending_.Length();
    } else {
      status = status_;
    }
  }
  // busy_ makes this thread the only one here, until gRPC reports that the operation is done; after Finish,
  // for good.
  if (finish) {
    sender_->FinishCall(ToGrpcStatus(status));
  } else {
    sender_->Send(&sending_);
  }
}

}  // namespace kvblend::server
