// /v1/chunks: the chunk store, in the messages of kvblend.v1 as protobuf writes them in JSON.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/answers.h"
#include "server/calls/long_calls.h"
#include "server/convert/message_json.h"
#include "server/json/json.h"
#include "server/openai/chunk_request.h"
#include "server/openai/error.h"
#include "server/openai/generation_answer.h"

namespace kvblend::server {
namespace {

/// Writes each chunk as it is done, or all of them at the end.
class PutAnswerSink : public EventSink<v1::PutChunkProgress> {
 public:
  PutAnswerSink(bool stream, std::shared_ptr<HttpResponder> responder, std::shared_ptr<CallLog> log)
      : stream_(stream), responder_(std::move(responder)), log_(std::move(log)) {}

  void OnEvent(const v1::PutChunkProgress& progress) override {
    log_->Note(progress);
    std::string json = MessageToJson(progress);
    if (!stream_) {
      absl::StrAppend(&chunks_, chunks_.empty() ? "" : ",", json);
      return;
    }
    BeginStream();
    responder_->Write(openai::ServerSentEvent(json));
  }

  void OnDone(const absl::Status& status) override {
    log_->End(status);
    if (!status.ok() && !begun_) return responder_->Send(ErrorResponse(status));
    if (!stream_) return responder_->Send(JsonResponse(absl::StrCat("{\"chunks\":[", chunks_, "]}")));
    BeginStream();
    responder_->Write(status.ok() ? std::string(openai::kStreamEnd)
                                  : openai::ServerSentEvent(openai::ToJson(openai::ErrorOf(status))));
    responder_->Finish();
  }

  void KeepUntilSent(std::shared_ptr<void> kept) override { responder_->KeepUntilSent(std::move(kept)); }

 private:
  void BeginStream() {
    if (begun_) return;
    begun_ = true;
    HttpResponse head;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    responder_->Begin(std::move(head));
  }

  const bool stream_;
  const std::shared_ptr<HttpResponder> responder_;
  const std::shared_ptr<CallLog> log_;
  std::string chunks_;  // so far, without a stream
  bool begun_ = false;
};

void Put(ApiState& state, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
  const auto log = state.Log(request, "PutChunks");
  const Calls::Started started = [&]() -> Calls::Started {
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
    KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {}));
    KVBLEND_ASSIGN_OR_RETURN(openai::PutRequest put, openai::ParsePutRequest(request.body));
    return calls->Put(std::move(put.request), {.client = request.peer_host},
                      std::make_shared<PutAnswerSink>(put.stream, responder, log));
  }();
  if (started.ok()) {
    responder->OnGone([handle = *started] { handle->Cancel(); });
    return;
  }
  log->End(started.status());
  responder->Send(ErrorResponse(started.status()));
}

std::string JsonOf(const google::protobuf::Message& response) { return MessageToJson(response); }
std::string JsonOf(const v1::SplitDocumentResponse& response) { return SplitToJson(response); }

/// Ends a call that has one answer, which may be large: it is in memory once at a time.
template <typename Response>
void Answer(CallLog& log, absl::StatusOr<Response> response, HttpResponder& responder) {
  log.End(response.status());
  if (!response.ok()) return responder.Send(ErrorResponse(response.status()));
  HttpResponse json = JsonResponse(JsonOf(*response));
  response = absl::CancelledError();
  responder.Send(std::move(json));
}

/// Whether the client of `responder` has gone.
std::function<bool()> GoneOf(HttpResponder& responder) {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  responder.OnGone([gone] { *gone = true; });
  return [gone] { return gone->load(); };
}

/// A message in, a message out. `call` may ask for a CallerContext behind the message.
template <typename Request, typename Response, typename... Caller>
HttpHandler MessageHandler(std::shared_ptr<ApiState> state, const char* method,
                           absl::StatusOr<Response> (Calls::*call)(Request, Caller...)) {
  return [state, method, call](const HttpRequest& http_request,
                               const std::shared_ptr<HttpResponder>& responder) {
    const auto log = state->Log(http_request, method);
    absl::StatusOr<Response> response = [&]() -> absl::StatusOr<Response> {
      const auto calls = state->Admit(http_request);
      if (!calls.ok()) return calls.status();
      KVBLEND_RETURN_IF_ERROR(CheckQuery(http_request, {}));
      Request request;
      KVBLEND_RETURN_IF_ERROR(openai::ParseMessageBody(http_request.body, &request));
      if constexpr (sizeof...(Caller) == 0) {
        return (calls->get()->*call)(std::move(request));
      } else {
        return (calls->get()->*call)(std::move(request),
                                     {.client = http_request.peer_host, .gone = GoneOf(*responder)});
      }
    }();
    Answer(*log, std::move(response), *responder);
  };
}

