#include "engine/serve/sequences/prompt_runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace kvblend {
namespace {

// Tokens whose logits have room at the same time.
constexpr int64_t kMaxRepeatedTokens = 64;

/// The share of a layer's matrix products that makes Q, K and V.
double ProjectionShare(const model::ModelConfig& config) {
  const double head_columns = 1.0 * config.num_heads * config.head_dim;
  const double qkv = config.hidden_dim * (head_columns + 2.0 * config.num_kv_heads * config.head_dim);
  return qkv / (qkv + head_columns * config.hidden_dim + 3.0 * config.hidden_dim * config.used_ffn_dim());
}

}  // namespace

PromptRunner::PromptRunner(ModelRuntime& runtime, store::ChunkStore& chunk_store, const Options& options)
    : runtime_(runtime),
      chunk_store_(chunk_store),
      options_(options),
      loading_controller_(ProjectionShare(runtime.config)),
      attention_(runtime),
      kept_(*runtime.page_pool, options.max_kept_pages),
      refinement_(runtime, kept_, scratch_),
      step_(runtime.backend->CreateRepeatedStep(*runtime.stream)) {}

PromptPrefill::Engine PromptRunner::EngineFor(kv::PageUse use) {
  return {.runtime = runtime_,
          .chunk_store = chunk_store_,
          .loading_controller = loading_controller_,
          .scratch = scratch_,
          .load_pipeline_depth = options_.load_pipeline_depth,
          .ratio = options_.ratio,
          .fresh_rows = options_.fresh_rows,
          .kept = kept_,
          .shared = shared_,
          .share_prefixes = options_.share_prefixes,
          .use = use};
}

absl::StatusOr<std::unique_ptr<PromptPrefill>> PromptRunner::Begin(const prompt::PromptLayout& layout,
                                                                   const BlendOptions& options,
                                                                   std::string_view tenant_namespace,
                                                                   kv::PageUse use, RequestTrace* trace,
                                                                   const PrefillRecord* again) {
  KVBLEND_RETURN_IF_ERROR(blend::ValidateBlendOptions(options, runtime_.config.num_layers));
  return PromptPrefill::Create(EngineFor(use), layout, options, tenant_namespace, trace, again);
}

int64_t PromptRunner::PagesToShare(const prompt::PromptLayout& layout, const BlendOptions& options,
                                   std::string_view tenant_namespace, const PrefillRecord* again) {
  return PromptPrefill::PagesToShare(EngineFor(kv::PageUse::kDecoding), layout, options, tenant_namespace,
                                     again);
}

absl::StatusOr<PrefilledPrompt> PromptRunner::Prefill(const prompt::PromptLayout& layout,
                                                      const BlendOptions& options,
                                                      std::string_view tenant_namespace,
                                                      blend::KeepGoing keep_going) {
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<PromptPrefill> prefill,
                           Begin(layout, options, tenant_namespace));
  while (true) {
    KVBLEND_ASSIGN_OR_RETURN(const bool done, prefill->Step(keep_going));
    if (done) return prefill->TakePrompt();
  }
}

void PromptRunner::FinishReport(double queue_seconds, double time_to_first_token_seconds,
                                PromptReport& report) {
  report.queue_seconds = queue_seconds;
  report.time_to_first_token_seconds = time_to_first_token_seconds;
  const double own_seconds = queue_seconds + report.lookup_seconds + report.load_seconds +
                             report.select_seconds + report.prefill_seconds;
  report.others_seconds = std::max(0.0, time_to_first_token_seconds - own_seconds);
  if (report.reuse == Reuse::kNothing) return;  // nothing was looked up
  const auto found = std::count_if(report.chunks.begin(), report.chunks.end(), [](const ChunkReport& chunk) {
    const bool is_used = chunk.source != ChunkSource::kMiss && chunk.source != ChunkSource::kBypassed;
    return is_used && chunk.tier != Tier::kNone;  // a chunk without tokens is exact, and was found nowhere
  });
  chunk_counts_.looked_up.fetch_add(static_cast<int64_t>(report.chunks.size()), std::memory_order_relaxed);
  chunk_counts_.found.fetch_add(found, std::memory_order_relaxed);
}

absl::StatusOr<kernels::MatrixView> PromptRunner::Append(PrefilledPrompt& prompt,
                                                         absl::Span<const int32_t> token_ids,
                                                         blend::KeepGoing keep_going) {
  const int32_t end = prompt.num_tokens + static_cast<int32_t>(token_ids.size());
  KVBLEND_RETURN_IF_ERROR(prompt.pages->Grow(end));
  const blend::PagedSequence sequence(*runtime_.backend, *runtime_.page_pool, *prompt.pages);
  KVBLEND_ASSIGN_OR_RETURN(const auto rows, sequence.PlanRange(prompt.num_tokens, end, end));
  KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView logits, RunRows(token_ids, *rows, state_, keep_going));
  prompt.num_tokens = end;
  return logits;
}

