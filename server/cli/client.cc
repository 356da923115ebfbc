#include "server/cli/client.h"

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"

namespace kvblend::server::cli {
namespace {

/// Hands a stream's events to the thread that waits for them.
template <typename Event>
class QueueSink : public EventSink<Event> {
 public:
  using Item = std::variant<Event, absl::Status>;  // the status is the last

  void OnEvent(const Event& event) override { Push(event); }
  void OnDone(const absl::Status& status) override { Push(status); }

  Item Pop() {
    absl::MutexLock lock(&mutex_);
    const auto has_item = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !items_.empty(); };
    mutex_.Await(absl::Condition(&has_item));
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  void Push(Item item) {
    absl::MutexLock lock(&mutex_);
    items_.push_back(std::move(item));
  }

  absl::Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

Client::Client(std::shared_ptr<Calls> calls, Cancellation& cancellation)
    : calls_(std::move(calls)), cancellation_(cancellation) {}

template <typename Request, typename Event, typename OnEvent>
absl::Status Client::Stream(Calls::Started (Calls::*call)(Request, const CallerContext&,
                                                          std::shared_ptr<EventSink<Event>>),
                            const Request& request, absl::Time deadline, OnEvent on_event,
                            std::shared_ptr<RequestTrace> trace) {
  const auto sink = std::make_shared<QueueSink<Event>>();
  KVBLEND_ASSIGN_OR_RETURN(
      const std::shared_ptr<RequestHandle> handle,
      (*calls_.*call)(request, {.client = "", .deadline = deadline, .trace = std::move(trace)}, sink));
  const Cancellation::Listener listener(cancellation_, [&] { handle->Cancel(); });
  while (true) {
    std::variant<Event, absl::Status> event = sink->Pop();
    if (const auto* status = std::get_if<absl::Status>(&event)) return *status;
    on_event(std::move(std::get<Event>(event)));
  }
}

absl::StatusOr<v1::GenerateFinished> Client::Generate(
    const v1::GenerateRequest& request, absl::Time deadline,
    const std::function<void(const v1::GenerateEvent&)>& on_event, std::shared_ptr<RequestTrace> trace) {
  std::optional<v1::GenerateFinished> finished;
  const auto keep_end = [&](const v1::GenerateEvent& event) {
    if (event.has_finished()) finished = event.finished();
    on_event(event);
  };
  KVBLEND_RETURN_IF_ERROR(Stream(&Calls::Generate, request, deadline, keep_end, std::move(trace)));
  if (!finished) return absl::InternalError("the answer ended without saying why");
  return *std::move(finished);
}

absl::StatusOr<Scores> Client::Score(const v1::ScoreRequest& request, absl::Time deadline) {
  Scores scores;
  KVBLEND_RETURN_IF_ERROR(Stream(&Calls::Score, request, deadline, [&](v1::ScoreEvent event) {
    if (event.has_prompt()) scores.prompt = std::move(*event.mutable_prompt());
    if (event.has_token()) scores.tokens.push_back(std::move(*event.mutable_token()));
  }));
  return scores;
}

absl::Status Client::Put(const v1::PutChunksRequest& request, absl::Time deadline,
                         const std::function<void(const v1::PutChunkProgress&)>& on_progress) {
  return Stream(&Calls::Put, request, deadline, on_progress);
}

absl::StatusOr<v1::GetInfoResponse> Client::GetInfo(std::string& tenant_namespace) {
  v1::GetInfoRequest request;
  request.set_namespace_(tenant_namespace);
  absl::StatusOr<v1::GetInfoResponse> info = calls_->GetInfo(request);
  if (!absl::IsPermissionDenied(info.status())) return info;
  info = calls_->GetInfo({});
  if (info.ok()) tenant_namespace.clear();
  return info;
}

}  // namespace kvblend::server::cli
