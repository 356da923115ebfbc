#include "engine/api/calibration.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/api/option_table.h"
#include "engine/blend/chunk_precompute.h"
#include "engine/generate/log_softmax.h"
#include "engine/kv/correction_file.h"
#include "engine/kv/correction_fit.h"
#include "engine/kv/moments_checkpoint.h"
#include "engine/kv/pair_moments.h"
#include "engine/kv/section_rows.h"
#include "engine/prompt/corpus_prompts.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"

namespace kvblend {
namespace {

constexpr int32_t kJudgedTokens = 16;
// Squared deviation says the same of every direction, answers do not: a K that is corrected too far turns attention away
// from what it should see, most of all where little stands before a chunk. So answers choose among these.
constexpr double kKeyStrengths[] = {1, 0.85, 0.7, 0.55};
constexpr int64_t kSavedEvery = 4;  // prompts: that much is lost when the process is killed

absl::Status NeverStop() { return absl::OkStatus(); }

absl::Status Check(const CalibrationOptions& options) {
  if (options.rank < 0 || options.rank > kernels::kMaxKvCorrectionRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, "; allowed: 0 to ", kernels::kMaxKvCorrectionRank));
  }
  if (!(options.ridge > 0 && options.ridge <= 100)) {
    return absl::InvalidArgumentError(absl::StrCat("ridge is ", options.ridge, "; allowed: above 0, to 100"));
  }
  if (!(options.held_out > 0 && options.held_out < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("held-out is ", options.held_out, "; allowed: above 0 and below 1"));
  }
  if (options.origin.size() > kv::CorrectionOrigin::kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the origin has ", options.origin.size(),
                                                   " bytes; allowed: at most ",
                                                   kv::CorrectionOrigin::kMaxBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckPrompts(const std::vector<Prompt>& prompts) {
  if (prompts.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", prompts.size(), " prompts; allowed: at least 2, one is kept back"));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].chunks.size() >= 2) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("prompt ", i, " has ", prompts[i].chunks.size(), " chunks; allowed: at least 2"));
  }
  return absl::OkStatus();
}

using Moments = std::vector<kv::PairMoments>;  // one per layer

/// A stored chunk of a prompt.
struct StoredSpan {
  int32_t begin = 0;  // in the prompt
  std::unique_ptr<store::ChunkKv> kv;
  std::vector<int32_t> tokens;  // 0, 1, ...
};

class Calibration {
 public:
  Calibration(ModelRuntime& runtime, store::ChunkStore& chunk_store, const CalibrationOptions& options)
      : runtime_(runtime), options_(options), runner_(runtime, chunk_store) {}

  absl::StatusOr<prompt::PromptLayout> Layout(const Prompt& prompt) const {
    return prompt::BuildPromptLayout(
        prompt, *runtime_.tokenizer, *runtime_.chat_template,
        {.max_prompt_tokens = runtime_.max_context_tokens - kJudgedTokens, .max_chunks = 1 << 16});
  }

  /// What full prefill makes of every chunk but the first, beside what is stored of it. Pairs count by the attention that
  /// the question pays to their tokens.
  absl::Status AddPairs(const prompt::PromptLayout& layout, Moments& moments) {
    if (!layout.anchor_is_prefix)
      return absl::InvalidArgumentError("prompts for calibration have no history");
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<StoredSpan> stored, ComputeStored(layout));
    const auto num_tokens = static_cast<int32_t>(layout.token_ids.size());
    const int32_t question = layout.spans.back().begin;
    kernels::Backend& backend = *runtime_.backend;
    kernels::Stream& stream = *runtime_.stream;
    const model::Transformer& transformer = *runtime_.transformer;
    kv::SequencePages pages(*runtime_.page_pool);
    KVBLEND_RETURN_IF_ERROR(pages.Grow(num_tokens));
    const blend::PagedSequence sequence(backend, *runtime_.page_pool, pages);
    KVBLEND_ASSIGN_OR_RETURN(const auto rows, sequence.PlanRange(0, num_tokens, num_tokens));
    KVBLEND_ASSIGN_OR_RETURN(const auto asking, sequence.PlanRange(question, num_tokens, num_tokens));
    KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView mass,
                             mass_.Resize(backend, 1, num_tokens, kernels::DataType::kF32));
    KVBLEND_RETURN_IF_ERROR(transformer.Begin(stream, layout.token_ids, state_));
    std::vector<float> host_mass(num_tokens), fresh;
    for (size_t layer = 0; layer < moments.size(); ++layer) {
      const kernels::KvPagesView layer_pages = sequence.Layer(static_cast<int32_t>(layer));
      KVBLEND_RETURN_IF_ERROR(transformer.ProjectQkv(stream, static_cast<int32_t>(layer), state_));
      KVBLEND_RETURN_IF_ERROR(
          transformer.WriteKv(stream, static_cast<int32_t>(layer), *rows, state_, layer_pages));
      KVBLEND_RETURN_IF_ERROR(FreshRows(fresh));
      KVBLEND_RETURN_IF_ERROR(transformer.RotateQueries(stream, static_cast<int32_t>(layer), *rows, state_));
      KVBLEND_RETURN_IF_ERROR(backend.AttentionMass(
          stream, *asking, transformer.Queries(state_).Rows(question, num_tokens - question),
          transformer.attention(static_cast<int32_t>(layer)), layer_pages, mass));
      KVBLEND_RETURN_IF_ERROR(
          backend.CopyToHost(stream, host_mass.data(), mass.data, num_tokens * sizeof(float)));
      KVBLEND_RETURN_IF_ERROR(
          transformer.AttendAndMlp(stream, static_cast<int32_t>(layer), *rows, layer_pages, state_));
      KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream));
      const auto anchor = static_cast<int64_t>(layout.anchor_ids.size());
      const std::vector<float> weights =
          kv::WeightsOfMass(absl::MakeConstSpan(host_mass).subspan(anchor, question - anchor));
      for (const StoredSpan& span : stored) {
        const store::LayerKv sections = span.kv->Layer(static_cast<int32_t>(layer));
        const int64_t count = sections.k.rows, channels = 2 * sections.k.cols;
        std::vector<float> values(count * channels);
        kv::DecodeRows(sections.k, sections.v, span.tokens, absl::MakeSpan(values));
        moments[layer].Add(
            {.stored = values,
             .fresh = absl::MakeConstSpan(fresh).subspan(span.begin * channels, count * channels),
             .tokens = span.tokens,
             .weights = absl::MakeConstSpan(weights).subspan(span.begin - anchor, count)});
      }
    }
    return absl::OkStatus();
  }

  /// Mean KL(full || reuse) over full prefill's greedy tokens: reuse without a correction, and then with each of these.
  absl::StatusOr<std::vector<double>> Divergences(
      const prompt::PromptLayout& layout,
      absl::Span<const std::shared_ptr<const kv::LoadedCorrection>> corrections) {
    BlendOptions blend;
    blend.reuse = Reuse::kNothing;
    blend.policy = Policy::kAll;
    KVBLEND_ASSIGN_OR_RETURN(const Continuation full, Continue(layout, blend, {}));
    for (const prompt::Span& span : layout.spans) {
      if (span.kind != prompt::SpanKind::kChunk) continue;
      const bool isolated = options_.anchoring == Anchoring::kIsolated;
      const absl::Span<const int32_t> tokens =
          absl::MakeConstSpan(layout.token_ids).subspan(span.begin, span.size());
      KVBLEND_RETURN_IF_ERROR(runner_
                                  .EnsureStored("",
                                                isolated ? absl::Span<const int32_t>() : layout.anchor_ids,
                                                tokens, {}, NeverStop)
                                  .status());
    }
    blend = {.anchoring = options_.anchoring, .policy = Policy::kNone};
    blend.correction = false;
    KVBLEND_ASSIGN_OR_RETURN(const Continuation plain, Continue(layout, blend, full.tokens));
    std::vector<double> divergences = {MeanKl(full, plain)};
    blend.correction = true;
    for (const auto& correction : corrections) {
      runtime_.correction = correction;
      KVBLEND_ASSIGN_OR_RETURN(const Continuation corrected, Continue(layout, blend, full.tokens));
      divergences.push_back(MeanKl(full, corrected));
    }
    return divergences;
  }

 private:
  /// Tokens, and the log-probabilities that each was drawn from.
  struct Continuation {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> distributions;
  };

  static double MeanKl(const Continuation& full, const Continuation& other) {
    double sum = 0;
    for (size_t i = 0; i < full.distributions.size(); ++i) {
      const std::vector<float>&p = full.distributions[i], &q = other.distributions[i];
      for (size_t t = 0; t < p.size(); ++t) sum += std::exp(double{p[t]}) * (double{p[t]} - double{q[t]});
    }
    return sum / static_cast<double>(full.distributions.size());
  }

  /// Greedily, or along `forced`.
  absl::StatusOr<Continuation> Continue(const prompt::PromptLayout& layout, const BlendOptions& blend,
                                        absl::Span<const int32_t> forced) {
    KVBLEND_ASSIGN_OR_RETURN(PrefilledPrompt prompt, runner_.Prefill(layout, blend, "", NeverStop));
    Continuation continuation;
    std::vector<float> logits = std::move(prompt.logits);
    for (int32_t i = 0; i < kJudgedTokens; ++i) {
      KVBLEND_ASSIGN_OR_RETURN(continuation.distributions.emplace_back(), generate::LogSoftmax(logits));
      const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
      const int32_t token = forced.empty() ? static_cast<int32_t>(likeliest) : forced[i];
      continuation.tokens.push_back(token);
      if (i + 1 == kJudgedTokens) break;
      KVBLEND_ASSIGN_OR_RETURN(logits, runner_.Extend(prompt, {&token, 1}, NeverStop));
    }
    return continuation;
  }

  /// All chunks that stand behind others, as the store would have them.
  absl::StatusOr<std::vector<StoredSpan>> ComputeStored(const prompt::PromptLayout& layout) {
    const bool isolated = options_.anchoring == Anchoring::kIsolated;
    const absl::Span<const int32_t> anchor = isolated ? absl::Span<const int32_t>() : layout.anchor_ids;
    std::vector<StoredSpan> stored;
    for (const prompt::Span& span : layout.spans) {
      if (span.kind != prompt::SpanKind::kChunk || span.size() == 0 || (span.chunk_index == 0 && !isolated))
        continue;
      kv::SequencePages pages(*runtime_.page_pool);
      KVBLEND_RETURN_IF_ERROR(pages.Grow(static_cast<int32_t>(anchor.size()) + span.size()));
      const blend::PagedSequence sequence(*runtime_.backend, *runtime_.page_pool, pages);
      StoredSpan& added = stored.emplace_back();
      added.begin = span.begin;
      added.tokens.resize(span.size());
      std::iota(added.tokens.begin(), added.tokens.end(), 0);
      KVBLEND_ASSIGN_OR_RETURN(
          added.kv, blend::PrecomputeChunk(
                        {.anchor_ids = anchor,
                         .anchor = nullptr,
                         .token_ids = absl::MakeConstSpan(layout.token_ids).subspan(span.begin, span.size())},
                        runtime_.key_space.format, *runtime_.host_memory, *runtime_.transformer,
                        *runtime_.stream, state_, sequence, NeverStop));
    }
    return stored;
  }

  /// The keys (before RoPE) and values that are projected now, K and V of a token side by side.
  absl::Status FreshRows(std::vector<float>& fresh) {
    const kernels::MatrixView projected = runtime_.transformer->KeysAndValues(state_);
    KVBLEND_ASSIGN_OR_RETURN(
        const kernels::MatrixView both,
        fresh_.Resize(*runtime_.backend, projected.rows, projected.cols, kernels::DataType::kF32));
    std::vector<int32_t> all(projected.rows);
    std::iota(all.begin(), all.end(), 0);
    KVBLEND_RETURN_IF_ERROR(runtime_.backend->GatherRows(*runtime_.stream, projected, all, both));
    fresh.resize(both.rows * both.cols);
    KVBLEND_RETURN_IF_ERROR(runtime_.backend->CopyToHost(*runtime_.stream, fresh.data(), both.data,
                                                         fresh.size() * sizeof(float)));
    return runtime_.backend->Synchronize(*runtime_.stream);
  }

  ModelRuntime& runtime_;
  const CalibrationOptions& options_;
  PromptRunner runner_;
  model::PassState state_;
  model::ScratchMatrix mass_, fresh_;
};

