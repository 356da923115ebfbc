#include "server/cohere/chat_request.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/openai/generation_request.h"
#include "server/openai/prompt_mapping.h"

namespace kvblend::server::cohere {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxTopK = 500;
constexpr int64_t kMaxStopSequences = 5;
constexpr int64_t kMaxPriority = 999;   // the lowest
constexpr size_t kMaxIdBytes = 256;     // of a document: no part of the prompt, and in each of its citations
constexpr size_t kShownNameBytes = 80;  // of a document's field, in messages
constexpr double kTwoTo64 = 18446744073709551616.0;
// The defaults that Cohere's API documents.
constexpr double kTemperature = 0.3;
constexpr double kTopP = 0.75;

/// The text that the model sees of a document: its title, its other fields, its text.
absl::StatusOr<std::string> TextOf(const Json& data, const std::string& path) {
  if (data.is_string()) return openai::DocumentText("", data.get<std::string>());
  if (!data.is_object() || data.empty()) {
    return FieldError(path,
                      absl::StrCat(path, " is no document; allowed: a string, or an object of strings"));
  }
  std::string title, others, text;
  bool has_values = false;
  for (const auto& [name, value] : data.items()) {
    if (value.is_null()) continue;  // is as good as absent, as everywhere
    has_values = true;
    const std::string shown = absl::StrCat(path, ".", name.substr(0, kShownNameBytes));
    const auto refused = [&](const char* why) {
      return LogAs(FieldError(shown, absl::StrCat(shown, why)), absl::StrCat("a member of ", path, why));
    };
    if (!value.is_string() && !value.is_number() && !value.is_boolean()) {
      return refused(" is no value; allowed: a string, a number or a boolean");
    }
    // Such a number has been rounded, and model and citation would have other digits than the document.
    if (value.is_number_float() && std::abs(value.get<double>()) >= kTwoTo64) {
      return refused(" is a number of 2^64 or more; allowed: as a string");
    }
    const std::string content = value.is_string() ? value.get<std::string>() : ToText(value);
    if (name == "title") {
      title = content;
    } else if (name == "text" || name == "snippet") {
      absl::StrAppend(&text, text.empty() ? "" : "\n", content);
    } else {
      absl::StrAppend(&others, others.empty() ? "" : "\n", name, ": ", content);
    }
  }
  if (!has_values) {
    return FieldError(path,
                      absl::StrCat(path, " has only members that are null; allowed: one or more others"));
  }
  if (!others.empty() && !text.empty()) others += "\n";
  return openai::DocumentText(title, others + text);
}

absl::Status AddDocuments(const Json& documents, ChatRequest* to) {
  if (!documents.is_array()) {
    return FieldError("documents", "documents is no array; allowed: an array of strings or objects");
  }
  for (size_t i = 0; i < documents.size(); ++i) {
    const std::string path = absl::StrCat("documents[", i, "]");
    Source source{.id = absl::StrCat("doc:", i), .data = documents[i]};
    std::string data_path = path;
    if (documents[i].is_object()) {
      FieldReader fields(documents[i], path);
      if (auto id = fields.String("id")) source.id = *std::move(id);
      if (source.id.size() > kMaxIdBytes) {
        fields.Note(
            FieldError(fields.PathOf("id"), absl::StrCat(fields.PathOf("id"), " has ", source.id.size(),
                                                         " bytes; allowed: at most ", kMaxIdBytes)));
      }
      const Json* data = fields.Value("data");
      KVBLEND_RETURN_IF_ERROR(fields.Finish());
      data_path = fields.PathOf("data");
      if (data == nullptr) {
        return FieldError(data_path, absl::StrCat(data_path, " is not set; allowed: an object of strings"));
      }
      source.data = *data;
    }
    KVBLEND_ASSIGN_OR_RETURN(std::string text, TextOf(source.data, data_path));
    to->request.mutable_prompt()->add_chunks(std::move(text));
    if (source.data.is_string()) source.data = {{"text", source.data}};
    to->sources.push_back(std::move(source));
  }
  return absl::OkStatus();
}

void ReadStop(FieldReader& fields, v1::SamplingOptions* sampling) {
  const Json* stop = fields.Value("stop_sequences");
  if (stop == nullptr) return;
  bool good = stop->is_array() && static_cast<int64_t>(stop->size()) <= kMaxStopSequences;
  for (size_t i = 0; good && i < stop->size(); ++i) {
    good = (*stop)[i].is_string();
    if (good) sampling->add_stop((*stop)[i].get<std::string>());
  }
  if (!good) {
    fields.Note(
        FieldError("stop_sequences", absl::StrCat("stop_sequences is no list of strings; allowed: up to ",
                                                  kMaxStopSequences, " strings")));
  }
}

double ReadPenalty(FieldReader& fields, const std::string& name) {
  const double penalty = fields.Number(name).value_or(0);
  if (!(penalty >= 0 && penalty <= 1))
    fields.Note(FieldError(name, absl::StrCat(name, " is ", penalty, "; allowed: 0 to 1")));
  return penalty;
}

void ReadSampling(FieldReader& fields, ChatRequest* to) {
  v1::SamplingOptions& sampling = *to->request.mutable_sampling();
  if (const auto most = fields.Integer("max_tokens", 1, kInt32Max))
    sampling.set_max_tokens(static_cast<int32_t>(*most));
  sampling.set_temperature(fields.Number("temperature").value_or(kTemperature));
  if (const auto k = fields.Integer("k", 0, kMaxTopK)) sampling.set_top_k(static_cast<int32_t>(*k));
  const double p = fields.Number("p").value_or(kTopP);
  if (!(p > 0 && p <= 1)) fields.Note(FieldError("p", absl::StrCat("p is ", p, "; allowed: above 0, to 1")));
  sampling.set_top_p(p);
  if (const auto seed = fields.Bits64("seed")) sampling.set_seed(openai::SeedOf(*seed));
  to->logprobs = fields.Bool("logprobs").value_or(false);
  if (to->logprobs) sampling.set_top_logprobs(0);
  ReadStop(fields, &sampling);
  sampling.set_frequency_penalty(ReadPenalty(fields, "frequency_penalty"));
  sampling.set_presence_penalty(ReadPenalty(fields, "presence_penalty"));
}

/// 0, the highest, is the default: the key's own priority, or normal. All others are low.
void ReadPriority(FieldReader& fields, v1::GenerateRequest* request) {
  const auto priority = fields.Integer("priority", 0, kMaxPriority);
  if (!priority.has_value()) return;
  if (request->priority() != v1::PRIORITY_UNSPECIFIED) {
    fields.Note(FieldError("priority", absl::StrCat("priority is ", *priority,
                                                    " and kvblend.priority is set; allowed: one of them")));
  } else if (*priority > 0) {
    request->set_priority(v1::PRIORITY_LOW);
  }
}

void ReadCitationOptions(FieldReader& fields, ChatRequest* to) {
  const Json* json = fields.Value("citation_options");
  if (json == nullptr) return;
  FieldReader options(*json, "citation_options");
  const std::string mode = options.String("mode").value_or("ENABLED");
  to->citations = mode != "OFF" && mode != "DISABLED";
  to->only_copied = mode == "FAST";
  if (to->citations && mode != "ENABLED" && mode != "FAST" && mode != "ACCURATE") {
    options.Note(ValueError("citation_options.mode", Quoted(mode),
                            "'ENABLED', 'FAST', 'ACCURATE', 'OFF', 'DISABLED'"));
  }
  fields.Note(options.Finish());
}

}  // namespace

