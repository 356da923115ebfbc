// Calls as commands make them: they block, and Ctrl-C ends them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/calls/calls.h"
#include "server/cli/cancellation.h"

namespace kvblend::server::cli {

struct Scores {
  v1::PromptReport prompt;
  std::vector<v1::ScoredToken> tokens;  // one per continuation token
};

/// Streams block until they are done; Ctrl-C ends them with kCancelled (see cancellation.h), and what they
/// report is handed over on the calling thread. What is looked up or cleaned up after Ctrl-C still goes
/// through, by calls(). Thread-safe.
class Client {
 public:
  /// `cancellation` must outlive this object.
  Client(std::shared_ptr<Calls> calls, Cancellation& cancellation);

  /// `trace`: of an engine in this process; a server keeps its own.
  absl::StatusOr<v1::GenerateFinished> Generate(const v1::GenerateRequest& request, absl::Time deadline,
                                                const std::function<void(const v1::GenerateEvent&)>& on_event,
                                                std::shared_ptr<RequestTrace> trace = nullptr);
  absl::StatusOr<Scores> Score(const v1::ScoreRequest& request, absl::Time deadline);
  absl::Status Put(const v1::PutChunksRequest& request, absl::Time deadline,
                   const std::function<void(const v1::PutChunkProgress&)>& on_progress);

  /// About the server, for who stores chunks in a namespace of his choice. A key may have a namespace of its
  /// own instead, and allow no other: `tenant_namespace` becomes empty then, which stands for that one.
  absl::StatusOr<v1::GetInfoResponse> GetInfo(std::string& tenant_namespace);

  Calls& calls() { return *calls_; }

 private:
  template <typename Request, typename Event, typename OnEvent>
  absl::Status Stream(Calls::Started (Calls::*call)(Request, const CallerContext&,
                                                    std::shared_ptr<EventSink<Event>>),
                      const Request& request, absl::Time deadline, OnEvent on_event,
                      std::shared_ptr<RequestTrace> trace = nullptr);

  const std::shared_ptr<Calls> calls_;
  Cancellation& cancellation_;
};

}  // namespace kvblend::server::cli