absl::StatusOr<std::vector<float>> PromptRunner::Extend(PrefilledPrompt& prompt,
                                                        absl::Span<const int32_t> token_ids,
                                                        blend::KeepGoing keep_going) {
  KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView logits, Append(prompt, token_ids, keep_going));
  std::vector<float> host_logits(logits.rows * logits.cols);
  KVBLEND_RETURN_IF_ERROR(runtime_.backend->CopyToHost(*runtime_.stream, host_logits.data(), logits.data,
                                                       host_logits.size() * sizeof(float)));
  KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(*runtime_.stream));
  return host_logits;
}

absl::StatusOr<std::vector<kernels::SampledToken>> PromptRunner::ExtendAndSample(
    PrefilledPrompt& prompt, absl::Span<const int32_t> token_ids,
    absl::Span<const kernels::SamplingSpec> specs, blend::KeepGoing keep_going) {
  KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView logits, Append(prompt, token_ids, keep_going));
  KVBLEND_ASSIGN_OR_RETURN(std::vector<kernels::SampledToken> sampled, Sample(logits, specs));
  for (const kernels::SampledToken& token : sampled) {
    if (token.invalid_token >= 0) prompt.pages->MarkDamaged();
  }
  return sampled;
}

absl::StatusOr<std::vector<kernels::SampledToken>> PromptRunner::Sample(
    kernels::MatrixView logits, absl::Span<const kernels::SamplingSpec> specs) {
  std::vector<kernels::SampledToken> sampled(specs.size());
  KVBLEND_RETURN_IF_ERROR(
      runtime_.backend->SampleTokens(*runtime_.stream, logits, specs, absl::MakeSpan(sampled)));
  KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(*runtime_.stream));
  return sampled;
}

absl::StatusOr<PromptRunner::StepRows> PromptRunner::PlanStep(absl::Span<const NextTokens> next) {
  StepRows rows;
  std::vector<int32_t> row_indptr = {0}, positions, page_indptr = {0}, page_indices;
  for (const auto& [prompt, tokens, sampling, chunks] : next) {
    const auto count = static_cast<int32_t>(tokens.size());
    DropUnseen(*prompt);
    KVBLEND_RETURN_IF_ERROR(prompt->pages->Grow(prompt->num_tokens + count));
    // Every token is a sequence of its own over the same pages: attention then computes each as it does a
    // single one.
    for (int32_t i = 0; i < count; ++i) {
      rows.token_ids.push_back(tokens[i]);
      rows.sampling.push_back(sampling[i]);
      positions.push_back(prompt->num_tokens + i);
      rows.kv_len.push_back(prompt->num_tokens + i + 1);
      row_indptr.push_back(static_cast<int32_t>(rows.token_ids.size()));
      page_indptr.push_back(page_indptr.back() + static_cast<int32_t>(prompt->pages->num_places()));
    }
  }
  const kv::PagePool& pool = *runtime_.page_pool;
  for (int32_t group = 0; group < pool.groups().num_groups(); ++group) {
    for (const NextTokens& tokens : next) {
      const absl::Span<const int32_t> pages = tokens.prompt->pages->page_indices(group);
      for (size_t i = 0; i < tokens.token_ids.size(); ++i) {
        page_indices.insert(page_indices.end(), pages.begin(), pages.end());
      }
    }
  }
  kernels::BatchSpec spec;
  spec.row_indptr = row_indptr;
  spec.positions = positions;
  spec.kv_len = rows.kv_len;
  spec.page_indptr = page_indptr;
  spec.page_indices = page_indices;
  spec.page_size = pool.page_size();
  spec.num_page_lists = pool.groups().num_groups();
  KVBLEND_ASSIGN_OR_RETURN(rows.plan, runtime_.backend->PlanBatch(spec));
  return rows;
}

absl::StatusOr<std::vector<kernels::SampledToken>> PromptRunner::RunStep(const StepRows& rows,
                                                                         bool measures) {
  std::vector<kernels::SampledToken> sampled(rows.token_ids.size());
  const kernels::StepValues values{*rows.plan, rows.token_ids, rows.sampling, absl::MakeSpan(sampled)};
  const auto run = [&](model::PassState& state) -> absl::Status {
    KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView logits,
                             RunRows(
                                 values.token_ids, values.plan, state, [] { return absl::OkStatus(); },
                                 measures ? &attention_ : nullptr));
    return runtime_.backend->SampleTokens(*runtime_.stream, logits, values.specs, values.out);
  };
  if (measures) {
    // The size of the measured mass depends on how much KV there is, so such a step cannot be repeated.
    KVBLEND_RETURN_IF_ERROR(attention_.Begin(*rows.plan));
    KVBLEND_RETURN_IF_ERROR(run(state_));
    KVBLEND_RETURN_IF_ERROR(attention_.Fetch());
  } else {
    KVBLEND_RETURN_IF_ERROR(step_->Run(values, [&] { return run(step_state_); }));
  }
  if (const std::string problem = step_->problem(); !problem.empty() && !std::exchange(said_problem_, true)) {
    spdlog::warn("{}", problem);
  }
  KVBLEND_RETURN_IF_ERROR(runtime_.backend->Synchronize(*runtime_.stream));
  return sampled;
}