/// The checkpoint of prompts so laid out: another model or tokenizer gives another one.
kv::MomentsCheckpoint CheckpointOf(const ModelRuntime& runtime, const CalibrationOptions& options,
                                   const std::vector<prompt::PromptLayout>& layouts, int64_t fitted) {
  std::vector<std::vector<int32_t>> prompts;
  for (const prompt::PromptLayout& layout : layouts) {
    std::vector<int32_t>& numbers = prompts.emplace_back();
    for (const prompt::Span& span : layout.spans) numbers.push_back(span.begin);
    numbers.insert(numbers.end(), layout.token_ids.begin(), layout.token_ids.end());
  }
  const store::KvFormat& format = runtime.key_space.format;
  return {options.resume,
          {.model_fingerprint = runtime.key_space.model_fingerprint,
           .anchoring = options.anchoring,
           .encoding = static_cast<uint32_t>(format.encoding),
           .num_layers = format.num_layers,
           .num_kv_heads = format.num_kv_heads,
           .head_dim = format.head_dim},
          kv::CheckpointPrompts::Of(prompts, fitted)};
}

kv::LearnedCorrection WithKeyStrength(double strength, kv::LearnedCorrection correction) {
  for (kv::LayerCorrection& layer : correction.layers) {
    if (!layer.empty()) kv::ScaleKeyPart(strength, correction.rank, layer);
  }
  return correction;
}

}  // namespace

