// What the handlers of the API share. For this room's sources only.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "server/api/routes.h"
#include "server/calls/call_log.h"
#include "server/http/responder.h"

namespace kvblend::server {

HttpResponse JsonResponse(std::string body);

/// kInvalidArgument for a query with a name that is not among `names`, as whoever writes ?namespace= means
/// it, or with a value that is not UTF-8.
absl::Status CheckQuery(const HttpRequest& request, std::initializer_list<absl::string_view> names);

/// The error of a call, with Retry-After where trying again helps.
HttpResponse ErrorResponse(const absl::Status& status);

/// What the API calls the model, as the server says once it has loaded it. Thread-safe.
class ModelCard {
 public:
  explicit ModelCard(const ApiContext& context) : context_(context) {}

  struct Card {
    std::string id;
    std::string fingerprint;  // "fp_" and the beginning of the model's
    int64_t created = 0;      // seconds since 1970
    int32_t max_context_tokens = 0;
  };
  /// kUnavailable while there is no model.
  absl::StatusOr<Card> Get();
  /// kNotFound for another model's name. An empty one is whatever is served.
  absl::StatusOr<Card> Find(const std::string& id);

 private:
  const ApiContext context_;
  absl::Mutex mutex_;
  Card card_ ABSL_GUARDED_BY(mutex_);
};

/// A handler whose calls belong to a trace: their answers have the header traceresponse, and TraceOf tells of
/// it.
HttpHandler Traced(const Tracer* tracer, HttpHandler handler);
/// The trace of a request in a traced handler.
TraceContext TraceOf(const HttpRequest& request);

/// What one API's handlers hold on to.
struct ApiState {
  explicit ApiState(const ApiContext& api_context) : context(api_context), model(api_context) {}
  const ApiContext context;
  ModelCard model;

  /// The calls that the one who sent `request` may make.
  absl::StatusOr<std::shared_ptr<Calls>> Admit(const HttpRequest& request) const;
  /// Whether Admit would know the key, without a call's counting against anything. Its tenant's requests take
  /// turns with those of others.
  absl::Status CheckKey(HttpRequest& request) const;

  /// `id`: the answer's.
  std::shared_ptr<CallLog> Log(const HttpRequest& request, const char* method, std::string id) const {
    const std::string* client_id = request.FindHeader(kRequestIdHeader);
    return std::make_shared<CallLog>(
        context.metrics, context.tracer, CallLog::Transport::kHttp, "HTTP", method, request.peer,
        TraceOf(request),
        CallLog::RequestIds{.answer = std::move(id),
                            .client = client_id == nullptr ? "" : LoggableId(*client_id)});
  }
  std::shared_ptr<CallLog> Log(const HttpRequest& request, const char* method) const {
    return Log(request, method, request.id);
  }
};

void AddGenerationRoutes(const std::shared_ptr<ApiState>& state, Router* router);
void AddChunkRoutes(const std::shared_ptr<ApiState>& state, Router* router);
void AddCohereRoutes(const std::shared_ptr<ApiState>& state, Router* router);
void AddInfoRoutes(const std::shared_ptr<ApiState>& state, Router* router);
void AddUiRoutes(Router* router);

}  // namespace kvblend::server
