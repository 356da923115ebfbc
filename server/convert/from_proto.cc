#include "server/convert/from_proto.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"

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

absl::Status Convert(v1::Policy from, const std::string& field, Policy* to) {
  switch (from) {
    case v1::POLICY_UNSPECIFIED:
      return absl::OkStatus();
    case v1::POLICY_QUERY:
      *to = Policy::kQuery;
      return absl::OkStatus();
    case v1::POLICY_HKVD:
      *to = Policy::kHkvd;
      return absl::OkStatus();
    case v1::POLICY_LINK:
      *to = Policy::kLink;
      return absl::OkStatus();
    case v1::POLICY_NONE:
      *to = Policy::kNone;
      return absl::OkStatus();
    case v1::POLICY_ALL:
      *to = Policy::kAll;
      return absl::OkStatus();
    case v1::POLICY_RANDOM:
      *to = Policy::kRandom;
      return absl::OkStatus();
    default:
      return UnknownEnumValue(field, from, *v1::Policy_descriptor());
  }
}

absl::Status Convert(v1::Reuse from, const std::string& field, Reuse* to) {
  switch (from) {
    case v1::REUSE_UNSPECIFIED:
      return absl::OkStatus();
    case v1::REUSE_CHUNKS:
      *to = Reuse::kChunks;
      return absl::OkStatus();
    case v1::REUSE_PREFIX:
      *to = Reuse::kPrefix;
      return absl::OkStatus();
    case v1::REUSE_NOTHING:
      *to = Reuse::kNothing;
      return absl::OkStatus();
    default:
      return UnknownEnumValue(field, from, *v1::Reuse_descriptor());
  }
}

absl::Status Convert(v1::Anchoring from, const std::string& field, Anchoring* to) {
  switch (from) {
    case v1::ANCHORING_UNSPECIFIED:
      return absl::OkStatus();
    case v1::ANCHORING_ANCHORED:
      *to = Anchoring::kAnchored;
      return absl::OkStatus();
    case v1::ANCHORING_ISOLATED:
      *to = Anchoring::kIsolated;
      return absl::OkStatus();
    default:
      return UnknownEnumValue(field, from, *v1::Anchoring_descriptor());
  }
}

absl::Status Convert(v1::DeviationSource from, const std::string& field, DeviationSource* to) {
  switch (from) {
    case v1::DEVIATION_SOURCE_UNSPECIFIED:
      return absl::OkStatus();
    case v1::DEVIATION_SOURCE_VALUE:
      *to = DeviationSource::kValue;
      return absl::OkStatus();
    case v1::DEVIATION_SOURCE_KEY:
      *to = DeviationSource::kKey;
      return absl::OkStatus();
    default:
      return UnknownEnumValue(field, from, *v1::DeviationSource_descriptor());
  }
}

absl::Status Convert(v1::Role from, const std::string& field, Role* to) {
  switch (from) {
    case v1::ROLE_UNSPECIFIED:
    case v1::ROLE_USER:
      *to = Role::kUser;
      return absl::OkStatus();
    case v1::ROLE_ASSISTANT:
      *to = Role::kAssistant;
      return absl::OkStatus();
    default:
      return UnknownEnumValue(field, from, *v1::Role_descriptor());
  }
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
  if (from.has_ratio()) to->ratio = from.ratio();
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
  if (absl::Status status = Convert(request.anchoring(), "anchoring", &to.anchoring); !status.ok()) {
    return status;
  }
  to.caller.tenant_namespace = std::move(*request.mutable_namespace_());
  to.system_text = std::move(*request.mutable_system_text());
  to.lead_in = std::move(*request.mutable_lead_in());
  to.chunks = TakeStrings(request.mutable_chunks());
  to.label = std::move(*request.mutable_label());
  to.pin = request.pin();
  return to;
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
