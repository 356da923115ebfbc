#include "server/http/operator_pages.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::server {
namespace {

HttpResponse Page(std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

/// For pages that need nothing of the request.
template <typename MakePage>
HttpHandler Serving(MakePage make_page) {
  return [make_page](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
    responder->Send(make_page());
  };
}

}  // namespace

Router OperatorPages(OperatorCallbacks callbacks) {
  Router router;
  const auto exposition = [](std::function<std::string()> metrics) {
    return Serving([metrics = std::move(metrics)] {
      HttpResponse page = Page(metrics());
      page.content_type = "text/plain; version=0.0.4; charset=utf-8";
      return page;
    });
  };
  router.Add("GET", "/metrics", exposition(std::move(callbacks.metrics)));
  router.Add("GET", "/metrics/vllm", exposition(std::move(callbacks.vllm_metrics)));
  router.Add("GET", "/healthz", Serving([] { return Page("ok\n"); }));
  router.Add("GET", "/readyz", Serving([not_ready = std::move(callbacks.not_ready_reason)] {
               const std::string reason = not_ready();
               return reason.empty() ? Page("ready\n") : Page(absl::StrCat(reason, "\n"), 503);
             }));
  router.Add(
      "GET", "/", Serving([] {
        return Page(
            "kvblend-server\n/metrics  Prometheus metrics\n/metrics/vllm  some of them under vLLM's names\n/healthz  200 while the process lives\n"
            "/readyz   200 while requests are accepted\n");
      }));
  return router;
}

HttpResponse PlainErrorPage(int status, const std::string& message) {
  return Page(absl::StrCat(message, "\n"), status);
}

}  // namespace kvblend::server
