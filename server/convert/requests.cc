#include "server/convert/requests.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
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
  const std::optional<Ours> value = FromWire<Ours>(from);
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
  if (from.split() != v1::PROMPT_SPLIT_UNSPECIFIED) {
    KVBLEND_RETURN_IF_ERROR(Convert(from.split(), "prompt.split", &to->split.emplace()));
  }
  to->history.resize(from.history_size());
  for (int i = 0; i < from.history_size(); ++i) {
    v1::Turn& turn = *from.mutable_history(i);
    absl::Status status =
        Convert(turn.role(), absl::StrCat("prompt.history[", i, "].role"), &to->history[i].role);
    if (!status.ok()) return status;
    to->history[i].text = std::move(*turn.mutable_text());
    to->history[i].lead_in = std::move(*turn.mutable_lead_in());
    to->history[i].chunks = TakeStrings(turn.mutable_chunks());
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
  if (from.has_correction()) to->correction = from.correction();
  if (from.has_spread_deviation()) to->spread_deviation = from.spread_deviation();
  to->explain = from.explain();
  to->read_namespaces.assign(from.read_namespaces().begin(), from.read_namespaces().end());
  if (from.has_share_prefix()) to->share_prefix = from.share_prefix();
  return status;
}

void Convert(v1::SamplingOptions&& from, SamplingOptions* to) {
  if (from.has_max_tokens()) to->max_tokens = from.max_tokens();
  to->temperature = from.temperature();
  to->top_k = from.top_k();
  if (from.has_top_p()) to->top_p = from.top_p();
  to->min_p = from.min_p();
  if (from.has_repetition_penalty()) to->repetition_penalty = from.repetition_penalty();
  to->presence_penalty = from.presence_penalty();
  to->frequency_penalty = from.frequency_penalty();
  to->logit_bias = {from.logit_bias().begin(), from.logit_bias().end()};
  to->seed = from.seed();
  to->stop = TakeStrings(from.mutable_stop());
  to->ignore_eos = from.ignore_eos();
  to->attribution = from.attribution();
  if (from.has_top_logprobs()) to->top_logprobs = from.top_logprobs();
}

// What Generate and Score have in common.
template <typename From, typename To>
absl::Status ConvertPromptAndBlend(From& from, To* to) {
  if (!from.has_prompt()) return absl::InvalidArgumentError("prompt is not set; it is required");
  to->caller.tenant_namespace = std::move(*from.mutable_namespace_());
  absl::Status status = Convert(std::move(*from.mutable_prompt()), &to->prompt);
  status.Update(Convert(from.priority(), "priority", &to->caller.priority));
  status.Update(Convert(from.blend(), &to->blend));
  return status;
}

/// The namespace and the anchor, which all requests about chunks' texts have.
template <typename WireRequest, typename Request>
absl::Status TakeAnchor(WireRequest& request, Request* to) {
  to->caller.tenant_namespace = std::move(*request.mutable_namespace_());
  to->system_text = std::move(*request.mutable_system_text());
  to->lead_in = std::move(*request.mutable_lead_in());
  return Convert(request.anchoring(), "anchoring", &to->anchoring);
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
  KVBLEND_RETURN_IF_ERROR(Convert(request.priority(), "priority", &to.caller.priority));
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

absl::StatusOr<CorrectionAction> FromProto(const v1::UpdateCorrectionRequest& request) {
  CorrectionAction action = CorrectionAction::kShow;
  KVBLEND_RETURN_IF_ERROR(Convert(request.action(), "action", &action));
  return action;
}

absl::StatusOr<PrefetchChunksRequest> FromProto(v1::PrefetchChunksRequest&& request) {
  PrefetchChunksRequest to;
  if (absl::Status status = TakeAnchor(request, &to); !status.ok()) return status;
  to.chunks = TakeStrings(request.mutable_chunks());
  to.read_namespaces = TakeStrings(request.mutable_read_namespaces());
  return to;
}

absl::Status CheckNamespace(const std::string& field, const std::string& name) {
  if (name.size() <= Caller::kMaxNamespaceBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", name.size(), " bytes; allowed: at most ", Caller::kMaxNamespaceBytes));
}

absl::StatusOr<std::vector<ChunkKey>> ParseKeys(const google::protobuf::RepeatedPtrField<std::string>& keys) {
  if (keys.empty() || keys.size() > kMaxKeysPerRequest) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys has ", keys.size(), " keys; allowed: 1 to ", kMaxKeysPerRequest));
  }
  std::vector<ChunkKey> parsed;
  parsed.reserve(keys.size());
  for (int i = 0; i < keys.size(); ++i) {
    const absl::StatusOr<ChunkKey> key = ChunkKey::FromHex(keys[i]);
    if (!key.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("keys[", i, "]: ", key.status().message()));
    }
    parsed.push_back(*key);
  }
  return parsed;
}

}  // namespace kvblend::server
