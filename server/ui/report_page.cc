#include "server/ui/report_page.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/convert/message_json.h"
#include "server/ui/assets.h"

namespace kvblend::server::ui {
namespace {

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

}  // namespace

std::string ReportPage(std::string_view question, std::string_view answer, const v1::PromptReport& report) {
  // Inside <script> only "<" could end what is JSON.
  const std::string json = absl::StrReplaceAll(MessageToJson(report), {{"<", "\\u003c"}});
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>kvblend: ",
      Escaped(question), "</title>\n<style>\n", absl::string_view(PageStyle().data(), PageStyle().size()),
      "</style>\n</head>\n<body>\n<main>\n<section><h1 dir=\"auto\">", Escaped(question),
      "</h1>\n<p class=\"answer\" dir=\"auto\">", Escaped(answer),
      "</p></section>\n<section aria-labelledby=\"report-title\"><h2 id=\"report-title\">What was done with the prompt</h2>"
      "<div id=\"report\"></div></section>\n</main>\n<script type=\"application/json\" id=\"data\">",
      json, "</script>\n<script>\n", absl::string_view(ReportScript().data(), ReportScript().size()),
      "drawReport(JSON.parse(document.getElementById('data').textContent), "
      "document.getElementById('report'));\n</script>\n</body>\n</html>\n");
}

}  // namespace kvblend::server::ui
