#include "engine/serve/sequences/prompt_prefill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "base/steady_time.h"
#include "engine/serve/sequences/explanation.h"

namespace kvblend {
namespace {

ChunkReport ReportChunk(const blend::PlannedSpan& span, absl::Span<const int32_t> recomputed) {
  ChunkReport chunk;
  chunk.index = span.chunk_index;
  chunk.source = span.source;
  chunk.tier = span.tier;
  chunk.num_tokens = span.num_tokens();
  if (span.source == ChunkSource::kMiss || span.source == ChunkSource::kBypassed) {
    chunk.recomputed_tokens = span.num_tokens();
  } else if (span.source != ChunkSource::kExact) {
    const auto first = std::lower_bound(recomputed.begin(), recomputed.end(), span.begin);
    const auto end = std::lower_bound(first, recomputed.end(), span.end);
    chunk.recomputed_tokens = static_cast<int32_t>(end - first);
  }
  if (span.key.has_value()) chunk.key = span.key->ToHex();
  return chunk;
}

PromptReport ReportPrompt(const blend::ReusePlan& plan, const BlendOptions& options,
                          const blend::PrefillResult& prefill) {
  PromptReport report;
  report.policy = prefill.policy;
  report.reuse = options.reuse;
  report.anchoring = options.anchoring;
  report.prompt_tokens = plan.prompt_tokens;
  report.kept_tokens = plan.kept_tokens;
  report.shared_tokens = plan.shared_tokens;
  report.exact_tokens = plan.exact_tokens;
  report.recomputed_tokens = static_cast<int32_t>(prefill.recomputed.size());
  report.reused_tokens = plan.candidates.num_tokens - report.recomputed_tokens;
  report.computed_tokens = static_cast<int32_t>(plan.computed.size());
  report.ratio = plan.candidates.num_tokens == 0
                     ? 0.0
                     : static_cast<double>(report.recomputed_tokens) / plan.candidates.num_tokens;
  for (const blend::PlannedSpan& span : plan.spans) {
    if (span.chunk_index >= 0) report.chunks.push_back(ReportChunk(span, prefill.recomputed));
  }
  report.load_seconds = prefill.load_seconds;
  report.stall_seconds = prefill.stall_seconds;
  report.select_seconds = prefill.select_seconds;
  report.prefill_seconds = prefill.compute_seconds;
  return report;
}

LoadingReport ReportLoading(const RatioOptions& ratio, const blend::LoadingDecision& decision,
                            const blend::PromptShape& shape, const blend::ReusePlan& plan,
                            const std::optional<blend::LoadingCosts>& costs) {
  // Where loading is bypassed, the least number of tokens may be a larger share of the rest than ratio.max.
  LoadingReport report{
      .mode = ratio.mode, .ratio_min = ratio.min, .ratio_max = std::max(ratio.max, decision.ratio)};
  report.ratio = decision.ratio;
  for (const size_t span : decision.bypassed) {
    if (plan.spans[span].chunk_index >= 0) ++report.bypassed_chunks;
  }
  for (const auto& [tier, layer_bytes] : blend::LayerBytesByTier(shape)) {
    TierRead read{.tier = tier, .bytes = layer_bytes * shape.num_layers};
    if (costs.has_value() && costs->reads.contains(tier)) {
      read.bytes_per_second = costs->reads.at(tier).bytes_per_second;
    }
    report.reads.push_back(read);
  }
  if (!decision.prediction.has_value()) return report;
  report.predicted = true;
  report.predicted_seconds = decision.prediction->seconds;
  report.predicted_load_seconds = decision.prediction->load_seconds;
  report.predicted_compute_seconds = decision.prediction->compute_seconds;
  report.compute_seconds_per_token = blend::SecondsPerToken(costs->forward, shape);
  return report;
}

/// How many leading tokens are exact, if all before the plan are.
int32_t ExactPrefix(const blend::ReusePlan& plan, absl::Span<const int32_t> recomputed) {
  size_t next = 0;
  for (const blend::CandidateSpan& span : plan.candidates.spans) {
    for (int32_t position = span.begin; position < span.end; ++position, ++next) {
      // Rows that follow each other from the first inexact one on see nothing but what is exact or computed
      // with them.
      if (next == recomputed.size() || recomputed[next] != position) return position;
    }
  }
  return plan.prompt_tokens;
}

/// The decision of the prefill that is repeated.
blend::LoadingDecision DecideAgain(const PrefillRecord& record, const blend::ReusePlan& plan) {
  blend::LoadingDecision decision{.ratio = record.ratio, .bypassed = {}, .prediction = std::nullopt};
  for (size_t i = 0; i < plan.spans.size(); ++i) {
    const bool computed =
        std::binary_search(record.computed.begin(), record.computed.end(), plan.spans[i].begin);
    if (plan.spans[i].entry.has_value() && computed) decision.bypassed.push_back(i);
  }
  return decision;
}

/// Where the history ends; 0: there is none.
int32_t HistoryEnd(const prompt::PromptLayout& layout) {
  int32_t end = 0;
  for (const prompt::Span& span : layout.spans) {
    if (span.kind == prompt::SpanKind::kHistory && span.size() > 0) end = span.end;
  }
  return end;
}

/// The most leading tokens, at most `num_tokens`, behind which every span can still be loaded or computed.
int32_t AtSpanBegin(const prompt::PromptLayout& layout, int32_t num_tokens) {
  const auto anchor_end = static_cast<int32_t>(layout.anchor_ids.size());
  if (layout.anchor_is_prefix && num_tokens < anchor_end) return 0;
  for (const prompt::Span& span : layout.spans) {
    const bool is_inside = span.begin < num_tokens && num_tokens < span.end;
    if (span.kind == prompt::SpanKind::kChunk && is_inside) return span.begin;
  }
  return num_tokens;
}

/// Where the first chunk that is not empty begins; INT32_MAX: there is none.
int32_t FirstChunkBegin(const prompt::PromptLayout& layout) {
  for (const prompt::Span& span : layout.spans) {
    if (span.kind == prompt::SpanKind::kChunk && span.size() > 0) return span.begin;
  }
  return INT32_MAX;
}

/// Where the first chunk begins that was found only behind another anchor; INT32_MAX: there is none.
int32_t FirstOtherAnchor(const blend::ReusePlan& plan) {
  for (const blend::PlannedSpan& span : plan.spans) {
    if (span.source == ChunkSource::kOtherAnchor) return span.begin;
  }
  return INT32_MAX;
}

bool IsIn(int32_t position, const TokenRanges& ranges) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const TokenRange& range) {
    return range.begin <= position && position < range.end;
  });
}

