// The HTTP API: OpenAI's paths, Cohere's, those of the chunk store, and the page at /ui. docs/http-api.md
// documents it.
#pragma once

#include <string>

#include "server/calls/access.h"
#include "server/calls/calls.h"
#include "server/http/router.h"
#include "server/metrics/metrics.h"
#include "server/trace/tracer.h"

namespace kvblend::server {

/// What the handlers work with; all of it must outlive the server that they are given to, and `metrics` and
/// `tracer` the engine as well.
struct ApiContext {
  Calls* calls = nullptr;
  Access* access = nullptr;  // null: whoever calls may make all of them
  Metrics* metrics = nullptr;
  Tracer* tracer = nullptr;  // null: no timelines are kept
  std::string model_id;      // what clients call the model; empty: the name that its file gives
};

Router ApiRoutes(const ApiContext& context);

/// Errors in OpenAI's form.
HttpResponse ApiErrorPage(int status, const std::string& message);

}  // namespace kvblend::server
