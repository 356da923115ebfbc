// POST /v1/chat/completions, POST /v1/completions, GET /v1/models.
#include <functional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "server/api/answers.h"
#include "server/api/generation_sink.h"
#include "server/openai/generation_answer.h"
#include "server/openai/generation_request.h"

namespace kvblend::server {
namespace {

class OpenAiWriter : public AnswerWriter {
 public:
  OpenAiWriter(openai::AnswerForm form, const openai::AnswerHead& head) : answer_(form, head) {}

  std::string Add(const v1::GenerateEvent& event) override { return answer_.Add(event); }
  std::string Failed(const absl::Status& status) const override {
    return openai::ServerSentEvent(openai::ToJson(openai::ErrorOf(status)));
  }
  std::string Body() const override { return answer_.Body(); }
  HttpResponse Error(const absl::Status& status) const override { return ErrorResponse(status); }

 private:
  openai::GenerationAnswer answer_;
};

using ParseGeneration = absl::StatusOr<openai::GenerationRequest> (*)(std::string_view body);

Calls::Started Start(ApiState& state, ParseGeneration parse, const std::string& id,
                     const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder,
                     const std::shared_ptr<CallLog>& log) {
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
  KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {}));
  KVBLEND_ASSIGN_OR_RETURN(openai::GenerationRequest generation, parse(request.body));
  KVBLEND_ASSIGN_OR_RETURN(const ModelCard::Card card, state.model.Find(generation.model));
  openai::AnswerHead head{.id = id,
                          .created = absl::ToUnixSeconds(absl::Now()),
                          .model = card.id,
                          .fingerprint = card.fingerprint};
  return calls->Generate(
      std::move(generation.request),
      {.client = request.peer_host, .trace = log->trace(), .on_dequeued = log->on_dequeued()},
      MakeGenerationSink(std::make_unique<OpenAiWriter>(generation.form, head), generation.form.stream,
                         head.id, responder, log));
}

HttpHandler GenerationHandler(std::shared_ptr<ApiState> state, const char* method, const char* id_prefix,
                              ParseGeneration parse) {
  return [state, method, id_prefix, parse](const HttpRequest& request,
                                           std::shared_ptr<HttpResponder> responder) {
    const std::string id = NewAnswerId(id_prefix);
    const auto log = state->Log(request, method, id);
    log->ExpectFirstToken();
    const Calls::Started started = Start(*state, parse, id, request, responder, log);
    if (started.ok()) {
      responder->OnGone([handle = *started] { handle->Cancel(); });
      return;
    }
    log->End(started.status());
    responder->Send(WithId(ErrorResponse(started.status()), id));
  };
}

/// The card of the model that `id` names.
absl::StatusOr<ModelCard::Card> CardFor(ApiState& state, const HttpRequest& request, const std::string& id) {
  KVBLEND_RETURN_IF_ERROR(state.Admit(request).status());
  KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {}));
  return state.model.Find(id);
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
              GenerationHandler(state, "ChatCompletions", "chatcmpl", &openai::ParseChatRequest),
              HandlerKind::kStream);
  router->Add("POST", "/v1/completions",
              GenerationHandler(state, "Completions", "cmpl", &openai::ParseCompletionRequest),
              HandlerKind::kStream);
  router->Add("GET", "/v1/models",
              [state](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                const auto log = state->Log(request, "ListModels");
                const auto card = CardFor(*state, request, "");
                log->End(card.status());
                if (!card.ok()) return responder->Send(ErrorResponse(card.status()));
                const Json list = {{"object", "list"}, {"data", Json::array({ModelObject(*card)})}};
                responder->Send(JsonResponse(ToText(list)));
              });
  router->Add("GET", "/v1/models/{id}",
              [state](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                const auto log = state->Log(request, "GetModel");
                const auto card = CardFor(*state, request, request.path_values.at("id"));
                log->End(card.status());
                if (!card.ok()) return responder->Send(ErrorResponse(card.status()));
                responder->Send(JsonResponse(ToText(ModelObject(*card))));
              });
}

}  // namespace kvblend::server
