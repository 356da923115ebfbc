#include "server/cli/grpc_convert.h"

#include <string>

namespace kvblend::server::cli {
namespace {

v1::Policy ToProto(Policy policy) {
  switch (policy) {
    case Policy::kQuery:
      return v1::POLICY_QUERY;
    case Policy::kHkvd:
      return v1::POLICY_HKVD;
    case Policy::kLink:
      return v1::POLICY_LINK;
    case Policy::kNone:
      return v1::POLICY_NONE;
    case Policy::kAll:
      return v1::POLICY_ALL;
    case Policy::kRandom:
      return v1::POLICY_RANDOM;
  }
  return v1::POLICY_UNSPECIFIED;
}

Policy FromProto(v1::Policy policy) {
  switch (policy) {
    case v1::POLICY_HKVD:
      return Policy::kHkvd;
    case v1::POLICY_LINK:
      return Policy::kLink;
    case v1::POLICY_NONE:
      return Policy::kNone;
    case v1::POLICY_ALL:
      return Policy::kAll;
    case v1::POLICY_RANDOM:
      return Policy::kRandom;
    default:
      return Policy::kQuery;
  }
}

v1::Reuse ToProto(Reuse reuse) {
  switch (reuse) {
    case Reuse::kChunks:
      return v1::REUSE_CHUNKS;
    case Reuse::kPrefix:
      return v1::REUSE_PREFIX;
    case Reuse::kNothing:
      return v1::REUSE_NOTHING;
  }
  return v1::REUSE_UNSPECIFIED;
}

Reuse FromProto(v1::Reuse reuse) {
  switch (reuse) {
    case v1::REUSE_PREFIX:
      return Reuse::kPrefix;
    case v1::REUSE_NOTHING:
      return Reuse::kNothing;
    default:
      return Reuse::kChunks;
  }
}

v1::Anchoring ToProto(Anchoring anchoring) {
  return anchoring == Anchoring::kIsolated ? v1::ANCHORING_ISOLATED : v1::ANCHORING_ANCHORED;
}

Anchoring FromProto(v1::Anchoring anchoring) {
  return anchoring == v1::ANCHORING_ISOLATED ? Anchoring::kIsolated : Anchoring::kAnchored;
}

ChunkSource FromProto(v1::ChunkSource source) {
  switch (source) {
    case v1::CHUNK_SOURCE_EXACT:
      return ChunkSource::kExact;
    case v1::CHUNK_SOURCE_BLENDED:
      return ChunkSource::kBlended;
    case v1::CHUNK_SOURCE_OTHER_ANCHOR:
      return ChunkSource::kOtherAnchor;
    default:
      return ChunkSource::kMiss;
  }
}

Tier FromProto(v1::Tier tier) { return tier == v1::TIER_HOST_MEMORY ? Tier::kHostMemory : Tier::kNone; }

FinishReason FromProto(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP_STRING:
      return FinishReason::kStopString;
    case v1::FINISH_REASON_MAX_TOKENS:
      return FinishReason::kMaxTokens;
    case v1::FINISH_REASON_CONTEXT_FULL:
      return FinishReason::kContextFull;
    default:
      return FinishReason::kEndOfText;
  }
}

void Fill(const Prompt& prompt, v1::Prompt& out) {
  out.set_system_text(prompt.system_text);
  out.set_lead_in(prompt.lead_in);
  for (const std::string& chunk : prompt.chunks) out.add_chunks(chunk);
  out.set_question(prompt.question);
  for (const Turn& turn : prompt.history) {
    v1::Turn& message = *out.add_history();
    message.set_role(turn.role == Role::kAssistant ? v1::ROLE_ASSISTANT : v1::ROLE_USER);
    message.set_text(turn.text);
  }
}

void Fill(const BlendOptions& options, v1::BlendOptions& out) {
  out.set_reuse(ToProto(options.reuse));
  out.set_anchoring(ToProto(options.anchoring));
  out.set_policy(ToProto(options.policy));
  out.set_ratio(options.ratio);
  out.set_query_layers(options.query_layers);
  out.set_hkvd_layer(options.hkvd_layer);
  out.set_hkvd_source(options.hkvd_source == DeviationSource::kKey ? v1::DEVIATION_SOURCE_KEY
                                                                   : v1::DEVIATION_SOURCE_VALUE);
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

TokenLogprob FromProto(const v1::TokenLogprob& token) {
  return {.token_id = token.token_id(), .text = token.text(), .logprob = token.logprob()};
}

}  // namespace

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
  message.set_namespace_(request.caller.tenant_namespace);
  message.set_system_text(request.system_text);
  message.set_lead_in(request.lead_in);
  message.set_anchoring(ToProto(request.anchoring));
  for (const std::string& chunk : request.chunks) message.add_chunks(chunk);
  message.set_label(request.label);
  message.set_pin(request.pin);
  return message;
}

