#include "server/cohere/chat_answer.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/characters.h"
#include "server/cohere/attended_parts.h"
#include "server/openai/generation_answer.h"

namespace kvblend::server::cohere {
namespace {

const char* FinishReasonOf(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "MAX_TOKENS";
    case v1::FINISH_REASON_STOP_STRING:
      return "STOP_SEQUENCE";
    default:
      return "COMPLETE";
  }
}

std::string Event(const char* type, Json object) {
  object["type"] = type;
  return absl::StrCat("event: ", type, "\ndata: ", EscapeLineEnds(ToText(object)), "\n\n");
}

/// {"index": 0, "delta": {"message": {part: value}}}
Json Delta(const char* part, Json value, int index = 0) {
  return {{"index", index}, {"delta", {{"message", {{part, std::move(value)}}}}}};
}

/// About how many bytes the names and values in a source's data have.
int64_t DataBytes(const Source& source) {
  size_t bytes = 0;
  for (const auto& [name, value] : source.data.items()) {
    bytes += name.size() + (value.is_string() ? value.get_ref<const std::string&>().size() : sizeof(double));
  }
  return static_cast<int64_t>(bytes);
}

/// Turns places in bytes into those in characters, which Cohere's clients count in; each place is at or
/// behind the one before.
class CharacterCount {
 public:
  explicit CharacterCount(std::string_view text) : text_(text) {}

  int64_t Before(int64_t byte) {
    characters_ += NumCharacters(text_.substr(byte_, byte - byte_));
    byte_ = byte;
    return characters_;
  }

 private:
  const std::string_view text_;
  int64_t byte_ = 0;
  int64_t characters_ = 0;
};

std::shared_ptr<CitedDocuments> DocumentsOf(const ChatRequest& request) {
  const v1::Prompt& prompt = request.request.prompt();
  if (!request.citations || prompt.chunks().empty()) return nullptr;
  return std::make_shared<CitedDocuments>(
      std::vector<std::string>(prompt.chunks().begin(), prompt.chunks().end()), prompt.question());
}

}  // namespace

std::string ErrorBody(const std::string& id, const absl::Status& status) {
  return ToText({{"id", id}, {"message", std::string(status.message())}});
}

ChatAnswer::ChatAnswer(std::string id, const ChatRequest& request)
    : id_(std::move(id)),
      stream_(request.stream),
      with_logprobs_(request.logprobs),
      with_attribution_(request.attribution),
      only_copied_(request.only_copied),
      sources_(request.sources),
      documents_(DocumentsOf(request)) {}

std::string ChatAnswer::Add(const v1::GenerateEvent& event) {
  switch (event.event_case()) {
    case v1::GenerateEvent::kPrompt: {
      report_ = event.prompt();
      if (!stream_) return "";
      const Json start = {{"id", id_},
                          {"delta",
                           {{"message",
                             {{"role", "assistant"},
                              {"content", Json::array()},
                              {"tool_plan", ""},
                              {"tool_calls", Json::array()},
                              {"citations", Json::array()}}}}}};
      return Event("message-start", start) +
             Event("content-start", Delta("content", {{"type", "text"}, {"text", ""}}));
    }
    case v1::GenerateEvent::kText: {
      text_ += event.text().text();
      if (with_logprobs_) KeepLogprobs(event.text());
      if (!stream_ || (event.text().text().empty() && !with_logprobs_)) return "";
      Json delta = Delta("content", {{"text", event.text().text()}});
      if (with_logprobs_) delta["logprobs"] = logprobs_.back();
      return Event("content-delta", std::move(delta));
    }
    case v1::GenerateEvent::kFinished: {
      finished_ = event.finished();
      attributions_ = finished_.attributions();
      if (!with_attribution_) finished_.clear_attributions();
      if (!stream_) return "";
      std::string events = Event("content-end", {{"index", 0}});
      int index = 0;
      for (const Json& citation : Citations()) {
        events += Event("citation-start", Delta("citations", citation, index));
        events += Event("citation-end", {{"index", index}});
        ++index;
      }
      const Json end = {
          {"id", id_},
          {"delta", {{"finish_reason", FinishReasonOf(finished_.reason())}, {"usage", Usage()}}},
          {"kvblend", openai::ReportExtension(report_, finished_)}};
      return events + Event("message-end", end);
    }
    case v1::GenerateEvent::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string ChatAnswer::Failed(const absl::Status& status) const {
  return Event(
      "message-end",
      {{"id", id_}, {"delta", {{"finish_reason", "ERROR"}, {"error", std::string(status.message())}}}});
}

std::string ChatAnswer::Body() const {
  Json message = {{"role", "assistant"}, {"content", Json::array({{{"type", "text"}, {"text", text_}}})}};
  if (Json citations = Citations(); !citations.empty()) message["citations"] = std::move(citations);
  Json body = {{"id", id_},
               {"message", std::move(message)},
               {"finish_reason", FinishReasonOf(finished_.reason())},
               {"usage", Usage()},
               {"kvblend", openai::ReportExtension(report_, finished_)}};
  if (with_logprobs_) body["logprobs"] = logprobs_;
  return ToText(body);
}

Json ChatAnswer::Citations() const {
  Json citations = Json::array();
  if (documents_ == nullptr) return citations;
  std::vector<Citation> found = documents_->finder().Find(text_);
  if (!only_copied_) {
    for (Citation& attended : CiteAttended(text_, attributions_, found)) found.push_back(std::move(attended));
    std::sort(found.begin(), found.end(),
              [](const Citation& a, const Citation& b) { return a.begin_byte < b.begin_byte; });
  }
  CharacterCount characters(text_);  // no citation overlaps another
  int64_t cited_bytes = 0;
  for (const Citation& citation : found) {
    Json sources = Json::array();
    for (const int32_t document : citation.documents) {
      const Source& source = sources_[document];
      Json& told = sources.emplace_back(Json{{"type", "document"}, {"id", source.id}});
      cited_bytes += DataBytes(source);
      if (cited_bytes <= kMaxCitedBytes) told["document"] = source.data;
    }
    const int64_t start = characters.Before(citation.begin_byte);
    citations.push_back({{"start", start},
                         {"end", characters.Before(citation.end_byte)},
                         {"text", text_.substr(citation.begin_byte, citation.end_byte - citation.begin_byte)},
                         {"content_index", 0},
                         {"type", "TEXT_CONTENT"},
                         {"sources", std::move(sources)}});
  }
  return citations;
}

Json ChatAnswer::Usage() const {
  const Json tokens = {{"input_tokens", finished_.usage().prompt_tokens()},
                       {"output_tokens", finished_.usage().completion_tokens()}};
  return {{"billed_units", tokens}, {"tokens", tokens}, {"cached_tokens", openai::CachedTokens(report_)}};
}

void ChatAnswer::KeepLogprobs(const v1::TextDelta& delta) {
  Json ids = Json::array(), logprobs = Json::array();
  for (const v1::TokenLogprob& token : delta.logprobs()) {
    ids.push_back(token.token_id());
    logprobs.push_back(token.logprob());
  }
  logprobs_.push_back(
      {{"token_ids", std::move(ids)}, {"text", delta.text()}, {"logprobs", std::move(logprobs)}});
}

}  // namespace kvblend::server::cohere
