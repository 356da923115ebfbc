// POST /v2/chat.
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/api/answers.h"
#include "server/api/generation_sink.h"
#include "server/cohere/chat_answer.h"
#include "server/cohere/chat_request.h"

namespace kvblend::server {
namespace {

/// Status and headers as everywhere, the body as Cohere's clients read it.
HttpResponse CohereError(const std::string& id, const absl::Status& status) {
  HttpResponse response = ErrorResponse(status);
  response.body = cohere::ErrorBody(id, status);
  return response;
}

class CohereWriter : public AnswerWriter {
 public:
  CohereWriter(std::string id, const cohere::ChatRequest& request)
      : id_(id), answer_(std::move(id), request) {}

  std::string Add(const v1::GenerateEvent& event) override { return answer_.Add(event); }
  std::string Failed(const absl::Status& status) const override { return answer_.Failed(status); }
  std::string Body() const override { return answer_.Body(); }
  const std::shared_ptr<cohere::CitedDocuments>& documents() const { return answer_.documents(); }
  HttpResponse Error(const absl::Status& status) const override { return CohereError(id_, status); }

 private:
  const std::string id_;
  cohere::ChatAnswer answer_;
};

Calls::Started Start(ApiState& state, const std::string& id, const HttpRequest& request,
                     const std::shared_ptr<HttpResponder>& responder, const std::shared_ptr<CallLog>& log) {
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
  KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {}));
  KVBLEND_ASSIGN_OR_RETURN(cohere::ChatRequest chat, cohere::ParseChatRequest(request.body));
  KVBLEND_RETURN_IF_ERROR(state.model.Find(chat.model).status());
  auto writer = std::make_unique<CohereWriter>(id, chat);
  const std::shared_ptr<cohere::CitedDocuments> documents = writer->documents();
  auto sink = MakeGenerationSink(std::move(writer), chat.stream, id, responder, log);
  Calls::Started started =
      calls->Generate(std::move(chat.request),
                      {.client = request.peer_host, .trace = log->trace(), .on_dequeued = log->on_dequeued()},
                      std::move(sink));
  if (!started.ok()) return started;
  responder->OnGone([handle = *started] { handle->Cancel(); });
  // Made now, while the prompt waits or is computed, on a thread that nobody else's answer needs.
  if (documents != nullptr) documents->finder();
  return started;
}

}  // namespace

void AddCohereRoutes(const std::shared_ptr<ApiState>& state, Router* router) {
  router->Add(
      "POST", "/v2/chat",
      [state](const HttpRequest& request, std::shared_ptr<HttpResponder> responder) {
        const std::string id = NewAnswerId("chat");
        const auto log = state->Log(request, "CohereChat", id);
        log->ExpectFirstToken();
        const Calls::Started started = Start(*state, id, request, responder, log);
        if (started.ok()) return;
        log->End(started.status());
        responder->Send(WithId(CohereError(id, started.status()), id));
      },
      HandlerKind::kStream,
      [state](HttpRequest& request) -> std::optional<HttpResponse> {
        const absl::Status status = state->CheckKey(request);
        if (status.ok()) return std::nullopt;
        const std::string id = NewAnswerId("chat");
        return WithId(CohereError(id, status), id);
      });
}

}  // namespace kvblend::server