PromptReport FromProto(const v1::PromptReport& message) {
  PromptReport report{.policy = FromProto(message.policy()),
                      .ratio = message.ratio(),
                      .reuse = FromProto(message.reuse()),
                      .anchoring = FromProto(message.anchoring()),
                      .prompt_tokens = message.prompt_tokens(),
                      .exact_tokens = message.exact_tokens(),
                      .reused_tokens = message.reused_tokens(),
                      .recomputed_tokens = message.recomputed_tokens(),
                      .computed_tokens = message.computed_tokens(),
                      .chunks = {},
                      .queue_seconds = message.queue_seconds(),
                      .lookup_seconds = message.lookup_seconds(),
                      .load_seconds = message.load_seconds(),
                      .select_seconds = message.select_seconds(),
                      .prefill_seconds = message.prefill_seconds(),
                      .time_to_first_token_seconds = message.time_to_first_token_seconds()};
  for (const v1::ChunkReport& chunk : message.chunks()) {
    report.chunks.push_back({.index = chunk.index(),
                             .source = FromProto(chunk.source()),
                             .tier = FromProto(chunk.tier()),
                             .num_tokens = chunk.num_tokens(),
                             .recomputed_tokens = chunk.recomputed_tokens(),
                             .key = chunk.key()});
  }
  return report;
}

TextDelta FromProto(const v1::TextDelta& message) {
  TextDelta delta;
  delta.text = message.text();
  delta.token_ids.assign(message.token_ids().begin(), message.token_ids().end());
  for (const v1::TokenLogprob& token : message.logprobs()) delta.logprobs.push_back(FromProto(token));
  for (const v1::TopLogprobs& position : message.top_logprobs()) {
    auto& tokens = delta.top_logprobs.emplace_back();
    for (const v1::TokenLogprob& token : position.tokens()) tokens.push_back(FromProto(token));
  }
  return delta;
}

GenerateResult FromProto(const v1::GenerateFinished& message) {
  return {.finish_reason = FromProto(message.reason()),
          .stop_string = message.stop_string(),
          .prompt_tokens = message.usage().prompt_tokens(),
          .completion_tokens = message.usage().completion_tokens(),
          .seed = message.seed(),
          .time_to_first_token_seconds = message.timings().time_to_first_token_seconds(),
          .total_seconds = message.timings().total_seconds()};
}

ScoredToken FromProto(const v1::ScoredToken& message) {
  return {.token_id = message.token_id(),
          .text = message.text(),
          .logprob = message.logprob(),
          .top_token_id = message.top_token_id(),
          .top_logprob = message.top_logprob(),
          .distribution = {message.distribution().begin(), message.distribution().end()}};
}

PutChunkProgress FromProto(const v1::PutChunkProgress& message) {
  return {.index = message.index(),
          .done = message.done(),
          .total = message.total(),
          .key = message.key(),
          .num_tokens = message.num_tokens(),
          .already_present = message.already_present(),
          .compute_seconds = message.compute_seconds()};
}

ChunkInfo FromProto(const v1::ChunkInfo& message) {
  return {.key = message.key(),
          .tier = FromProto(message.tier()),
          .num_tokens = message.num_tokens(),
          .size_bytes = message.size_bytes(),
          .pinned = message.pinned(),
          .label = message.label(),
          .anchor_hash = message.anchor_hash(),
          .hits = message.hits(),
          .created_unix_seconds = message.created_unix_seconds(),
          .last_used_unix_seconds = message.last_used_unix_seconds(),
          .compute_seconds = message.compute_seconds()};
}

Info FromProto(const v1::GetInfoResponse& message) {
  Info info;
  info.engine.version = message.version();
  info.engine.model_name = message.model().name();
  info.engine.model_architecture = message.model().architecture();
  info.engine.model_fingerprint = message.model().fingerprint();
  info.engine.backend = message.backend();
  info.engine.kv_dtype = message.kv_format().dtype();
  info.engine.kv_bytes_per_token = message.kv_format().bytes_per_token();
  info.engine.num_layers = message.model().num_layers();
  info.engine.num_heads = message.model().num_heads();
  info.engine.num_kv_heads = message.model().num_kv_heads();
  info.engine.head_dim = message.model().head_dim();
  info.engine.hidden_dim = message.model().hidden_dim();
  info.engine.vocab_size = message.model().vocab_size();
  info.engine.max_context_tokens = message.limits().max_context_tokens();
  info.engine.page_size = message.kv_format().page_size();
  info.engine.self_check_max_error = message.self_check_max_error();
  info.store = {.entries = message.store().entries(),
                .used_bytes = message.store().used_bytes(),
                .budget_bytes = message.store().budget_bytes(),
                .pinned_entries = message.store().pinned_entries(),
                .lookups = message.store().lookups(),
                .hits = message.store().hits(),
                .evictions = message.store().evictions()};
  info.requests_waiting = message.load().requests_waiting();
  info.requests_running = message.load().requests_running();
  return info;
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace kvblend::server::cli
