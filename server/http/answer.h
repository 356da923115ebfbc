// The responder of one request on one connection. For this room's sources only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/http/connection.h"
#include "server/http/responder.h"

namespace kvblend::server {

/// Thread-safe.
class Answer : public HttpResponder {
 public:
  /// `id`: HttpRequest::id.
  Answer(std::shared_ptr<Connection> connection, std::string id)
      : connection_(std::move(connection)), id_(std::move(id)) {}
  ~Answer() override;

  void Send(HttpResponse response) override;
  void Begin(HttpResponse head) override;
  void Write(std::string piece) override;
  void Finish() override;
  void Abort() override;
  void OnGone(std::function<void()> callback) override;
  void KeepUntilSent(std::shared_ptr<void> kept) override;

  /// The client has gone, says the connection.
  void Gone();
  bool gone() const;

 private:
  enum class State : uint8_t { kNew, kBegun, kEnded };
  void EndWith(std::string bytes, Connection::End end, bool close_after);

  const std::shared_ptr<Connection> connection_;
  const std::string id_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  BodyFraming framing_ ABSL_GUARDED_BY(mutex_) = BodyFraming::kLength;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_gone_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<void> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::server
