#include "server/api/routes.h"

#include <memory>
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
  router.Wrap([tracer = context.tracer](HttpHandler handler) { return Traced(tracer, std::move(handler)); });
  return router;
}

}  // namespace kvblend::server
