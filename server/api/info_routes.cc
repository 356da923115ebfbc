// GET /v1/info: kvblend.v1.Admin.GetInfo as protobuf writes it in JSON.
#include "base/status_macros.h"
#include "server/api/answers.h"
#include "server/convert/message_json.h"
#include "server/http/http_message.h"

namespace kvblend::server {
namespace {

absl::StatusOr<v1::GetInfoResponse> InfoFor(const ApiState& state, const HttpRequest& request) {
  KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<Calls> calls, state.Admit(request));
  KVBLEND_RETURN_IF_ERROR(CheckQuery(request, {}));
  return calls->GetInfo(v1::GetInfoRequest());
}

}  // namespace

// Its calls are counted but not logged: pages and dashboards ask every few seconds.
void AddInfoRoutes(const std::shared_ptr<ApiState>& state, Router* router) {
  router->Add("GET", "/v1/info",
              [state](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                const absl::StatusOr<v1::GetInfoResponse> info = InfoFor(*state, request);
                state->context.metrics->CountHttpCall("GetInfo",
                                                      absl::StatusCodeToString(info.status().code()));
                if (!info.ok()) return responder->Send(ErrorResponse(info.status()));
                HttpResponse response = JsonResponse(MessageToJson(*info));
                response.headers = {{"Cache-Control", "no-store"}};
                responder->Send(std::move(response));
              });
}

}  // namespace kvblend::server
