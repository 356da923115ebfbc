#include "server/convert/reports.h"

#include "absl/time/time.h"
#include "server/convert/enums.h"

namespace kvblend::server {
namespace {

void ToProto(const TokenLogprob& from, v1::TokenLogprob* to) {
  to->set_token_id(from.token_id);
  to->set_text(from.text);
  to->set_logprob(from.logprob);
  to->set_bytes(from.bytes);
}

void ToProto(const LoadingReport& from, v1::LoadingReport* to) {
  to->set_mode(ToWire<v1::RatioMode>(from.mode));
  to->set_ratio_min(from.ratio_min);
  to->set_ratio_max(from.ratio_max);
  to->set_ratio(from.ratio);
  to->set_bypassed_chunks(from.bypassed_chunks);
  to->set_predicted(from.predicted);
  to->set_predicted_seconds(from.predicted_seconds);
  to->set_predicted_load_seconds(from.predicted_load_seconds);
  to->set_skipped_bytes(from.skipped_bytes);
  to->set_predicted_compute_seconds(from.predicted_compute_seconds);
  to->set_compute_seconds_per_token(from.compute_seconds_per_token);
  for (const TierRead& read : from.reads) {
    v1::TierRead* added = to->add_reads();
    added->set_tier(ToWire<v1::Tier>(read.tier));
    added->set_bytes(read.bytes);
    added->set_bytes_per_second(read.bytes_per_second);
  }
}

void ToProto(const ExplainedSpan& from, v1::ExplainedSpan* to) {
  to->set_part(ToWire<v1::PromptPart>(from.part));
  to->set_chunk_index(from.chunk_index);
  to->mutable_texts()->Add(from.texts.begin(), from.texts.end());
  to->mutable_recomputed()->Add(from.recomputed.begin(), from.recomputed.end());
  to->mutable_scores()->Add(from.scores.begin(), from.scores.end());
}

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

v1::PromptReport ToProto(const PromptReport& report) {
  v1::PromptReport to;
  to.set_policy(ToWire<v1::Policy>(report.policy));
  to.set_ratio(report.ratio);
  to.set_reuse(ToWire<v1::Reuse>(report.reuse));
  to.set_anchoring(ToWire<v1::Anchoring>(report.anchoring));
  to.set_prompt_tokens(report.prompt_tokens);
  to.set_kept_tokens(report.kept_tokens);
  to.set_kept_exact_tokens(report.kept_exact_tokens);
  to.set_exact_tokens(report.exact_tokens);
  to.set_shared_tokens(report.shared_tokens);
  to.set_reused_tokens(report.reused_tokens);
  to.set_recomputed_tokens(report.recomputed_tokens);
  to.set_computed_tokens(report.computed_tokens);
  for (const ChunkReport& chunk : report.chunks) {
    v1::ChunkReport* added = to.add_chunks();
    added->set_index(chunk.index);
    added->set_source(ToWire<v1::ChunkSource>(chunk.source));
    added->set_tier(ToWire<v1::Tier>(chunk.tier));
    added->set_num_tokens(chunk.num_tokens);
    added->set_recomputed_tokens(chunk.recomputed_tokens);
    added->set_key(chunk.key);
  }
  to.set_queue_seconds(report.queue_seconds);
  to.set_lookup_seconds(report.lookup_seconds);
  to.set_load_seconds(report.load_seconds);
  to.set_stall_seconds(report.stall_seconds);
  to.set_correction(report.correction);
  to.set_select_seconds(report.select_seconds);
  to.set_prefill_seconds(report.prefill_seconds);
  to.set_others_seconds(report.others_seconds);
  to.set_time_to_first_token_seconds(report.time_to_first_token_seconds);
  ToProto(report.loading, to.mutable_loading());
  for (const ExplainedSpan& span : report.explanation) ToProto(span, to.add_explanation());
  return to;
}

v1::TextDelta ToProto(const TextDelta& delta) {
  v1::TextDelta to;
  to.set_text(delta.text);
  to.mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  to.set_begin_character(delta.begin_character);
  for (const TokenLogprob& logprob : delta.logprobs) ToProto(logprob, to.add_logprobs());
  for (const std::vector<TokenLogprob>& top : delta.top_logprobs) {
    v1::TopLogprobs* added = to.add_top_logprobs();
    for (const TokenLogprob& logprob : top) ToProto(logprob, added->add_tokens());
  }
  return to;
}

v1::GenerateFinished ToProto(const GenerateResult& result) {
  v1::GenerateFinished to;
  to.set_reason(ToWire<v1::FinishReason>(result.finish_reason));
  to.set_stop_string(result.stop_string);
  to.mutable_usage()->set_prompt_tokens(result.prompt_tokens);
  to.mutable_usage()->set_completion_tokens(result.completion_tokens);
  to.set_seed(result.seed);
  to.mutable_timings()->set_time_to_first_token_seconds(result.time_to_first_token_seconds);
  to.mutable_timings()->set_total_seconds(result.total_seconds);
  for (const AttributedToken& token : result.attributions) {
    v1::AttributedToken* added = to.add_attributions();
    added->set_begin_byte(token.begin_byte);
    added->set_end_byte(token.end_byte);
    for (const ChunkAttention& chunk : token.chunks) {
      v1::ChunkAttention* attended = added->add_chunks();
      attended->set_index(chunk.index);
      attended->set_attention(chunk.attention);
    }
  }
  return to;
}

v1::ScoredToken ToProto(const ScoredToken& token) {
  v1::ScoredToken to;
  to.set_token_id(token.token_id);
  to.set_text(token.text);
  to.set_logprob(token.logprob);
  to.set_top_token_id(token.top_token_id);
  to.set_top_logprob(token.top_logprob);
  to.mutable_distribution()->Add(token.distribution.begin(), token.distribution.end());
  return to;
}

v1::PutChunkProgress ToProto(const PutChunkProgress& progress) {
  v1::PutChunkProgress to;
  to.set_index(progress.index);
  to.set_done(progress.done);
  to.set_total(progress.total);
  to.set_key(progress.key);
  to.set_num_tokens(progress.num_tokens);
  to.set_already_present(progress.already_present);
  to.set_compute_seconds(progress.compute_seconds);
  to.set_durable(progress.durable);
  to.set_computed_tokens(progress.computed_tokens);
  return to;
}

v1::SplitDocumentResponse ToProto(const DocumentChunks& chunks) {
  v1::SplitDocumentResponse to;
  for (const DocumentChunk& chunk : chunks.chunks) {
    v1::DocumentChunk& message = *to.add_chunks();
    message.set_begin_byte(chunk.begin_byte);
    message.set_end_byte(chunk.end_byte);
    message.set_num_tokens(chunk.num_tokens);
    message.set_stored_bytes(chunk.stored_bytes);
    message.set_key(chunk.key.ToHex());
    message.set_stored(chunk.stored);
  }
  to.set_next_byte(chunks.next_byte);
  return to;
}

v1::PrefetchChunksResponse ToProto(const std::vector<PrefetchedChunk>& chunks) {
  v1::PrefetchChunksResponse to;
  for (const PrefetchedChunk& chunk : chunks) {
    v1::PrefetchedChunk& message = *to.add_chunks();
    message.set_key(chunk.key);
    message.set_tier(ToWire<v1::Tier>(chunk.tier));
    message.set_num_tokens(chunk.num_tokens);
    message.set_refusal(chunk.refusal);
  }
  return to;
}

v1::ChunkInfo ToProto(const ChunkInfo& info) {
  v1::ChunkInfo to;
  to.set_key(info.key.ToHex());
  to.set_content_key(info.content_key.ToHex());
  to.set_tier(ToWire<v1::Tier>(info.tier));
  to.set_num_tokens(info.num_tokens);
  to.set_size_bytes(info.bytes);
  to.set_pinned(info.pinned);
  to.set_label(info.label);
  to.set_anchor_hash(ToHex(info.anchor_hash));
  to.set_hits(info.hits);
  to.set_created_unix_seconds(UnixSeconds(info.created));
  to.set_last_used_unix_seconds(UnixSeconds(info.last_used));
  to.set_compute_seconds(info.compute_cost_seconds);
  return to;
}

v1::CorrectionInfo ToProto(const CorrectionStats& stats) {
  v1::CorrectionInfo to;
  to.set_version(stats.version);
  to.set_learning(ToWire<v1::LearningState>(stats.learning));
  to.set_learned(stats.learned);
  to.set_tokens(stats.tokens);
  to.set_fitted_chunks(stats.fitted_chunks);
  to.set_kept_back_chunks(stats.kept_back_chunks);
  to.set_fits(stats.fits);
  to.set_fits_applied(stats.fits_applied);
  to.set_waiting_chunks(stats.waiting_chunks);
  to.mutable_deviation_before()->Add(stats.deviation_before.begin(), stats.deviation_before.end());
  to.mutable_deviation_after()->Add(stats.deviation_after.begin(), stats.deviation_after.end());
  to.set_shared(stats.shared);
  to.set_replicas_found(stats.replicas_found);
  to.set_replicas_merged(stats.replicas_merged);
  to.set_moments_published(stats.moments_published);
  to.set_moments_refused(stats.moments_refused);
  to.set_sharing_failures(stats.sharing_failures);
  return to;
}

v1::GetInfoResponse ToProto(const EngineInfo& info, const EngineStats& stats, const EngineOptions& options) {
  v1::GetInfoResponse to;
  to.set_version(info.version);
  v1::ModelInfo* model = to.mutable_model();
  model->set_name(info.model_name);
  model->set_architecture(info.model_architecture);
  model->set_fingerprint(info.model_fingerprint);
  model->set_num_layers(info.num_layers);
  model->set_num_heads(info.num_heads);
  model->set_num_kv_heads(info.num_kv_heads);
  model->set_head_dim(info.head_dim);
  model->set_hidden_dim(info.hidden_dim);
  model->set_vocab_size(info.vocab_size);
  v1::Limits* limits = to.mutable_limits();
  limits->set_max_context_tokens(info.max_context_tokens);
  limits->set_max_queued_requests(options.max_queued_requests);
  limits->set_max_chunks_per_request(options.max_chunks_per_request);
  limits->set_max_text_bytes(options.max_text_bytes);
  limits->set_max_batch_size(info.max_batch_size);
  limits->set_max_batch_tokens(info.max_batch_tokens);
  v1::KvFormat* kv_format = to.mutable_kv_format();
  kv_format->set_dtype(info.kv_dtype);
  kv_format->set_chunk_format(info.chunk_format);
  kv_format->set_chunk_bytes_per_token(info.chunk_bytes_per_token);
  kv_format->set_page_size(info.page_size);
  kv_format->set_correction(stats.correction.version);
  v1::StoreInfo* store = to.mutable_store();
  store->set_entries(stats.store.entries);
  store->set_used_bytes(stats.store.bytes);
  store->set_budget_bytes(stats.store.byte_budget);
  store->set_pinned_entries(stats.store.pinned_entries);
  store->set_pinned_bytes(stats.store.pinned_bytes);
  store->set_pinned_byte_limit(stats.store.pinned_byte_limit);
  store->set_lookups(stats.store.lookups);
  store->set_hits(stats.store.hits);
  store->set_other_anchor_hits(stats.store.other_anchor_hits);
  store->set_prompt_chunks(stats.prompt_chunks);
  store->set_prompt_chunks_found(stats.prompt_chunks_found);
  store->set_evictions(stats.store.evictions);
  for (const TierStats& tier : stats.tiers) {
    v1::TierInfo* to_tier = to.add_tiers();
    to_tier->set_tier(ToWire<v1::Tier>(tier.tier));
    to_tier->set_failing(tier.failing);
    for (const TierStat& stat : tier.values) (*to_tier->mutable_stats())[std::string(stat.name)] = stat.value;
  }
  v1::Load* load = to.mutable_load();
  load->set_requests_waiting(stats.requests_waiting);
  load->set_requests_running(stats.requests_running);
  load->set_sequences_decoding(stats.sequences_decoding);
  load->set_background_unfinished(stats.background_unfinished);
  load->set_pages_used(stats.pages_used);
  load->set_pages_total(stats.pages_total);
  load->set_pages_kept(stats.pages_kept);
  load->set_tokens_waiting(stats.tokens_waiting);
  load->set_predicted_wait_seconds(stats.predicted_wait_seconds);
  load->set_decoded_tokens(stats.decoded_tokens);
  v1::DeviceInfo* device = to.mutable_device();
  device->set_device(info.device);
  device->set_name(info.device_name);
  device->set_reason(info.device_reason);
  if (stats.device_memory.has_value()) {
    device->set_memory_used_bytes(stats.device_memory->used_bytes);
    device->set_memory_total_bytes(stats.device_memory->total_bytes);
  }
  *to.mutable_correction() = ToProto(stats.correction);
  to.set_backend(info.backend);
  to.set_self_check_max_error(info.self_check_max_error);
  return to;
}

}  // namespace kvblend::server