absl::StatusOr<std::vector<kernels::SampledToken>> PromptRunner::ExtendAll(
    absl::Span<const NextTokens> next, std::vector<std::vector<ChunkAttention>>* attended) {
  KVBLEND_ASSIGN_OR_RETURN(const StepRows rows, PlanStep(next));
  const bool measures = attended != nullptr && std::any_of(next.begin(), next.end(), [](const NextTokens& n) {
                          return !n.chunks.empty();
                        });
  KVBLEND_ASSIGN_OR_RETURN(std::vector<kernels::SampledToken> sampled, RunStep(rows, measures));
  if (attended != nullptr) attended->assign(rows.token_ids.size(), {});
  size_t row = 0;
  int64_t kv_offset = 0;
  for (const NextTokens& tokens : next) {
    for (size_t i = 0; i < tokens.token_ids.size(); ++i, ++row) {
      if (sampled[row].invalid_token >= 0) tokens.prompt->pages->MarkDamaged();
      if (measures && !tokens.chunks.empty()) (*attended)[row] = attention_.Read(kv_offset, tokens.chunks);
      kv_offset += rows.kv_len[row];
    }
  }
  return sampled;
}

absl::StatusOr<kernels::MatrixView> PromptRunner::RunRows(absl::Span<const int32_t> token_ids,
                                                          const kernels::BatchPlan& rows,
                                                          model::PassState& state,
                                                          blend::KeepGoing keep_going,
                                                          const AnswerAttention* attention) {
  const model::Transformer& transformer = *runtime_.transformer;
  kernels::Stream& stream = *runtime_.stream;
  const auto count = static_cast<int32_t>(token_ids.size());
  KVBLEND_RETURN_IF_ERROR(transformer.Begin(stream, token_ids, state));
  for (int32_t layer = 0; layer < runtime_.config.num_layers; ++layer) {
    KVBLEND_RETURN_IF_ERROR(keep_going());
    const kernels::KvPagesView pages = runtime_.page_pool->Layer(layer);
    KVBLEND_RETURN_IF_ERROR(transformer.ProjectQkv(stream, layer, state));
    KVBLEND_RETURN_IF_ERROR(transformer.WriteKv(stream, layer, rows, state, pages));
    KVBLEND_RETURN_IF_ERROR(transformer.RotateQueries(stream, layer, rows, state));
    KVBLEND_RETURN_IF_ERROR(transformer.AttendAndMlp(
        stream, layer, rows, pages, state, attention == nullptr ? std::nullopt : attention->MassOf(layer)));
  }
  KVBLEND_ASSIGN_OR_RETURN(
      const kernels::MatrixView logits,
      logits_.Resize(*runtime_.backend, count, runtime_.config.vocab_size, kernels::DataType::kF32));
  KVBLEND_RETURN_IF_ERROR(transformer.AllLogits(stream, state, logits));
  return logits;
}

absl::Status PromptRunner::Repeat(PrefilledPrompt& prompt, absl::Span<const int32_t> token_ids) {
  const auto count = std::min<int64_t>(
      static_cast<int64_t>(token_ids.size()),
      std::min<int64_t>(runtime_.weights.max_rows_together(runtime_.config), kMaxRepeatedTokens));
  const NextTokens next{
      &prompt, {token_ids.begin(), token_ids.begin() + count}, std::vector<kernels::SamplingSpec>(count)};
  KVBLEND_RETURN_IF_ERROR(ExtendAll({&next, 1}).status());
  prompt.num_tokens += static_cast<int32_t>(count);
  return absl::OkStatus();
}

// The next turn of a conversation may repeat only a part of the answer: as long as the answer is no longer
// than the window, all that can come behind its prompt is kept.
void PromptRunner::DropUnseen(PrefilledPrompt& prompt) {
  const int32_t answered = prompt.num_tokens - prompt.report.prompt_tokens;
  const int32_t kept =
      kept_.enabled() ? std::clamp(answered, 0, runtime_.page_pool->groups().largest_window()) : 0;
  const int32_t dropped = prompt.pages->DropUnseenFrom(prompt.num_tokens - kept);
  if (dropped > 0) prompt.offer = {};  // some of its pages are gone
  dropped_pages_.fetch_add(dropped, std::memory_order_relaxed);
}