/// Whether some layer has KV for only some of the tokens, as those with windows have.
bool HidesTokens(const model::ModelConfig& config, int32_t num_tokens) {
  return std::any_of(config.layers.begin(), config.layers.end(), [&](const model::LayerConfig& layer) {
    return layer.sliding_window > 0 && layer.sliding_window < num_tokens;
  });
}

/// Whether the prompt failed because a stored entry could not be read: the next plan will not find it.
bool LostEntry(const blend::ReusePlan& plan) {
  return std::any_of(plan.spans.begin(), plan.spans.end(), [](const blend::PlannedSpan& span) {
    return span.entry.has_value() && span.entry->lost();
  });
}

}  // namespace

PromptPrefill::PromptPrefill(const Engine& engine, const prompt::PromptLayout& layout,
                             const BlendOptions& options, std::string_view tenant_namespace,
                             RequestTrace* trace)
    : engine_(engine),
      layout_(layout),
      options_(options),
      tenant_namespace_(tenant_namespace),
      trace_(trace),
      trace_begin_(TraceNow(trace)),
      scratch_(engine.scratch.Borrow()) {}

absl::StatusOr<std::unique_ptr<PromptPrefill>> PromptPrefill::Create(
    const Engine& engine, const prompt::PromptLayout& layout, const BlendOptions& options,
    std::string_view tenant_namespace, RequestTrace* trace, const PrefillRecord* again) {
  const absl::Time start = SteadyNow();
  std::unique_ptr<PromptPrefill> prefill(new PromptPrefill(engine, layout, options, tenant_namespace, trace));
  // The correction stays the same to the end of the prompt, whatever is learned meanwhile.
  prefill->correction_ = engine.runtime.correction.Get();
  if (!options.correction || prefill->correction_ == nullptr ||
      prefill->correction_->anchoring != blend::AnchoringOf(options, layout)) {
    prefill->correction_ = nullptr;
  }
  if (again != nullptr) {
    prefill->again_ = *again;
    prefill->correction_ = again->correction;
  }
  prefill->prompt_.num_tokens = static_cast<int32_t>(layout.token_ids.size());
  KVBLEND_RETURN_IF_ERROR(prefill->TakeKeptPages());
  prefill->lookup_seconds_ = absl::ToDoubleSeconds(SteadyNow() - start);
  KVBLEND_RETURN_IF_ERROR(prefill->Plan());
  return prefill;
}

