// GET /ui and the files that the page asks for.
#include <string>
#include <string_view>

#include "server/api/answers.h"
#include "server/ui/assets.h"

namespace kvblend::server {
namespace {

constexpr char kScript[] = "text/javascript; charset=utf-8";

void AddFile(Router* router, const char* path, const char* content_type, std::string_view body) {
  router->Add(
      "GET", path, [content_type, body](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
        HttpResponse response;
        response.content_type = content_type;
        response.body = std::string(body);
        // The page loads nothing from outside, whatever a document's text may hold.
        response.headers = {
            {"Content-Security-Policy",
             "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
            {"X-Content-Type-Options", "nosniff"},
            {"Referrer-Policy", "no-referrer"},
            {"Cache-Control", "no-cache"}};
        responder->Send(std::move(response));
      });
}

}  // namespace

void AddUiRoutes(Router* router) {
  AddFile(router, "/ui", "text/html; charset=utf-8", ui::PageHtml());
  AddFile(router, "/ui/page.css", "text/css; charset=utf-8", ui::PageStyle());
  AddFile(router, "/ui/app.js", kScript, ui::AppScript());
  AddFile(router, "/ui/load.js", kScript, ui::LoadScript());
  AddFile(router, "/ui/report.js", kScript, ui::ReportScript());
  AddFile(router, "/ui/sample.js", kScript, ui::SampleScript());
  router->Add("GET", "/", [](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
    HttpResponse response;
    response.status = 302;
    response.headers = {{"Location", "ui"}};
    responder->Send(std::move(response));
  });
}

}  // namespace kvblend::server