absl::StatusOr<ChatRequest> ParseChatRequest(std::string_view body) {
  KVBLEND_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  ChatRequest to;
  v1::Prompt& prompt = *to.request.mutable_prompt();
  FieldReader fields(json, "");
  to.model = fields.String("model").value_or("");
  to.stream = fields.Bool("stream").value_or(false);
  ReadSampling(fields, &to);
  ReadCitationOptions(fields, &to);
  const Json* documents = fields.Value("documents");
  const Json* messages = fields.Value("messages");
  if (documents != nullptr) fields.Note(AddDocuments(*documents, &to));
  fields.Note(messages == nullptr
                  ? FieldError("messages", "messages is not set; allowed: one message or more")
                  : openai::AddMessages(*messages, &prompt));
  // Parts of the last message may have become chunks behind the documents.
  for (int i = static_cast<int>(to.sources.size()); i < prompt.chunks_size(); ++i) {
    to.sources.push_back({.id = absl::StrCat("doc:", i), .data = {{"text", prompt.chunks(i)}}});
  }
  openai::ReadExtension(fields, &to.request);
  ReadPriority(fields, &to.request);
  v1::SamplingOptions& sampling = *to.request.mutable_sampling();
  to.attribution = sampling.attribution();
  if (to.citations && !to.only_copied && !prompt.chunks().empty()) sampling.set_attribution(true);
  if (const Json* format = fields.Value("response_format"); format != nullptr) {
    FieldReader inner(*format, "response_format");
    inner.RefuseUnless("type", "text");
    fields.Note(inner.Finish());
  }
  fields.RefuseUnless("safety_mode", "OFF");
  fields.RefuseUnless("tool_choice", "NONE");
  fields.Refuse({"tools", "strict_tools"}, "none; this server calls no tools");
  if (const Json* thinking = fields.Value("thinking"); thinking != nullptr) {
    FieldReader inner(*thinking, "thinking");
    inner.RefuseUnless("type", "disabled");
    fields.Note(inner.Finish());
  }
  fields.Refuse({"raw_prompting"}, "none");
  KVBLEND_RETURN_IF_ERROR(fields.Finish());
  return to;
}

}  // namespace kvblend::server::cohere