PromptPrefill::~PromptPrefill() {
  if (done_ || !kept_.has_value()) return;
  prefill_.reset();  // waits for what writes behind the kept tokens
  kept_->pages = prompt_.TakePages();
  engine_.kept.Keep(*std::move(kept_));
}

std::optional<SharedPrefix> PromptPrefill::FindSource(const Engine& engine,
                                                      const prompt::PromptLayout& layout,
                                                      const BlendOptions& options,
                                                      std::string_view tenant_namespace,
                                                      const PrefillRecord* again, int32_t other_anchor) {
  if (!engine.share_prefixes || !options.share_prefix) return std::nullopt;
  const int32_t most =
      ExactPrefixTokens(layout, options, blend::ResolveRatio(options, engine.ratio), other_anchor);
  const absl::Span<const int32_t> tokens = absl::MakeConstSpan(layout.token_ids).first(most);
  std::optional<SharedPrefix> prefix = engine.shared.Find(tenant_namespace, tokens);
  std::optional<SharedPrefix> kept = engine.kept.FindExact(tenant_namespace, tokens);
  if (!prefix.has_value() || (kept.has_value() && kept->num_tokens > prefix->num_tokens)) {
    prefix = std::move(kept);
  }
  if (!prefix.has_value()) return std::nullopt;
  if (again != nullptr) {
    // The last bits may differ if what was loaded then is computed now, or vice versa, or if what it computed
    // itself comes from others, who may have computed it together with more tokens.
    prefix->num_tokens = std::min(prefix->num_tokens, again->shared_tokens);
    const TokenRanges loaded = RangesBefore(again->loaded, prefix->num_tokens);
    prefix->num_tokens = std::min(prefix->num_tokens, AgreeUntil(prefix->loaded, loaded));
  }
  prefix->num_tokens = AtSpanBegin(layout, prefix->num_tokens);
  // Less than a page is not worth it.
  if (prefix->num_tokens < engine.runtime.page_pool->page_size()) return std::nullopt;
  prefix->loaded = RangesBefore(prefix->loaded, prefix->num_tokens);
  return prefix;
}

int64_t PromptPrefill::PagesToShare(const Engine& engine, const prompt::PromptLayout& layout,
                                    const BlendOptions& options, std::string_view tenant_namespace,
                                    const PrefillRecord* again) {
  // A conversation may go on from a kept sequence, whose pages no answer holds.
  if (HistoryEnd(layout) > 0) return 0;
  const auto find = [&](int32_t other_anchor) {
    return FindSource(engine, layout, options, tenant_namespace, again, other_anchor);
  };
  std::optional<SharedPrefix> prefix = find(INT32_MAX);
  if (!prefix.has_value()) return 0;
  // A first chunk that the other one has computed, the store may have behind another anchor.
  const int32_t chunk = FirstChunkBegin(layout);
  if (chunk < prefix->num_tokens && !IsIn(chunk, prefix->loaded)) prefix = find(/*other_anchor=*/chunk);
  if (!prefix.has_value()) return 0;
  return prefix->pages->NumHeldFor(kv::PageUse::kDecoding, prefix->num_tokens);
}

absl::Status PromptPrefill::TakeKeptPages() {
  // A prompt that is repeated goes on behind the same kept tokens as before, not behind any kept meanwhile.
  const int32_t most_kept = again_.has_value() ? again_->kept_tokens : HistoryEnd(layout_);
  kept_ = engine_.kept.Take(tenant_namespace_, layout_.token_ids, most_kept, options_);
  if (!kept_.has_value()) return absl::OkStatus();
  const TracedUnit traced(trace_, "pages");
  kept_tokens_ = kept_->num_tokens();
  prompt_.pages = std::move(kept_->pages);
  prompt_.pages->SetUse(engine_.use);
  found_ = kept_->loaded;
  // Other sequences may share the pages that are overwritten behind the kept tokens.
  KVBLEND_RETURN_IF_ERROR(
      prompt_.pages->MakeOwn(kept_->num_tokens(), prompt_.num_tokens, *engine_.runtime.stream));
  return prompt_.pages->Grow(prompt_.num_tokens);
}

