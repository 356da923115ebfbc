#include "server/convert/requests.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/generated_enum_reflection.h"
#include "server/convert/enums.h"

namespace kvblend::server {
namespace {

absl::Status UnknownEnumValue(const std::string& field, int number,
                              const google::protobuf::EnumDescriptor& descriptor) {
  std::string allowed;
  for (int i = 0; i < descriptor.value_count(); ++i) {
    absl::StrAppend(&allowed, i == 0 ? "" : ", ", descriptor.value(i)->name(), " (",
                    descriptor.value(i)->number(), ")");
  }
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", number, "; allowed: ", allowed));
}

// Leaves `to` as it is, which is the default, where `from` is ..._UNSPECIFIED.
template <typename Wire, typename Ours>
absl::Status Convert(Wire from, const std::string& field, Ours* to) {
  if (from == Wire{}) return absl::OkStatus();
  const std::optional<Ours> value = FromProto(from);
  if (!value.has_value()) {
    return UnknownEnumValue(field, from, *google::protobuf::GetEnumDescriptor<Wire>());
  }
  *to = *value;
  return absl::OkStatus();
}

std::vector<std::string> TakeStrings(google::protobuf::RepeatedPtrField<std::string>* from) {
  std::vector<std::string> to;
  to.reserve(from->size());
  for (std::string& text : *from) to.push_back(std::move(text));
  return to;
}

absl::Status Convert(v1::Prompt&& from, Prompt* to) {
  to->system_text = std::move(*from.mutable_system_text());
  to->lead_in = std::move(*from.mutable_lead_in());
  to->chunks = TakeStrings(from.mutable_chunks());
  to->question = std::move(*from.mutable_question());
  to->history.resize(from.history_size());
  for (int i = 0; i < from.history_size(); ++i) {
    v1::Turn& turn = *from.mutable_history(i);
    absl::Status status =
        Convert(turn.role(), absl::StrCat("prompt.history[", i, "].role"), &to->history[i].role);
    if (!status.ok()) return status;
    to->history[i].text = std::move(*turn.mutable_text());
  }
  return absl::OkStatus();
}

absl::Status Convert(const v1::BlendOptions& from, BlendOptions* to) {
  absl::Status status = Convert(from.reuse(), "blend.reuse", &to->reuse);
  status.Update(Convert(from.anchoring(), "blend.anchoring", &to->anchoring));
  status.Update(Convert(from.policy(), "blend.policy", &to->policy));
  status.Update(Convert(from.hkvd_source(), "blend.hkvd_source", &to->hkvd_source));
  if (from.ratio_mode() != v1::RATIO_MODE_UNSPECIFIED) {
    status.Update(Convert(from.ratio_mode(), "blend.ratio_mode", &to->ratio_mode.emplace()));
  }
  if (from.has_ratio()) to->ratio = from.ratio();
  if (from.has_ratio_min()) to->ratio_min = from.ratio_min();
  if (from.has_ratio_max()) to->ratio_max = from.ratio_max();
  to->query_layers = from.query_layers();
  if (from.has_hkvd_layer()) to->hkvd_layer = from.hkvd_layer();
  if (from.has_link_tokens()) to->link_tokens = from.link_tokens();
  to->random_seed = from.random_seed();
  if (from.has_store_misses()) to->store_misses = from.store_misses();
  return status;
}

void Convert(v1::SamplingOptions&& from, SamplingOptions* to) {
  if (from.has_max_tokens()) to->max_tokens = from.max_tokens();
  to->temperature = from.temperature();
  to->top_k = from.top_k();
  if (from.has_top_p()) to->top_p = from.top_p();
  to->min_p = from.min_p();
  if (from.has_repetition_penalty()) to->repetition_penalty = from.repetition_penalty();
  to->seed = from.seed();
  to->stop = TakeStrings(from.mutable_stop());
  to->ignore_eos = from.ignore_eos();
  if (from.has_top_logprobs()) to->top_logprobs = from.top_logprobs();
}

// What Generate and Score have in common.
template <typename From, typename To>
absl::Status ConvertPromptAndBlend(From& from, To* to) {
  if (!from.has_prompt()) return absl::InvalidArgumentError("prompt is not set; it is required");
  to->caller.tenant_namespace = std::move(*from.mutable_namespace_());
  absl::Status status = Convert(std::move(*from.mutable_prompt()), &to->prompt);
  status.Update(Convert(from.blend(), &to->blend));
  return status;
}

void Fill(const Prompt& prompt, v1::Prompt& out) {
  out.set_system_text(prompt.system_text);
  out.set_lead_in(prompt.lead_in);
  for (const std::string& chunk : prompt.chunks) out.add_chunks(chunk);
  out.set_question(prompt.question);
  for (const Turn& turn : prompt.history) {
    v1::Turn& message = *out.add_history();
    message.set_role(ToProto(turn.role));
    message.set_text(turn.text);
  }
}

void Fill(const BlendOptions& options, v1::BlendOptions& out) {
  out.set_reuse(ToProto(options.reuse));
  out.set_anchoring(ToProto(options.anchoring));
  out.set_policy(ToProto(options.policy));
  if (options.ratio_mode.has_value()) out.set_ratio_mode(ToProto(*options.ratio_mode));
  if (options.ratio.has_value()) out.set_ratio(*options.ratio);
  if (options.ratio_min.has_value()) out.set_ratio_min(*options.ratio_min);
  if (options.ratio_max.has_value()) out.set_ratio_max(*options.ratio_max);
  out.set_query_layers(options.query_layers);
  out.set_hkvd_layer(options.hkvd_layer);
  out.set_hkvd_source(ToProto(options.hkvd_source));
  out.set_link_tokens(options.link_tokens);
  out.set_random_seed(options.random_seed);
  out.set_store_misses(options.store_misses);
}

void Fill(const SamplingOptions& options, v1::SamplingOptions& out) {
  out.set_max_tokens(options.max_tokens);
  out.set_temperature(options.temperature);
  out.set_top_k(options.top_k);
  out.set_top_p(options.top_p);
  out.set_min_p(options.min_p);
  out.set_repetition_penalty(options.repetition_penalty);
  out.set_seed(options.seed);
  for (const std::string& stop : options.stop) out.add_stop(stop);
  out.set_top_logprobs(options.top_logprobs);
  out.set_ignore_eos(options.ignore_eos);
}

/// Whose chunks, and what stands before them: what all requests about chunks' texts have in common.
template <typename WireRequest, typename Request>
absl::Status TakeAnchor(WireRequest& request, Request* to) {
  to->caller.tenant_namespace = std::move(*request.mutable_namespace_());
  to->system_text = std::move(*request.mutable_system_text());
  to->lead_in = std::move(*request.mutable_lead_in());
  return Convert(request.anchoring(), "anchoring", &to->anchoring);
}

template <typename Request, typename WireRequest>
void FillAnchor(const Request& request, WireRequest& message) {
  message.set_namespace_(request.caller.tenant_namespace);
  message.set_system_text(request.system_text);
  message.set_lead_in(request.lead_in);
  message.set_anchoring(ToProto(request.anchoring));
}

}  // namespace

absl::StatusOr<GenerateRequest> FromProto(v1::GenerateRequest&& request) {
  GenerateRequest to;
  if (absl::Status status = ConvertPromptAndBlend(request, &to); !status.ok()) return status;
  Convert(std::move(*request.mutable_sampling()), &to.sampling);
  return to;
}

absl::StatusOr<ScoreRequest> FromProto(v1::ScoreRequest&& request) {
  ScoreRequest to;
  if (absl::Status status = ConvertPromptAndBlend(request, &to); !status.ok()) return status;
  switch (request.continuation_case()) {
    case v1::ScoreRequest::kContinuationText:
      if (request.continuation_text().empty()) {
        return absl::InvalidArgumentError("continuation_text is empty; allowed: at least one character");
      }
      to.continuation = std::move(*request.mutable_continuation_text());
      break;
    case v1::ScoreRequest::kContinuationTokenIds:
      if (request.continuation_token_ids().ids().empty()) {
        return absl::InvalidArgumentError("continuation_token_ids.ids has 0 ids; allowed: at least 1");
      }
      to.continuation_token_ids.assign(request.continuation_token_ids().ids().begin(),
                                       request.continuation_token_ids().ids().end());
      break;
    case v1::ScoreRequest::CONTINUATION_NOT_SET:
      return absl::InvalidArgumentError(
          "continuation is not set; one of continuation_text and continuation_token_ids is required");
  }
  to.return_distributions = request.return_distributions();
  return to;
}

absl::StatusOr<PutChunksRequest> FromProto(v1::PutChunksRequest&& request) {
  PutChunksRequest to;
  if (absl::Status status = TakeAnchor(request, &to); !status.ok()) return status;
  to.chunks = TakeStrings(request.mutable_chunks());
  to.label = std::move(*request.mutable_label());
  to.chunk_labels = TakeStrings(request.mutable_chunk_labels());
  to.pin = request.pin();
  return to;
}

absl::StatusOr<SplitDocumentRequest> FromProto(v1::SplitDocumentRequest&& request) {
  SplitDocumentRequest to;
  if (absl::Status status = TakeAnchor(request, &to); !status.ok()) return status;
  to.text = std::move(*request.mutable_text());
  to.goes_on = request.goes_on();
  if (request.has_chunk_tokens()) to.chunk_tokens = request.chunk_tokens();
  if (request.has_overlap_tokens()) to.overlap_tokens = request.overlap_tokens();
  return to;
}

absl::StatusOr<PrefetchChunksRequest> FromProto(v1::PrefetchChunksRequest&& request) {
  PrefetchChunksRequest to;
  if (absl::Status status = TakeAnchor(request, &to); !status.ok()) return status;
  to.chunks = TakeStrings(request.mutable_chunks());
  return to;
}

v1::GenerateRequest ToProto(const GenerateRequest& request) {
  v1::GenerateRequest message;
  message.set_namespace_(request.caller.tenant_namespace);
  Fill(request.prompt, *message.mutable_prompt());
  Fill(request.blend, *message.mutable_blend());
  Fill(request.sampling, *message.mutable_sampling());
  return message;
}

v1::ScoreRequest ToProto(const ScoreRequest& request) {
  v1::ScoreRequest message;
  message.set_namespace_(request.caller.tenant_namespace);
  Fill(request.prompt, *message.mutable_prompt());
  Fill(request.blend, *message.mutable_blend());
  if (request.continuation_token_ids.empty()) {
    message.set_continuation_text(request.continuation);
  } else {
    message.mutable_continuation_token_ids()->mutable_ids()->Add(request.continuation_token_ids.begin(),
                                                                 request.continuation_token_ids.end());
  }
  message.set_return_distributions(request.return_distributions);
  return message;
}

v1::PutChunksRequest ToProto(const PutChunksRequest& request) {
  v1::PutChunksRequest message;
  FillAnchor(request, message);
  for (const std::string& chunk : request.chunks) message.add_chunks(chunk);
  message.set_label(request.label);
  for (const std::string& label : request.chunk_labels) message.add_chunk_labels(label);
  message.set_pin(request.pin);
  return message;
}

v1::SplitDocumentRequest ToProto(const SplitDocumentRequest& request) {
  v1::SplitDocumentRequest message;
  FillAnchor(request, message);
  message.set_text(request.text);
  message.set_goes_on(request.goes_on);
  message.set_chunk_tokens(request.chunk_tokens);
  message.set_overlap_tokens(request.overlap_tokens);
  return message;
}

v1::PrefetchChunksRequest ToProto(const PrefetchChunksRequest& request) {
  v1::PrefetchChunksRequest message;
  FillAnchor(request, message);
  for (const std::string& chunk : request.chunks) message.add_chunks(chunk);
  return message;
}

absl::StatusOr<int> PageSize(const v1::ListChunksRequest& request) {
  if (!request.has_page_size()) return kDefaultPageSize;
  if (request.page_size() < 1 || request.page_size() > kMaxPageSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", request.page_size(), "; allowed: 1 to ", kMaxPageSize));
  }
  return request.page_size();
}

absl::Status CheckKeyCount(int count, bool all) {
  if (all && count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys has ", count, " keys; allowed: none, as all is set"));
  }
  if (!all && (count < 1 || count > kMaxKeysPerRequest)) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys has ", count, " keys; allowed: 1 to ", kMaxKeysPerRequest));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server
