#include "server/grpc/event_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "grpc/grpc.h"
#include "server/grpc/status.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {

namespace {

// The client's clock and ours start at different ends of the network: its cancellation at the deadline
// arrives when ours has about this much left, at most.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(250);

absl::Status TooSlow(const std::string& why) {
  return absl::ResourceExhaustedError(absl::StrCat("the client reads too slowly: ", why));
}

/// What both kinds of calls have in common. `Base`: gRPC's reactor.
template <typename Base>
class CallReactor : public Base, public MessageSender {
 public:
  CallReactor(std::shared_ptr<EventStream> stream, grpc::CallbackServerContext* context)
      : stream_(std::move(stream)), call_(context->c_call()) {}

  CancelCall NewCancelCall() override {
    grpc_call_ref(call_);
    const std::shared_ptr<grpc_call> call(call_, &grpc_call_unref);
    // The context's TryCancel can't tell the client why.
    return [call](const absl::Status& status) {
      grpc_call_cancel_with_status(call.get(), static_cast<grpc_status_code>(status.code()),
                                   std::string(status.message()).c_str(), nullptr);
    };
  }

  void OnCancel() override { stream_->OnCancel(); }
  void OnDone() override {
    stream_->OnDone();
    delete this;
  }

 protected:
  EventStream& stream() { return *stream_; }

 private:
  const std::shared_ptr<EventStream> stream_;
  grpc_call* const call_;
};

class StreamReactor : public CallReactor<grpc::ServerWriteReactor<grpc::ByteBuffer>> {
 public:
  using CallReactor::CallReactor;
  void Send(const grpc::ByteBuffer* message) override { StartWrite(message); }
  void FinishCall(grpc::Status status) override { Finish(std::move(status)); }
  void OnWriteDone(bool ok) override { stream().OnSent(ok); }
};

class UnaryReactor : public CallReactor<grpc::ServerUnaryReactor> {
 public:
  UnaryReactor(std::shared_ptr<EventStream> stream, grpc::CallbackServerContext* context,
               grpc::ByteBuffer* response)
      : CallReactor(std::move(stream), context), response_(*response) {}
  void Send(const grpc::ByteBuffer* message) override {
    response_ = *message;
    stream().OnHeld();
  }
  void FinishCall(grpc::Status status) override {
    // gRPC ends the process over a success without a message, which is what a call whose client has gone
    // comes to.
    if (status.ok() && !response_.Valid()) status = grpc::Status::CANCELLED;
    Finish(std::move(status));
  }

 private:
  grpc::ByteBuffer& response_;
};

}  // namespace

EventStream::EventStream(std::shared_ptr<OpenStreams> streams, absl::Time deadline,
                         std::function<void(const absl::Status&)> on_closed)
    : streams_(std::move(streams)), deadline_(ToSteady(deadline)), on_closed_(std::move(on_closed)) {}

EventStream::~EventStream() {
  streams_->Remove(this);
  absl::MutexLock lock(&mutex_);
  DropUnsent();
  streams_->Went(sending_bytes_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* EventStream::MakeReactor(std::shared_ptr<EventStream> stream,
                                                                     grpc::CallbackServerContext* context) {
  auto* reactor = new StreamReactor(stream, context);
  stream->Attach(reactor);
  return reactor;
}

grpc::ServerUnaryReactor* EventStream::MakeUnaryReactor(std::shared_ptr<EventStream> stream,
                                                        grpc::CallbackServerContext* context,
                                                        grpc::ByteBuffer* response) {
  auto* reactor = new UnaryReactor(stream, context, response);
  stream->Attach(reactor);
  return reactor;
}

void EventStream::Attach(MessageSender* sender) {
  sender_ = sender;
  streams_->Add(this, weak_from_this());
}

bool EventStream::gone() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

void EventStream::SetHandle(std::shared_ptr<RequestHandle> handle) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closing_) handle_ = handle;
    if (!cancelled_ && too_slow_.empty()) return;
  }
  handle->Cancel();
}

