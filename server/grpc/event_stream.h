// The sending side of a call. Of a server-streaming one it is fed by the engine's thread through an
// EventSink; a unary one is a stream of at most one message, which gRPC sends with the call's end.
//
//   engine thread:  Push, Push, .., Close                gRPC threads:  OnSent, OnCancel, OnDone
//
// Two objects with two lifetimes. The reactor belongs to gRPC, which calls it until OnDone, where it deletes
// itself. The EventStream is shared: by the reactor, and by the sink, which the engine may hold longer.
// It touches the reactor only while an operation of its own is due, and gRPC calls OnDone only after Finish,
// which is the last of them: so a sink that is still on its way out of Close never meets a deleted
// reactor.
//
// Every stream is closed exactly once by whoever feeds it: by the sink's OnDone, or by the service when
// the engine refused the request. A cancelled call is no exception: it is passed on to the engine, whose
// OnDone then closes the stream.
//
// A client that does not read leaves an operation of gRPC's under way for ever: what the call still has to
// say can't be said either. So who is too slow for the limits of OpenStreams has its call cancelled from this
// side.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/status.h"
#include "server/grpc/open_streams.h"

namespace kvblend::server {

/// Starts the operations of one call; of gRPC's reactors, what an EventStream uses. One operation at a time:
/// each is answered by EventStream::OnSent, but for Finish, after which nothing is called any more.
class MessageSender {
 public:
  virtual ~MessageSender() = default;
  /// `message` stays as it is until OnSent, or OnHeld.
  virtual void Send(const grpc::ByteBuffer* message) = 0;
  virtual void FinishCall(grpc::Status status) = 0;

  /// Ends the call at once, whatever is under way; may be called after the call's end too. The operation
  /// under way is then answered as not ok.
  using CancelCall = std::function<void(const absl::Status& status)>;
  virtual CancelCall NewCancelCall() = 0;
};

/// Thread-safe.
class EventStream : public std::enable_shared_from_this<EventStream> {
 public:
  /// `on_closed` is called once with the call's status, before the call is finished; from any thread. A call
  /// that is cancelled close to its `deadline` was cancelled by it: it is closed with DEADLINE_EXCEEDED, as
  /// the client sees.
  EventStream(std::shared_ptr<OpenStreams> streams, absl::Time deadline,
              std::function<void(const absl::Status&)> on_closed);
  ~EventStream();

  /// The reactor for gRPC; to be called once, before anything is pushed. It keeps this stream alive.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* MakeReactor(std::shared_ptr<EventStream> stream,
                                                                 grpc::CallbackServerContext* context);
  /// The same for a unary call, whose message goes into `response`.
  static grpc::ServerUnaryReactor* MakeUnaryReactor(std::shared_ptr<EventStream> stream,
                                                    grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response);
  /// The same with another sender, which must live until OnDone.
  void Attach(MessageSender* sender);

  // --- for the sender

  /// The message was sent, or (not `ok`) never will be.
  void OnSent(bool ok);
  /// In place of OnSent: the message, which must be the only one, leaves with FinishCall. It counts as unsent
  /// until the call's end.
  void OnHeld();
  /// The client has gone, or the deadline has passed.
  void OnCancel();
  /// The sender is about to go; nothing is called afterwards.
  void OnDone();

  // --- for OpenStreams

  /// Of what waits or is being sent; 0: the call was given up.
  size_t UnsentBytes() const;
  /// When the operation under way began; InfiniteFuture: there is none, or the call was given up.
  absl::Time SendingSince() const;
  /// Cancels the request, and ends the call at once, with RESOURCE_EXHAUSTED saying `why`.
  void EndAsTooSlow(const std::string& why);

  // --- for the call and its sink

  /// Whether the client has gone, or the deadline has passed.
  bool gone() const;

  /// What to cancel when the client goes away. If it has already gone, `handle` is cancelled at once.
  void SetHandle(std::shared_ptr<RequestHandle> handle);

  /// Drops `kept` before the call is finished.
  void KeepUntilSent(std::shared_ptr<void> kept);

  /// Queues one message. When the client reads so slowly that more wait than one stream may have, the request
  /// is cancelled and the call will end with RESOURCE_EXHAUSTED.
  void Push(grpc::ByteBuffer message);

  /// Ends the call after all that was pushed. After it neither Push nor Close may be called.
  void Close(absl::Status status);

 private:
  /// Starts the next operation, if one is due and none is under way. Called without the lock, since gRPC may
  /// complete an operation before it returns from starting it.
  void Advance();
  void CancelRequest();

  /// What waits will not be sent.
  void DropUnsent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<OpenStreams> streams_;
  const absl::Time deadline_;  // as SteadyNow counts
  const std::function<void(const absl::Status&)> on_closed_;
  MessageSender* sender_ = nullptr;

  mutable absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> unsent_ ABSL_GUARDED_BY(mutex_);
  size_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::ByteBuffer sending_;                          // the sender reads it until OnSent
  size_t sending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of it
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;         // an operation is under way
  absl::Time busy_since_ ABSL_GUARDED_BY(mutex_);     // meaningless while none is
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;       // nothing can or should be sent any more
  std::string too_slow_ ABSL_GUARDED_BY(mutex_);   // not empty: the client's reading is the reason for that
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;  // the call was cancelled from this side
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;   // the request is over
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;    // and on_closed_ knows
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;  // sender_ has gone
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<RequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<void> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::server