absl::Status PromptPrefill::TakePages() {
  const TracedUnit traced(trace_, "pages");
  prompt_.pages = std::make_unique<kv::SequencePages>(*engine_.runtime.page_pool, engine_.use);
  if (std::optional<SharedPrefix> prefix =
          FindSource(engine_, layout_, options_, tenant_namespace_, again_.has_value() ? &*again_ : nullptr,
                     FirstOtherAnchor(plan_))) {
    shared_tokens_ = prefix->num_tokens;
    found_ = std::move(prefix->loaded);
    KVBLEND_RETURN_IF_ERROR(
        prompt_.pages->ShareFrom(*prefix->pages, shared_tokens_, *engine_.runtime.stream));
  }
  return prompt_.pages->Grow(prompt_.num_tokens);
}

absl::Status PromptPrefill::Plan() {
  const absl::Time start = SteadyNow();
  const int64_t trace_begin = TraceNow(trace_);
  ModelRuntime& runtime = engine_.runtime;
  const model::ModelConfig& config = runtime.config;
  prefill_.reset();  // it refers to members that change below
  const int32_t kept_tokens = kept_.has_value() ? kept_->num_tokens() : 0;
  plan_ = blend::PlanReuse(layout_, options_, runtime.key_space, tenant_namespace_, engine_.chunk_store,
                           kept_tokens, again_.has_value() ? again_->reused : blend::ReusedEntries());
  if (prompt_.pages == nullptr) KVBLEND_RETURN_IF_ERROR(TakePages());
  if (shared_tokens_ > 0) blend::ShareTokens(shared_tokens_, plan_);
  shape_ = blend::ShapeOf(plan_, config.num_layers);
  ratio_ = blend::WithMinTokens(blend::ResolveRatio(options_, engine_.ratio), shape_);
  costs_ = engine_.loading_controller.Costs(engine_.chunk_store.read_meter().Rates());
  decision_ = again_.has_value()
                  ? DecideAgain(*again_, plan_)
                  : blend::DecideLoading(shape_, options_, ratio_, costs_, engine_.load_pipeline_depth);
  blend::BypassSpans(decision_.bypassed, plan_);
  if (again_.has_value()) {
    // Tokens that were computed then, and are shared now, may be in the store by now.
    plan_.shared_computed =
        std::max(0, again_->computed_tokens - static_cast<int32_t>(plan_.computed.size()));
  }
  BlendOptions decided = options_;
  decided.ratio = decision_.ratio;
  KVBLEND_ASSIGN_OR_RETURN(policy_, blend::CreateSelectionPolicy(decided, config.num_layers));
  lookup_seconds_ += absl::ToDoubleSeconds(SteadyNow() - start);
  if (trace_ != nullptr) {
    trace_->Add({.name = "lookup",
                 .begin = trace_begin,
                 .end = trace_->Now(),
                 .arguments = {RequestTrace::Argument{"prompt tokens", plan_.prompt_tokens},
                               {"reusable tokens", plan_.candidates.num_tokens},
                               {"exact tokens", plan_.exact_tokens}}});
  }
  // What is computed behind blended KV is not what full prefill would give.
  const bool exact_before = !kept_.has_value() || kept_->num_exact == kept_tokens;
  const bool captures = exact_before && !again_.has_value() && engine_.fresh_rows.WantedOf(options_, layout_);
  capture_.emplace(captures ? engine_.fresh_rows : blend::FreshRowOptions{}, layout_, plan_,
                   config.num_layers, int64_t{2} * config.num_kv_heads * config.head_dim,
                   scratch_->fresh_rows);
  worked_seconds_ = 0;
  KVBLEND_ASSIGN_OR_RETURN(
      prefill_, blend::BlendedPrefill::Create(
                    {.transformer = *runtime.transformer,
                     .stream = *runtime.stream,
                     .scratch = *scratch_,
                     .layout = layout_,
                     .plan = plan_,
                     .sequence = blend::PagedSequence(*runtime.backend, *runtime.page_pool, *prompt_.pages),
                     .correction = correction_.get(),
                     .capture = &*capture_,
                     .pipeline_depth = engine_.load_pipeline_depth,
                     .spread_deviation = blend::SpreadsDeviation(options_, layout_),
                     .keep_scores = options_.explain,
                     .trace = trace_},
                    *policy_));
  return absl::OkStatus();
}

absl::StatusOr<bool> PromptPrefill::Step(blend::KeepGoing keep_going) {
  const absl::Time start = SteadyNow();
  const absl::StatusOr<bool> done = prefill_->Step(keep_going);
  if (done.ok()) worked_seconds_ += absl::ToDoubleSeconds(SteadyNow() - start);
  // An entry that turns out to be damaged half way has spoilt what was computed from it. Every round loses
  // one at least, and in the end they are all misses.
  if (!done.ok() && LostEntry(plan_)) {
    KVBLEND_RETURN_IF_ERROR(Plan());
    return false;
  }
  if (done.ok() && *done) Finish();
  return done;
}

