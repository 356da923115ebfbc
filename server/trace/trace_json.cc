#include "server/trace/trace_json.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvblend::server {
namespace {

constexpr std::pair<RequestTrace::Track, const char*> kTracks[] = {
    {RequestTrace::Track::kRequest, "request"},
    {RequestTrace::Track::kEngine, "engine thread"},
    {RequestTrace::Track::kStream, "stream"},
};

int ThreadOf(RequestTrace::Track track) { return static_cast<int>(track) + 1; }

void AppendMicroseconds(int64_t nanoseconds, std::string* json) {
  absl::StrAppendFormat(json, "%d.%03d", nanoseconds / 1000, nanoseconds % 1000);
}

void AppendName(const char* kind, int thread, std::string_view name, std::string* json) {
  absl::StrAppendFormat(json, R"({"ph":"M","pid":1,"tid":%d,"name":"%s","args":{"name":"%s"}},)", thread,
                        kind, absl::string_view(name.data(), name.size()));
  absl::StrAppend(json, "\n");
}

/// With a comma behind it; nothing for an empty value.
std::string Member(const char* name, const std::string& value) {
  return value.empty() ? "" : absl::StrFormat(R"("%s":"%s",)", name, value);
}

void AppendEvent(const RequestTrace::Span& span, std::string* json) {
  absl::StrAppendFormat(json, R"({"ph":"X","pid":1,"tid":%d,"name":"%s)", ThreadOf(span.track), span.name);
  // Layers have numbers, to be told apart. Spans within them have none, so that viewers sum them by name.
  if (span.layer >= 0 && std::string_view(span.name) == "layer") absl::StrAppend(json, " ", span.layer);
  absl::StrAppend(json, "\",");
  absl::StrAppend(json, R"("ts":)");
  AppendMicroseconds(span.begin, json);
  absl::StrAppend(json, R"(,"dur":)");
  AppendMicroseconds(span.end - span.begin, json);
  absl::StrAppend(json, R"(,"args":{)");
  const char* comma = "";
  if (span.layer >= 0) {
    absl::StrAppend(json, R"("layer":)", span.layer);
    comma = ",";
  }
  for (const RequestTrace::Argument& argument : span.arguments) {
    if (argument.name == nullptr) continue;
    absl::StrAppend(json, comma, "\"", argument.name, "\":", argument.value);
    comma = ",";
  }
  absl::StrAppend(json, "}}");
}

}  // namespace

std::string TraceJson(const RequestTrace& trace, const TraceLabels& labels) {
  std::vector<RequestTrace::Span> spans = trace.spans();
  std::stable_sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::string json = absl::StrFormat(
      R"({"displayTimeUnit":"ms","otherData":{"trace_id":"%s","span_id":"%s",%s%s"method":"%s","code":"%s","started":"%s","dropped_spans":%d},)",
      labels.trace_id, labels.span_id, Member("request_id", labels.request_id),
      Member("client_request_id", labels.client_request_id), labels.method, labels.code,
      absl::FormatTime(absl::RFC3339_full, trace.started(), absl::UTCTimeZone()), trace.dropped());
  absl::StrAppend(&json, "\n\"traceEvents\":[\n");
  AppendName("process_name", 1, absl::StrCat(labels.method, " ", labels.trace_id), &json);
  for (const auto& [track, name] : kTracks) AppendName("thread_name", ThreadOf(track), name, &json);
  for (size_t i = 0; i < spans.size(); ++i) {
    AppendEvent(spans[i], &json);
    absl::StrAppend(&json, i + 1 < spans.size() ? ",\n" : "\n");
  }
  // Names end with a comma, which nothing may stand behind.
  if (spans.empty()) json.resize(json.rfind(','));
  absl::StrAppend(&json, "]}\n");
  return json;
}

}  // namespace kvblend::server