void EventStream::KeepUntilSent(std::shared_ptr<void> kept) {
  absl::MutexLock lock(&mutex_);
  kept_ = std::move(kept);
}

void EventStream::Push(grpc::ByteBuffer message) {
  const size_t bytes = message.Length();
  bool cancel = false, too_many = false;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) return;
    too_many = streams_->Came(bytes);
    unsent_bytes_ += bytes;
    unsent_.push_back(std::move(message));
    // While nothing is being sent, the message goes out at once and waits for no reader.
    if (busy_ && unsent_bytes_ > streams_->max_unsent_bytes_of_one()) {
      broken_ = cancel = true;
      too_slow_ = absl::StrCat("more than ", streams_->max_unsent_bytes_of_one(),
                               " bytes of the answer were waiting to be sent");
      DropUnsent();
    }
  }
  if (cancel) {
    CancelRequest();
  } else if (too_many) {
    streams_->EndLargest();
  }
  Advance();
}

void EventStream::DropUnsent() {
  streams_->Went(unsent_bytes_);
  unsent_bytes_ = 0;
  unsent_.clear();
}

size_t EventStream::UnsentBytes() const {
  absl::MutexLock lock(&mutex_);
  return given_up_ ? 0 : unsent_bytes_ + sending_bytes_;
}

absl::Time EventStream::SendingSince() const {
  absl::MutexLock lock(&mutex_);
  return busy_ && !given_up_ ? busy_since_ : absl::InfiniteFuture();
}

void EventStream::EndAsTooSlow(const std::string& why) {
  MessageSender::CancelCall cancel_call;
  const absl::Status status = TooSlow(why);
  {
    absl::MutexLock lock(&mutex_);
    if (done_ || given_up_) return;
    given_up_ = broken_ = true;
    if (too_slow_.empty()) too_slow_ = why;
    DropUnsent();
    cancel_call = sender_->NewCancelCall();
    // The log already has the call as it ended for the engine.
    if (closing_)
      spdlog::warn("a gRPC call was ended while its answer was sent: {}", std::string(status.message()));
  }
  CancelRequest();
  cancel_call(status);
}

void EventStream::Close(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!too_slow_.empty()) {
      status = TooSlow(too_slow_);
    } else if (absl::IsCancelled(status) && SteadyNow() >= deadline_ - kDeadlineSlack) {
      status = absl::DeadlineExceededError("the call's deadline has passed");
    }
    closing_ = true;
    handle_ = nullptr;
  }
  on_closed_(status);
  {
    // Set after on_closed_: a message that has been sent meanwhile would otherwise finish the call.
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
    streams_->Went(sending_bytes_);
    sending_bytes_ = 0;
    if (!ok) {
      broken_ = true;
      DropUnsent();
    }
  }
  Advance();
}

void EventStream::OnHeld() {
  {
    absl::MutexLock lock(&mutex_);
    busy_ = false;
  }
  Advance();
}

void EventStream::OnCancel() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = broken_ = true;
    DropUnsent();
  }
  CancelRequest();
  Advance();
}

void EventStream::OnDone() {
  absl::MutexLock lock(&mutex_);
  done_ = true;
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
  std::shared_ptr<void> kept;
  {
    absl::MutexLock lock(&mutex_);
    finish = unsent_.empty();
    if (busy_ || (finish && !closed_)) return;
    busy_ = true;
    busy_since_ = SteadyNow();
    if (!finish) {
      sending_.Swap(&unsent_.front());
      unsent_.pop_front();
      sending_bytes_ = sending_.Length();
      unsent_bytes_ -= sending_bytes_;
    } else {
      status = status_;
      kept = std::move(kept_);
    }
  }
  // busy_ makes this thread the only one here, until gRPC reports that the operation is done; after Finish,
  // for good.
  if (finish) {
    kept = nullptr;
    sender_->FinishCall(ToGrpcStatus(status));
  } else {
    sender_->Send(&sending_);
  }
}

}  // namespace kvblend::server