/// For handlers of the kinds kLong and kTiers.
HttpHandler Yielding(HttpHandler handler) {
  return [handler = std::move(handler)](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    YieldToAnswers();
    handler(std::move(request), std::move(responder));
  };
}

absl::StatusOr<v1::ListChunksRequest> ListRequest(const HttpRequest& request) {
  KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {"namespace", "page_size", "page_token"}));
  v1::ListChunksRequest list;
  list.set_namespace_(QueryValue(request.query, "namespace"));
  list.set_page_token(QueryValue(request.query, "page_token"));
  const std::string page_size = QueryValue(request.query, "page_size");
  int32_t size = 0;
  if (page_size.empty()) return list;
  if (!absl::SimpleAtoi(page_size, &size)) {
    return FieldError("page_size", "page_size is no number; allowed: 1 to 1000");
  }
  list.set_page_size(size);
  return list;
}

void List(ApiState& state, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
  const auto log = state.Log(request, "ListChunks");
  auto response = [&]() -> absl::StatusOr<v1::ListChunksResponse> {
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
    KVBLEND_ASSIGN_OR_RETURN(v1::ListChunksRequest list, ListRequest(request));
    return calls->List(std::move(list));
  }();
  Answer(*log, std::move(response), *responder);
}

absl::Status NotStored(const std::string& key) {
  return absl::NotFoundError(absl::StrCat("there is no chunk ", key, " in this namespace"));
}

void StatOne(ApiState& state, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
  const auto log = state.Log(request, "StatChunks");
  auto response = [&]() -> absl::StatusOr<v1::ChunkInfo> {
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
    KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {"namespace"}));
    v1::StatChunksRequest stat;
    stat.set_namespace_(QueryValue(request.query, "namespace"));
    stat.add_keys(request.path_values.at("key"));
    KVBLEND_ASSIGN_OR_RETURN(const v1::StatChunksResponse found, calls->Stat(std::move(stat)));
    if (found.chunks().empty()) return NotStored(request.path_values.at("key"));
    return found.chunks(0);
  }();
  Answer(*log, std::move(response), *responder);
}

void DeleteOne(ApiState& state, const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
  const auto log = state.Log(request, "DeleteChunks");
  auto response = [&]() -> absl::StatusOr<v1::DeleteChunksResponse> {
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
    KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {"namespace"}));
    v1::DeleteChunksRequest removal;
    removal.set_namespace_(QueryValue(request.query, "namespace"));
    removal.add_keys(request.path_values.at("key"));
    KVBLEND_ASSIGN_OR_RETURN(v1::DeleteChunksResponse removed, calls->Delete(std::move(removal)));
    if (removed.failed() > 0) {
      return absl::UnavailableError(absl::StrCat("chunk ", removed.failed_keys(0),
                                                 " could not be removed everywhere, so that it may be ",
                                                 "found again; try again later: ", removed.failure()));
    }
    if (removed.deleted() == 0) return NotStored(request.path_values.at("key"));
    return removed;
  }();
  Answer(*log, std::move(response), *responder);
}

using StateHandler = void (*)(ApiState&, const HttpRequest&, const std::shared_ptr<HttpResponder>&);

HttpHandler With(std::shared_ptr<ApiState> state, StateHandler handler) {
  return [state, handler](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
    handler(*state, request, responder);
  };
}

}  // namespace

void AddChunkRoutes(const std::shared_ptr<ApiState>& state, Router* router) {
  router->Add("POST", "/v1/chunks", With(state, &Put), HandlerKind::kStream);
  router->Add("GET", "/v1/chunks", With(state, &List));
  router->Add("POST", "/v1/chunks/stat", MessageHandler(state, "StatChunks", &Calls::Stat));
  router->Add("POST", "/v1/chunks/delete", Yielding(MessageHandler(state, "DeleteChunks", &Calls::Delete)),
              HandlerKind::kTiers);
  router->Add("POST", "/v1/chunks/pin", Yielding(MessageHandler(state, "PinChunks", &Calls::Pin)),
              HandlerKind::kTiers);
  router->Add("POST", "/v1/chunks/split", Yielding(MessageHandler(state, "SplitDocument", &Calls::Split)),
              HandlerKind::kLong);
  router->Add("POST", "/v1/chunks/prefetch",
              Yielding(MessageHandler(state, "PrefetchChunks", &Calls::Prefetch)), HandlerKind::kTiers);
  router->Add("GET", "/v1/chunks/{key}", With(state, &StatOne));
  router->Add("DELETE", "/v1/chunks/{key}", Yielding(With(state, &DeleteOne)), HandlerKind::kTiers);
}

}  // namespace kvblend::server