int64_t PromptRunner::PagesBehindPrompt(int64_t num_tokens) const {
  const kv::PagePool& pool = *runtime_.page_pool;
  const int32_t largest_window = pool.groups().largest_window();
  int64_t pages = 0;
  for (const int32_t window : pool.groups().windows) {
    // Both ends may lie within a page.
    const int64_t seen = window + (kept_.enabled() ? largest_window : 0) + 2 * pool.page_size();
    pages += pool.PagesPerGroup(window == 0 ? num_tokens : std::min(num_tokens, seen));
  }
  return pages;
}

void PromptRunner::Keep(PrefilledPrompt prompt, const prompt::PromptLayout& layout,
                        absl::Span<const int32_t> answer, const BlendOptions& options,
                        std::string_view tenant_namespace) {
  if (!kept_.enabled() || prompt.pages->is_damaged()) return;
  const auto prompt_tokens = static_cast<int32_t>(layout.token_ids.size());
  KeptSequence kept{.tenant_namespace = std::string(tenant_namespace),
                    .blend = options,
                    .token_ids = layout.token_ids,
                    .num_exact = prompt.num_exact == prompt_tokens ? prompt.num_tokens : prompt.num_exact,
                    .loaded = std::move(prompt.loaded),
                    .pages = prompt.TakePages()};
  const absl::Span<const int32_t> answered = answer.first(prompt.num_tokens - prompt_tokens);
  kept.token_ids.insert(kept.token_ids.end(), answered.begin(), answered.end());
  // The format's own tokens behind it may be others in the next turn.
  kept.must_match = prompt::EndOfQuestionText(layout, *runtime_.tokenizer);
  // A turn that blends nothing leaves all as it was blended for an earlier question: another last question
  // may go on from what is before it, or the same one once more.
  const bool blends = prompt.report.reused_tokens + prompt.report.recomputed_tokens > 0;
  if (!blends && prompt.kept_must_match >= 0) {
    kept.must_match = std::min(kept.must_match, prompt.kept_must_match);
  }
  kept.num_whole = kept.num_exact;
  // In layers with windows there is KV only for what comes behind the prompt and for its last token.
  const std::vector<model::LayerConfig>& layers = runtime_.config.layers;
  if (std::any_of(layers.begin(), layers.end(), [](const auto& layer) { return layer.sliding_window > 0; })) {
    const auto first = static_cast<int32_t>(kept.pages->first_seeing_all());
    kept.must_match = std::max({kept.must_match, prompt_tokens - 1, first});
    kept.num_whole = 0;
  }
  kept_.Keep(std::move(kept));
}

void PromptRunner::KeepAgain(PrefilledPrompt prompt, KeptSequence kept) {
  if (prompt.pages->is_damaged()) return;
  kept.pages = prompt.TakePages();
  kept.must_match = std::max(kept.must_match, static_cast<int32_t>(kept.pages->first_seeing_all()));
  if (kept.pages->num_dropped() > 0) kept.num_whole = 0;
  if (kept.must_match <= kept.num_tokens()) kept_.Keep(std::move(kept));
}

std::unique_ptr<ChunkStoring> PromptRunner::BeginStoring(std::string_view tenant_namespace,
                                                         absl::Span<const int32_t> anchor_ids,
                                                         absl::Span<const int32_t> token_ids,
                                                         const StoreEntryOptions& options) {
  return std::make_unique<ChunkStoring>(ChunkStoring::Engine{runtime_, chunk_store_, scratch_, storing_},
                                        tenant_namespace, anchor_ids, token_ids, options);
}

absl::StatusOr<StoredChunk> PromptRunner::EnsureStored(std::string_view tenant_namespace,
                                                       absl::Span<const int32_t> anchor_ids,
                                                       absl::Span<const int32_t> token_ids,
                                                       const StoreEntryOptions& options,
                                                       blend::KeepGoing keep_going) {
  const std::unique_ptr<ChunkStoring> storing =
      BeginStoring(tenant_namespace, anchor_ids, token_ids, options);
  while (true) {
    KVBLEND_ASSIGN_OR_RETURN(const bool done, storing->Step(keep_going));
    if (done) return storing->TakeStored();
  }
}

absl::Status PromptRunner::WaitUntilDurable(const ChunkKey& key, absl::Time deadline) {
  return chunk_store_.WaitUntilDurable(key, deadline);
}

bool PromptRunner::IsBeingWritten(const ChunkKey& key) {
  return absl::IsDeadlineExceeded(WaitUntilDurable(key, absl::InfinitePast()));
}

}  // namespace kvblend
