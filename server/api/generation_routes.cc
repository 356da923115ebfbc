// POST /v1/chat/completions, POST /v1/completions, GET /v1/models.
#include <functional>
#include <string>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "server/api/answers.h"
#include "server/openai/generation_answer.h"
#include "server/openai/generation_request.h"

namespace kvblend::server {
namespace {

std::string NewId(const char* prefix) {
  absl::BitGen random;
  return absl::StrFormat("%s-%016x%016x", prefix, absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint64_t>(random));
}

/// Writes an answer as its events come.
class AnswerSink : public EventSink<v1::GenerateEvent> {
 public:
  AnswerSink(openai::AnswerForm form, const openai::AnswerHead& head,
             std::shared_ptr<HttpResponder> responder, std::shared_ptr<CallLog> log)
      : form_(form),
        id_(head.id),
        answer_(form, head),
        responder_(std::move(responder)),
        log_(std::move(log)) {}

  void OnEvent(const v1::GenerateEvent& event) override {
    log_->Note(event);
    if (event.has_prompt()) headers_ = openai::ReportHeaders(event.prompt());
    std::string events = answer_.Add(event);
    if (!form_.stream) return;
    if (!begun_) {
      begun_ = true;
      HttpResponse head = Head("text/event-stream; charset=utf-8");
      head.headers.emplace_back("Cache-Control", "no-cache");
      head.headers.emplace_back("X-Accel-Buffering", "no");  // proxies are to pass on each event at once
      head.body = std::move(events);
      responder_->Begin(std::move(head));
    } else {
      responder_->Write(std::move(events));
    }
  }

  void OnDone(const absl::Status& status) override {
    log_->End(status);
    if (!status.ok() && begun_) {
      responder_->Write(openai::ServerSentEvent(openai::ToJson(openai::ErrorOf(status))));
      responder_->Finish();
    } else if (!status.ok()) {
      responder_->Send(ErrorResponse(status));
    } else if (form_.stream) {
      responder_->Finish();
    } else {
      HttpResponse response = Head("application/json");
      response.body = answer_.Body();
      responder_->Send(std::move(response));
    }
  }

 private:
  HttpResponse Head(const char* content_type) const {
    HttpResponse head;
    head.content_type = content_type;
    head.headers = headers_;
    head.headers.emplace_back("x-request-id", id_);
    return head;
  }

  const openai::AnswerForm form_;
  const std::string id_;
  openai::GenerationAnswer answer_;
  const std::shared_ptr<HttpResponder> responder_;
  const std::shared_ptr<CallLog> log_;
  std::vector<std::pair<std::string, std::string>> headers_;
  bool begun_ = false;
};

using ParseGeneration = absl::StatusOr<openai::GenerationRequest> (*)(std::string_view body);

Calls::Started Start(ApiState& state, ParseGeneration parse, const HttpRequest& request,
                     const std::shared_ptr<HttpResponder>& responder, const std::shared_ptr<CallLog>& log) {
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
  KVBLEND_ASSIGN_OR_RETURN(openai::GenerationRequest generation, parse(request.body));
  KVBLEND_ASSIGN_OR_RETURN(const ModelCard::Card card, state.model.Find(generation.model));
  openai::AnswerHead head{.id = NewId(generation.form.chat ? "chatcmpl" : "cmpl"),
                          .created = absl::ToUnixSeconds(absl::Now()),
                          .model = card.id,
                          .fingerprint = card.fingerprint};
  return calls->Generate(std::move(generation.request), {.client = request.peer_host},
                         std::make_shared<AnswerSink>(generation.form, head, responder, log));
}

HttpHandler GenerationHandler(std::shared_ptr<ApiState> state, const char* method, ParseGeneration parse) {
  return [state, method, parse](const HttpRequest& request, std::shared_ptr<HttpResponder> responder) {
    const auto log = state->Log(request, method);
    const Calls::Started started = Start(*state, parse, request, responder, log);
    if (started.ok()) {
      responder->OnGone([handle = *started] { handle->Cancel(); });
      return;
    }
    log->End(started.status());
    responder->Send(ErrorResponse(started.status()));
  };
}

Json ModelObject(const ModelCard::Card& card) {
  return {{"id", card.id},
          {"object", "model"},
          {"created", card.created},
          {"owned_by", "kvblend"},
          {"max_model_len", card.max_context_tokens}};
}

}  // namespace

void AddGenerationRoutes(const std::shared_ptr<ApiState>& state, Router* router) {
  router->Add("POST", "/v1/chat/completions",
              GenerationHandler(state, "ChatCompletions", &openai::ParseChatRequest));
  router->Add("POST", "/v1/completions",
              GenerationHandler(state, "Completions", &openai::ParseCompletionRequest));
  router->Add("GET", "/v1/models",
              [state](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                const auto calls = state->Admit(request);
                if (!calls.ok()) return responder->Send(ErrorResponse(calls.status()));
                const auto card = state->model.Get();
                if (!card.ok()) return responder->Send(ErrorResponse(card.status()));
                const Json list = {{"object", "list"}, {"data", Json::array({ModelObject(*card)})}};
                responder->Send(JsonResponse(ToText(list)));
              });
  router->Add("GET", "/v1/models/{id}",
              [state](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                const auto calls = state->Admit(request);
                if (!calls.ok()) return responder->Send(ErrorResponse(calls.status()));
                const auto card = state->model.Find(request.path_values.at("id"));
                if (!card.ok()) return responder->Send(ErrorResponse(card.status()));
                responder->Send(JsonResponse(ToText(ModelObject(*card))));
              });
}

}  // namespace kvblend::server
