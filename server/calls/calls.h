// What clients can ask for, in the messages of kvblend.v1 and whatever carries them. The transports serve
// these calls, and the command line makes them: of an engine in its own process or of a server.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "kvblend/v1/admin.pb.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {

/// What is known of the caller besides the message.
struct CallerContext {
  std::string client;  // requests of one client and namespace share their turns in the queue
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<RequestTrace> trace =
      nullptr;  // where Generate and Score note what their time goes to; null: nowhere
  /// The engine's Caller::on_dequeued, of Generate and Score.
  std::function<void(double seconds)> on_dequeued = nullptr;
  /// Whether nobody waits for the answer any more. Asked meanwhile by Split, which takes long and has no
  /// handle. Empty: somebody does.
  std::function<bool()> gone = nullptr;
};

/// Receives a stream: OnEvent any number of times, then OnDone once. On threads of the callee's, one call at
/// a time; they must return quickly.
template <typename Event>
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void OnEvent(const Event& event) = 0;
  virtual void OnDone(const absl::Status& status) = 0;
  /// Called at most once, before anything else. Keeps `kept` until all events have left the server, and drops
  /// it right before the caller is told of the end. Sinks whose events are not queued drop it at once.
  virtual void KeepUntilSent(std::shared_ptr<void> kept) { kept = nullptr; }
};

/// Thread-safe. proto/kvblend/v1 documents messages and errors. Streams return at once, and an error only if
/// the sink is never called; everything else returns when it is done.
class Calls {
 public:
  using Started = absl::StatusOr<std::shared_ptr<RequestHandle>>;

  virtual ~Calls() = default;

  virtual Started Generate(v1::GenerateRequest request, const CallerContext& caller,
                           std::shared_ptr<EventSink<v1::GenerateEvent>> sink) = 0;
  virtual Started Score(v1::ScoreRequest request, const CallerContext& caller,
                        std::shared_ptr<EventSink<v1::ScoreEvent>> sink) = 0;
  virtual Started Put(v1::PutChunksRequest request, const CallerContext& caller,
                      std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) = 0;

  virtual absl::StatusOr<v1::SplitDocumentResponse> Split(v1::SplitDocumentRequest request,
                                                          const CallerContext& caller) = 0;
  virtual absl::StatusOr<v1::PrefetchChunksResponse> Prefetch(v1::PrefetchChunksRequest request) = 0;
  virtual absl::StatusOr<v1::StatChunksResponse> Stat(v1::StatChunksRequest request) = 0;
  virtual absl::StatusOr<v1::ListChunksResponse> List(v1::ListChunksRequest request) = 0;
  virtual absl::StatusOr<v1::DeleteChunksResponse> Delete(v1::DeleteChunksRequest request) = 0;
  virtual absl::StatusOr<v1::PinChunksResponse> Pin(v1::PinChunksRequest request) = 0;
  virtual absl::StatusOr<v1::GetInfoResponse> GetInfo(v1::GetInfoRequest request) = 0;
  virtual absl::StatusOr<v1::CorrectionInfo> UpdateCorrection(v1::UpdateCorrectionRequest request) = 0;

  /// kUnavailable, saying why, unless requests are accepted.
  virtual absl::Status CheckHealth() = 0;
};

}  // namespace kvblend::server
