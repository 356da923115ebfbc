#include "server/openai/generation_request.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/api/names.h"
#include "server/convert/enums.h"
#include "server/convert/message_json.h"
#include "server/json/json.h"
#include "server/openai/prompt_mapping.h"

namespace kvblend::server::openai {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int kMaxTopLogprobs = 20;
constexpr int kCompletionTokens = 16;  // what /v1/completions generates for requests that do not say

// Where the engine's seed 0 means that it chooses one, OpenAI's is a seed like any other.
constexpr uint64_t kSeedZero = uint64_t{1} << 63;

void ReadStop(FieldReader& fields, v1::SamplingOptions* sampling) {
  const Json* stop = fields.Value("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    sampling->add_stop(stop->get<std::string>());
    return;
  }
  bool strings = stop->is_array();
  for (size_t i = 0; strings && i < stop->size(); ++i) {
    strings = (*stop)[i].is_string();
    if (strings) sampling->add_stop((*stop)[i].get<std::string>());
  }
  if (!strings) fields.Note(FieldError("stop", "stop is neither; allowed: a string, or an array of strings"));
}

void ReadLogitBias(FieldReader& fields, v1::SamplingOptions* sampling) {
  const Json* biases = fields.Value("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object()) {
    fields.Note(FieldError("logit_bias", "logit_bias is no object; allowed: token ids, each with a number"));
    return;
  }
  for (const auto& [token, bias] : biases->items()) {
    int32_t id = 0;
    // Of two spellings of one id, such as "5" and "05", one would be taken in silence.
    if (absl::SimpleAtoi(token, &id) && absl::StrCat(id) == token && bias.is_number()) {
      (*sampling->mutable_logit_bias())[id] = bias.get<double>();
    } else {
      constexpr char kAllowed[] = "; allowed: token ids, each with a number";
      fields.Note(
          LogAs(FieldError("logit_bias", absl::StrCat("logit_bias['", absl::CHexEscape(token.substr(0, 40)),
                                                      "'] is ", ToText(bias).substr(0, 40), kAllowed)),
                absl::StrCat("logit_bias has something else", kAllowed)));
    }
  }
}

/// What both kinds of bodies have.
void ReadCommon(FieldReader& fields, GenerationRequest* to) {
  v1::SamplingOptions& sampling = *to->request.mutable_sampling();
  to->model = fields.String("model").value_or("");
  to->form.stream = fields.Bool("stream").value_or(false);
  if (const Json* stream_options = fields.Value("stream_options"); stream_options != nullptr) {
    if (!to->form.stream) {
      fields.Note(FieldError("stream_options", "stream_options is set; allowed: only with stream"));
    }
    FieldReader options(*stream_options, "stream_options");
    to->form.include_usage = options.Bool("include_usage").value_or(false);
    options.Ignore({"include_obfuscation"});
    fields.Note(options.Finish());
  }
  sampling.set_temperature(fields.Number("temperature").value_or(1));
  if (const auto top_p = fields.Number("top_p")) sampling.set_top_p(*top_p);
  if (const auto top_k = fields.Integer("top_k", -1, kInt32Max)) {
    sampling.set_top_k(static_cast<int32_t>(*top_k < 0 ? 0 : *top_k));
  }
  if (const auto min_p = fields.Number("min_p")) sampling.set_min_p(*min_p);
  if (const auto penalty = fields.Number("repetition_penalty")) sampling.set_repetition_penalty(*penalty);
  if (const auto seed = fields.Bits64("seed")) sampling.set_seed(SeedOf(*seed));
  if (const auto ignore_eos = fields.Bool("ignore_eos")) sampling.set_ignore_eos(*ignore_eos);
  ReadStop(fields, &sampling);
  if (const auto penalty = fields.Number("presence_penalty")) sampling.set_presence_penalty(*penalty);
  if (const auto penalty = fields.Number("frequency_penalty")) sampling.set_frequency_penalty(*penalty);
  ReadLogitBias(fields, &sampling);
  fields.RefuseUnless("n", 1);
  fields.RefuseUnless("store", false);
  if (const auto tier = fields.String("service_tier");
      tier.has_value() && *tier != "auto" && *tier != "default") {
    fields.Note(ValueError("service_tier", Quoted(*tier), "'auto', 'default'"));
  }
  fields.Ignore({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
                 "prompt_cache_retention"});
}

void ReadMaxTokens(FieldReader& fields, v1::SamplingOptions* sampling) {
  const auto old_name = fields.Integer("max_tokens", 1, kInt32Max);
  const auto new_name = fields.Integer("max_completion_tokens", 1, kInt32Max);
  if (old_name.has_value() && new_name.has_value() && *old_name != *new_name) {
    fields.Note(
        FieldError("max_tokens", absl::StrCat("max_tokens is ", *old_name, " and max_completion_tokens ",
                                              *new_name, "; allowed: one of them")));
  }
  if (old_name.has_value()) sampling->set_max_tokens(static_cast<int32_t>(*old_name));
  if (new_name.has_value()) sampling->set_max_tokens(static_cast<int32_t>(*new_name));
}

void ReadChatLogprobs(FieldReader& fields, GenerationRequest* to) {
  to->form.logprobs = fields.Bool("logprobs").value_or(false);
  const auto top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !to->form.logprobs) {
    fields.Note(
        FieldError("top_logprobs", absl::StrCat("top_logprobs is ", *top, "; allowed: only with logprobs")));
  }
  to->form.top_logprobs = static_cast<int>(top.value_or(0));
  if (to->form.logprobs) to->request.mutable_sampling()->set_top_logprobs(to->form.top_logprobs);
}

void ReadDocuments(FieldReader& fields, v1::Prompt* prompt) {
  const Json* documents = fields.Value("documents");
  if (documents != nullptr) fields.Note(AddDocuments(*documents, prompt));
}