PrefillRecord PromptPrefill::record() const {
  PrefillRecord record{.computed = {},
                       .reused = {},
                       .kept_tokens = kept_tokens_,
                       .shared_tokens = shared_tokens_,
                       .computed_tokens = static_cast<int32_t>(plan_.computed.size()) + plan_.shared_computed,
                       .ratio = decision_.ratio,
                       .loaded = loaded_,
                       .correction = correction_};
  for (const blend::PlannedSpan& span : plan_.spans) {
    if (span.num_tokens() == 0) continue;
    if (span.entry.has_value()) {
      record.reused.emplace(span.begin, span.entry->key());
      continue;
    }
    if (!IsIn(span.begin, found_)) record.computed.push_back(span.begin);
  }
  return record;
}

double PromptPrefill::predicted_seconds_left() const {
  if (prefill_->is_waiting()) return std::numeric_limits<double>::infinity();
  if (!decision_.prediction.has_value()) return 0;
  return std::max(0.0, decision_.prediction->seconds - worked_seconds_);
}

int64_t PromptPrefill::computed_tokens() const {
  if (!decision_.prediction.has_value() || worked_seconds_ <= 0) return 0;
  const double all = static_cast<double>(plan_.computed.size()) +
                     decision_.ratio * static_cast<double>(plan_.candidates.num_tokens);
  const double predicted = std::max(decision_.prediction->seconds, worked_seconds_);
  // Divided first: the share is 1 at most, however sums round.
  return static_cast<int64_t>(std::ceil(all * (worked_seconds_ / predicted)));
}

void PromptPrefill::Finish() {
  blend::PrefillResult& result = prefill_->result();
  capture_->Finish(result.recomputed, plan_);
  prompt_.report = ReportPrompt(plan_, options_, result);
  if (kept_.has_value()) {
    prompt_.report.kept_exact_tokens = kept_->num_exact;
    prompt_.kept_must_match = kept_->must_match;
  }
  const bool exact_before = !kept_.has_value() || kept_->num_exact == kept_->num_tokens();
  prompt_.num_exact = exact_before ? ExactPrefix(plan_, result.recomputed) : kept_->num_exact;
  loaded_ = found_;
  for (const blend::PlannedSpan& span : plan_.spans) {
    if (span.entry.has_value() && span.source == ChunkSource::kExact && span.end <= prompt_.num_exact) {
      AppendRange({span.begin, span.end}, loaded_);
    }
  }
  prompt_.loaded = loaded_;
  done_ = true;
  if (trace_ != nullptr) {
    trace_->Add({.name = "prefill", .begin = trace_begin_, .end = trace_->Now()});
  }
  prompt_.report.lookup_seconds = lookup_seconds_;
  if (correction_ != nullptr && plan_.candidates.num_tokens > 0) {
    prompt_.report.correction = correction_->version;
  }
  prompt_.report.loading = ReportLoading(ratio_, decision_, shape_, plan_, costs_);
  prompt_.report.loading.skipped_bytes = result.skipped_kv_bytes;
  if (options_.explain) {
    prompt_.report.explanation = ExplainPrompt(layout_, *engine_.runtime.tokenizer, plan_.candidates, result);
  }
  engine_.loading_controller.Observe(result.measurements);
  prompt_.logits = std::move(result.logits);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!std::all_of(prompt_.logits.begin(), prompt_.logits.end(), [](float x) { return x < kInfinity; })) {
    prompt_.pages->MarkDamaged();
  }
  OfferPrefix();
  prompt_.recomputed = std::move(result.recomputed);
  prompt_.missing = std::move(plan_.missing);
}

void PromptPrefill::OfferPrefix() {
  if (!engine_.share_prefixes || prompt_.pages->is_damaged()) return;
  if (prompt_.num_exact < engine_.runtime.page_pool->page_size()) return;
  if (HidesTokens(engine_.runtime.config, prompt_.num_tokens)) return;
  prompt_.offer =
      engine_.shared.Add(tenant_namespace_, absl::MakeConstSpan(layout_.token_ids).first(prompt_.num_exact),
                         prompt_.loaded, *prompt_.pages);
}

}  // namespace kvblend
