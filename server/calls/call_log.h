// One line per call in the log, and what the metrics count of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"
#include "server/metrics/metrics.h"
#include "server/trace/tracer.h"

namespace kvblend::server {

inline constexpr char kStructuredLog[] = "kvblend.calls";
inline constexpr char kRequestIdHeader[] = "x-request-id";

/// `id`, a client's own name for its request, if it may stand in a line of the log: up to 128 letters, digits
/// and "-_.:/+=@~"; else empty.
std::string LoggableId(std::string_view id);

/// Lives as long as one call; not thread-safe.
class CallLog {
 public:
  /// What carries the call; the metrics count them apart.
  enum class Transport : uint8_t { kGrpc, kHttp };

  /// By which clients and proxies name a call besides its trace; empty: they don't.
  struct RequestIds {
    std::string answer;  // ours, in the answer's header x-request-id
    std::string client;  // what came in the header or metadata x-request-id; LoggableId's
  };

  /// `service` and `method` must outlive this object, `metrics` and `tracer` (null: no timelines are kept) as
  /// well. `context`: BeginCall's.
  CallLog(Metrics* metrics, Tracer* tracer, Transport transport, const char* service, const char* method,
          std::string peer, TraceContext context, RequestIds ids);

  const TraceContext& context() const { return context_; }
  /// For the call's CallerContext.
  const std::shared_ptr<RequestTrace>& trace() const { return trace_; }
  /// For that of a call that computes a prompt.
  std::function<void(double seconds)> on_dequeued() const {
    return [metrics = metrics_](double seconds) { metrics->ObserveQueueTime(seconds); };
  }

  /// To be called at the beginning of a call that computes a prompt: its end counts if it has no first token.
  void ExpectFirstToken() { expects_first_token_ = true; }

  /// Every event that is sent.
  void Note(const v1::GenerateEvent& event);
  void Note(const v1::ScoreEvent& event);
  void Note(const v1::PutChunkProgress& progress);

  /// To be called once. OK and the client's own doing (its cancellation, its deadline) at info, what the
  /// server could not do at error, bad requests and overload at warning. The line goes to the logger named
  /// kStructuredLog as the members of a JSON object where there is one, else to the default logger as text.
  /// Of errors it has LoggedMessage, for texts of requests are not logged.
  void End(const absl::Status& status);

 private:
  void NotePrompt(const v1::PromptReport& report);

  /// The log's line, as people read it.
  std::string Line(const std::string& code, double seconds, const absl::Status& status) const;
  /// The same as "name":value,...
  std::string Members(const std::string& code, double seconds, const absl::Status& status) const;

  Metrics* const metrics_;
  Tracer* const tracer_;
  const Transport transport_;
  const char* const service_;
  const char* const method_;
  const std::string peer_;
  const TraceContext context_;
  const RequestIds ids_;
  std::shared_ptr<RequestTrace> trace_;  // null: its timeline is not kept
  const absl::Time start_;
  bool expects_first_token_ = false;
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  absl::Time last_text_;  // when tokens were sent last; meaningless before the first
  int64_t recomputed_tokens_ = 0;
  double time_to_first_token_seconds_ = -1;  // -1: there was none
};

}  // namespace kvblend::server