/// A name of one of the engine's enumerations.
template <typename Enum>
std::optional<Enum> ReadName(FieldReader& fields, const std::string& name) {
  const std::optional<std::string> text = fields.String(name);
  if (!text.has_value()) return std::nullopt;
  const absl::StatusOr<Enum> value = ParseName<Enum>(fields.PathOf(name), *text);
  if (value.ok()) return *value;
  fields.Note(LogAs(FieldError(fields.PathOf(name), std::string(value.status().message())),
                    absl::StrCat(fields.PathOf(name), " has no name that this server knows")));
  return std::nullopt;
}

}  // namespace

uint64_t SeedOf(uint64_t seed) { return seed == 0 ? kSeedZero : seed; }

void ReadExtension(FieldReader& fields, v1::GenerateRequest* request) {
  const Json* json = fields.Value("kvblend");
  if (json == nullptr) return;
  FieldReader extension(*json, "kvblend");
  request->set_namespace_(extension.String("namespace").value_or(""));
  if (const auto lead_in = extension.String("lead_in")) {
    if (!request->prompt().lead_in().empty()) {
      extension.Note(FieldError(
          "kvblend.lead_in", "kvblend.lead_in is set; allowed: only without text before the first document"));
    }
    request->mutable_prompt()->set_lead_in(*lead_in);
  }
  if (const std::optional<Priority> priority = ReadName<Priority>(extension, "priority")) {
    request->set_priority(ToWire<v1::Priority>(*priority));
  }
  if (const std::optional<PromptSplit> split = ReadName<PromptSplit>(extension, "split")) {
    request->mutable_prompt()->set_split(ToWire<v1::PromptSplit>(*split));
  }
  request->mutable_sampling()->set_attribution(extension.Bool("attribution").value_or(false));
  if (const Json* blend = extension.Value("blend"); blend != nullptr) {
    if (!blend->is_object()) {
      extension.Note(
          FieldError("kvblend.blend", "kvblend.blend is no object; allowed: kvblend.v1.BlendOptions"));
    } else if (const absl::Status status = ParseJson(ToText(*blend), *request->mutable_blend());
               !status.ok()) {
      extension.Note(LogAs(FieldError("kvblend.blend", absl::StrCat("kvblend.blend: ", status.message())),
                           "kvblend.blend is something else; allowed: kvblend.v1.BlendOptions"));
    }
  }
  fields.Note(extension.Finish());
}

absl::StatusOr<GenerationRequest> ParseChatRequest(std::string_view body) {
  KVBLEND_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  GenerationRequest to;
  v1::Prompt& prompt = *to.request.mutable_prompt();
  FieldReader fields(json, "");
  ReadCommon(fields, &to);
  ReadMaxTokens(fields, to.request.mutable_sampling());
  ReadChatLogprobs(fields, &to);
  ReadDocuments(fields, &prompt);
  const Json* messages = fields.Value("messages");
  fields.Note(messages == nullptr
                  ? FieldError("messages", "messages is not set; allowed: one message or more")
                  : AddMessages(*messages, &prompt));
  ReadExtension(fields, &to.request);
  if (const Json* format = fields.Value("response_format"); format != nullptr) {
    FieldReader inner(*format, "response_format");
    inner.RefuseUnless("type", "text");
    fields.Note(inner.Finish());
  }
  fields.RefuseUnless("modalities", Json::array({"text"}));
  fields.Refuse({"tools", "functions"}, "none; this server calls no tools");
  if (const Json* choice = fields.Value("tool_choice");
      choice != nullptr && *choice != "none" && *choice != "auto") {
    fields.Note(FieldError("tool_choice", "tool_choice asks for tools; allowed: 'none', 'auto'"));
  }
  fields.RefuseUnless("function_call", "none");
  fields.RefuseUnless("reasoning_effort", "none");
  fields.RefuseUnless("verbosity", "medium");  // the default, as if it were not set
  fields.Refuse({"audio", "web_search_options", "prediction", "moderation"}, "none");
  fields.Ignore({"parallel_tool_calls"});
  KVBLEND_RETURN_IF_ERROR(fields.Finish());
  return to;
}

absl::StatusOr<GenerationRequest> ParseCompletionRequest(std::string_view body) {
  KVBLEND_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  GenerationRequest to;
  to.form.chat = false;
  v1::Prompt& prompt = *to.request.mutable_prompt();
  v1::SamplingOptions& sampling = *to.request.mutable_sampling();
  FieldReader fields(json, "");
  ReadCommon(fields, &to);
  sampling.set_max_tokens(
      static_cast<int32_t>(fields.Integer("max_tokens", 1, kInt32Max).value_or(kCompletionTokens)));
  if (const auto logprobs = fields.Integer("logprobs", 0, kMaxTopLogprobs)) {
    to.form.logprobs = true;
    to.form.top_logprobs = static_cast<int>(*logprobs);
    sampling.set_top_logprobs(to.form.top_logprobs);
  }
  ReadDocuments(fields, &prompt);
  const Json* text = fields.Value("prompt");
  if (text != nullptr && text->is_array() && text->size() == 1) text = &text->front();
  if (text == nullptr || !text->is_string() || text->get_ref<const std::string&>().empty()) {
    fields.Note(
        FieldError("prompt", "prompt is no text; allowed: a string that is not empty, or an array of one"));
  } else {
    prompt.set_question(text->get<std::string>());
  }
  ReadExtension(fields, &to.request);
  fields.RefuseUnless("best_of", 1);
  fields.RefuseUnless("echo", false);
  fields.Refuse({"suffix"}, "none");
  KVBLEND_RETURN_IF_ERROR(fields.Finish());
  return to;
}

}  // namespace kvblend::server::openai
