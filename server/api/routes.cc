#include "server/api/routes.h"

#include <memory>
#include <optional>
#include <utility>

#include "server/api/answers.h"
#include "server/api/openapi.h"

namespace kvblend::server {

Router ApiRoutes(const ApiContext& context) {
  const auto state = std::make_shared<ApiState>(context);
  Router router;
  AddGenerationRoutes(state, &router);
  AddChunkRoutes(state, &router);
  AddCohereRoutes(state, &router);
  AddInfoRoutes(state, &router);
  AddUiRoutes(&router);
  router.Add("GET", "/openapi.json", [](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
    responder->Send(JsonResponse(OpenApiDocument()));
  });
  // A body may be large and slow, and takes memory that all bodies share: whose it is must be known first.
  router.GuardPosts([state](HttpRequest& request) -> std::optional<HttpResponse> {
    const absl::Status status = state->CheckKey(request);
    if (status.ok()) return std::nullopt;
    return ErrorResponse(status);
  });
  router.Wrap([tracer = context.tracer](HttpHandler handler) { return Traced(tracer, std::move(handler)); });
  return router;
}

}  // namespace kvblend::server