absl::StatusOr<CalibrationReport> Calibrate(const EngineOptions& engine, const CalibrationOptions& given,
                                            CalibrationProgress progress) {
  KVBLEND_RETURN_IF_ERROR(CheckEngineOptions(engine));
  KVBLEND_RETURN_IF_ERROR(Check(given));
  if (given.corpus.documents.empty()) KVBLEND_RETURN_IF_ERROR(CheckPrompts(given.prompts));
  EngineOptions uncorrected = engine;
  uncorrected.correction = "none";
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<ModelRuntime> runtime, ModelRuntime::Load(uncorrected));
  KVBLEND_ASSIGN_OR_RETURN(const auto chunk_store,
                           store::ChunkStore::Create({.byte_budget = engine.chunk_store_bytes}));
  CalibrationOptions options = given;
  if (options.prompts.empty() && !options.corpus.documents.empty()) {
    KVBLEND_ASSIGN_OR_RETURN(options.prompts, prompt::PromptsOfCorpus(options.corpus, *runtime->tokenizer));
  }
  KVBLEND_RETURN_IF_ERROR(CheckPrompts(options.prompts));
  Calibration calibration(*runtime, *chunk_store, options);

  const auto total = static_cast<int64_t>(options.prompts.size());
  const int64_t held_out =
      std::clamp<int64_t>(std::llround(options.held_out * static_cast<double>(total)), 1, total - 1);
  CalibrationReport report;
  report.held_out_prompts = static_cast<int32_t>(held_out);
  report.fitted_prompts = static_cast<int32_t>(total - held_out);
  report.path = options.path.empty() ? CorrectionPath(engine.model_path) : options.path;

  const store::KvFormat& format = runtime->key_space.format;
  kv::LearnedCorrection correction{.model_fingerprint = runtime->key_space.model_fingerprint,
                                   .anchoring = options.anchoring,
                                   .num_kv_heads = format.num_kv_heads,
                                   .head_dim = format.head_dim,
                                   .rank = options.rank};
  correction.rank = static_cast<int32_t>(std::min<int64_t>(correction.rank, correction.channels()));
  std::vector<prompt::PromptLayout> layouts;
  for (const Prompt& prompt : options.prompts) {
    KVBLEND_ASSIGN_OR_RETURN(layouts.emplace_back(), calibration.Layout(prompt));
  }
  const kv::MomentsCheckpoint checkpoint = CheckpointOf(*runtime, options, layouts, report.fitted_prompts);
  KVBLEND_ASSIGN_OR_RETURN(kv::LearnerState learned, checkpoint.Restore());
  int64_t saved = learned.fitted_chunks + learned.kept_back_chunks;
  for (int64_t i = saved; i < total; ++i) {
    const bool fits = i < report.fitted_prompts;
    const absl::Status going = progress(i, total + held_out, fits ? "pairs to fit" : "pairs to judge by");
    if (i - saved >= (going.ok() ? kSavedEvery : 1)) {
      KVBLEND_RETURN_IF_ERROR(checkpoint.Save(learned));
      saved = i;
    }
    KVBLEND_RETURN_IF_ERROR(going);
    KVBLEND_RETURN_IF_ERROR(calibration.AddPairs(layouts[i], fits ? learned.fitted : learned.kept_back));
    ++(fits ? learned.fitted_chunks : learned.kept_back_chunks);
  }
  if (saved < total) KVBLEND_RETURN_IF_ERROR(checkpoint.Save(learned));
  layouts.erase(layouts.begin(), layouts.begin() + report.fitted_prompts);
  const Moments &fitted = learned.fitted, &judged = learned.kept_back;
  report.fitted_tokens = fitted.front().count();
  for (int32_t layer = 0; layer < format.num_layers; ++layer) {
    kv::LayerCorrection fit = kv::FitLayer(fitted[layer], {.rank = correction.rank, .ridge = options.ridge});
    // A layer that does not gain is left as it is: the first one, whose K and V know nothing of other tokens.
    if (!(kv::ResidualShare(judged[layer], fit, correction.rank) < 1)) fit = {};
    correction.layers.push_back(std::move(fit));
  }
  std::vector<std::shared_ptr<const kv::LoadedCorrection>> candidates;
  for (const double strength : kKeyStrengths) {
    KVBLEND_ASSIGN_OR_RETURN(
        candidates.emplace_back(),
        kv::LoadedCorrection::Load(WithKeyStrength(strength, correction), "being judged", *runtime->backend));
  }
  std::vector<double> kl(1 + candidates.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    KVBLEND_RETURN_IF_ERROR(progress(total + static_cast<int64_t>(i), total + held_out, "answers kept back"));
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<double> of_prompt,
                             calibration.Divergences(layouts[i], candidates));
    for (size_t c = 0; c < kl.size(); ++c) kl[c] += of_prompt[c] / static_cast<double>(held_out);
  }
  const auto best = std::min_element(kl.begin() + 1, kl.end());
  report.kl_before = kl.front();
  report.kl_after = *best;
  report.key_strength = kKeyStrengths[best - (kl.begin() + 1)];
  correction = WithKeyStrength(report.key_strength, std::move(correction));
  for (int32_t layer = 0; layer < format.num_layers; ++layer) {
    report.residual.push_back(kv::ResidualShare(judged[layer], correction.layers[layer], correction.rank));
  }
  if (!(report.kl_after < report.kl_before)) return report;
  correction.origin = {.data = options.origin,
                       .tokens = report.fitted_tokens,
                       .kl_before = report.kl_before,
                       .kl_after = report.kl_after};
  KVBLEND_RETURN_IF_ERROR(kv::WriteCorrectionFile(report.path, correction));
  report.version = kv::CorrectionVersion(kv::EncodeCorrection(correction));
  return report;
}

}  // namespace kvblend
