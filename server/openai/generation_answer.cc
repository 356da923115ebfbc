#include "server/openai/generation_answer.h"

#include "absl/strings/str_cat.h"
#include "base/characters.h"
#include "server/convert/message_json.h"

namespace kvblend::server::openai {
namespace {

Json MessageAsJson(const google::protobuf::Message& message) {
  return Json::parse(MessageToJson(message), /*cb=*/nullptr, /*allow_exceptions=*/false);
}

Json BytesOf(const std::string& token) {
  Json bytes = Json::array();
  for (const char c : token) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

Json ChatToken(const v1::TokenLogprob& token) {
  return {{"token", token.text()}, {"logprob", token.logprob()}, {"bytes", BytesOf(token.bytes())}};
}

Json FinishReasonOf(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_MAX_TOKENS:
    case v1::FINISH_REASON_CONTEXT_FULL:
      return "length";
    default:
      return "stop";
  }
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ReportHeaders(const v1::PromptReport& report) {
  return {{"kvblend-prompt-tokens", absl::StrCat(report.prompt_tokens())},
          {"kvblend-kept-tokens", absl::StrCat(report.kept_tokens())},
          {"kvblend-exact-tokens", absl::StrCat(report.exact_tokens())},
          {"kvblend-reused-tokens", absl::StrCat(report.reused_tokens())},
          {"kvblend-recomputed-tokens", absl::StrCat(report.recomputed_tokens())},
          {"kvblend-computed-tokens", absl::StrCat(report.computed_tokens())}};
}

Json ReportExtension(const v1::PromptReport& report, const v1::GenerateFinished& finished) {
  return {{"prompt", MessageAsJson(report)}, {"finished", MessageAsJson(finished)}};
}

int64_t CachedTokens(const v1::PromptReport& report) {
  return int64_t{report.kept_tokens()} + report.exact_tokens() + report.reused_tokens();
}

std::string ServerSentEvent(const std::string& data) {
  return absl::StrCat("data: ", EscapeLineEnds(data), "\n\n");
}

GenerationAnswer::GenerationAnswer(AnswerForm form, AnswerHead head) : form_(form), head_(std::move(head)) {
  if (form_.logprobs && form_.chat) logprobs_ = {{"content", Json::array()}, {"refusal", nullptr}};
  if (form_.logprobs && !form_.chat) {
    logprobs_ = {{"tokens", Json::array()},
                 {"token_logprobs", Json::array()},
                 {"top_logprobs", Json::array()},
                 {"text_offset", Json::array()}};
  }
}

Json GenerationAnswer::Object() const {
  const char* kind = "text_completion";
  if (form_.chat) kind = form_.stream ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head_.id},
          {"object", kind},
          {"created", head_.created},
          {"model", head_.model},
          {"system_fingerprint", head_.fingerprint}};
}

Json GenerationAnswer::StreamChoice(const Json& piece, const Json& logprobs,
                                    const Json& finish_reason) const {
  return Json::array({{{"index", 0},
                       {form_.chat ? "delta" : "text", piece},
                       {"logprobs", logprobs},
                       {"finish_reason", finish_reason}}});
}

std::string GenerationAnswer::Event(Json object, const Json& choices) const {
  object["choices"] = choices;
  if (form_.include_usage && !object.contains("usage")) object["usage"] = nullptr;
  return ServerSentEvent(ToText(object));
}

std::string GenerationAnswer::Add(const v1::GenerateEvent& event) {
  switch (event.event_case()) {
    case v1::GenerateEvent::kPrompt:
      report_ = event.prompt();
      if (!form_.stream || !form_.chat) return "";
      return Event(Object(), StreamChoice({{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
    case v1::GenerateEvent::kText: {
      const Json logprobs = form_.logprobs ? Logprobs(event.text()) : Json();
      if (!form_.stream) {
        text_ += event.text().text();
        if (form_.logprobs) KeepLogprobs(logprobs);
        return "";
      }
      if (event.text().text().empty() && !form_.logprobs) return "";
      const Json piece = form_.chat ? Json({{"content", event.text().text()}}) : Json(event.text().text());
      return Event(Object(), StreamChoice(piece, logprobs, nullptr));
    }
    case v1::GenerateEvent::kFinished: {
      finished_ = event.finished();
      if (!form_.stream) return "";
      Json last = Object();
      last["kvblend"] = ReportExtension(report_, finished_);
      const Json piece = form_.chat ? Json::object() : Json("");
      std::string events =
          Event(std::move(last), StreamChoice(piece, nullptr, FinishReasonOf(finished_.reason())));
      if (form_.include_usage) {
        Json usage = Object();
        usage["usage"] = Usage();
        events += Event(std::move(usage), Json::array());
      }
      return events + kStreamEnd;
    }
    case v1::GenerateEvent::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string GenerationAnswer::Body() const {
  Json choice = {
      {"index", 0}, {"logprobs", logprobs_}, {"finish_reason", FinishReasonOf(finished_.reason())}};
  if (form_.chat) {
    choice["message"] = {{"role", "assistant"}, {"content", text_}, {"refusal", nullptr}};
  } else {
    choice["text"] = text_;
  }
  Json body = Object();
  body["choices"] = Json::array({choice});
  body["usage"] = Usage();
  body["kvblend"] = ReportExtension(report_, finished_);
  return ToText(body);
}

Json GenerationAnswer::Logprobs(const v1::TextDelta& delta) {
  Json logprobs = form_.chat ? Json{{"content", Json::array()}, {"refusal", nullptr}}
                             : Json{{"tokens", Json::array()},
                                    {"token_logprobs", Json::array()},
                                    {"top_logprobs", Json::array()},
                                    {"text_offset", Json::array()}};
  int64_t offset = delta.begin_character();
  for (int i = 0; i < delta.logprobs_size(); ++i) {
    const v1::TokenLogprob& token = delta.logprobs(i);
    if (form_.chat) {
      Json entry = ChatToken(token);
      entry["top_logprobs"] = Json::array();
      if (form_.top_logprobs > 0 && i < delta.top_logprobs_size()) {
        for (const v1::TokenLogprob& top : delta.top_logprobs(i).tokens())
          entry["top_logprobs"].push_back(ChatToken(top));
      }
      logprobs["content"].push_back(std::move(entry));
      continue;
    }
    logprobs["tokens"].push_back(token.text());
    logprobs["token_logprobs"].push_back(token.logprob());
    logprobs["text_offset"].push_back(offset);
    offset += NumCharacters(token.text());
    Json tops = Json::object();
    if (form_.top_logprobs > 0 && i < delta.top_logprobs_size()) {
      // Tokens may have the same text, such as parts of characters. The most likely comes first, and stays.
      for (const v1::TokenLogprob& top : delta.top_logprobs(i).tokens())
        tops.emplace(top.text(), top.logprob());
      tops.emplace(token.text(), token.logprob());  // as OpenAI has it, where it is none of these
    }
    logprobs["top_logprobs"].push_back(form_.top_logprobs > 0 ? std::move(tops) : Json());
  }
  return logprobs;
}

void GenerationAnswer::KeepLogprobs(const Json& logprobs) {
  for (const auto& [name, values] : logprobs.items()) {
    if (!values.is_array()) continue;
    for (const Json& value : values) logprobs_[name].push_back(value);
  }
}

Json GenerationAnswer::Usage() const {
  const v1::Usage& usage = finished_.usage();
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", CachedTokens(report_)}}}};
}

}  // namespace kvblend::server::openai
