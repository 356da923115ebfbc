// The HTTP side for operators: /metrics, /metrics/vllm, /healthz, /readyz. No request data passes here.
#pragma once

#include <functional>
#include <string>

#include "server/http/router.h"

namespace kvblend::server {

/// All callbacks may be called from several threads at once, until the server is destroyed.
struct OperatorCallbacks {
  std::function<std::string()> metrics;       // the exposition
  std::function<std::string()> vllm_metrics;  // what of it has a name in vLLM, under that name
  /// Empty when requests are accepted, else why not, in one line.
  std::function<std::string()> not_ready_reason;
};

Router OperatorPages(OperatorCallbacks callbacks);

/// Errors as a line of text.
HttpResponse PlainErrorPage(int status, const std::string& message);

}  // namespace kvblend::server
