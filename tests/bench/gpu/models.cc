#include "tests/bench/gpu/models.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "engine/serve/sequences/prompt_runner.h"

namespace kvblend::gpu_bench {
namespace {

using Part = StagedBackend::Part;

constexpr int32_t kChunks = 10;

absl::Status KeepRunning() { return absl::OkStatus(); }

// [anchor | chunks | question]
prompt::PromptLayout MakePrompt(const Sizes& sizes, int32_t vocab_size) {
  prompt::PromptLayout layout;
  uint64_t state = 7;
  const auto add = [&](prompt::SpanKind kind, int32_t chunk_index, int32_t count) {
    const auto begin = static_cast<int32_t>(layout.token_ids.size());
    for (int32_t i = 0; i < count; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      layout.token_ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size)));
    }
    layout.spans.push_back({kind, chunk_index, begin, begin + count});
  };
  const int32_t anchor = std::max(1, sizes.tokens / 100);
  const int32_t text = sizes.tokens - anchor - sizes.question;
  add(prompt::SpanKind::kSystem, -1, anchor);
  layout.anchor_ids.assign(layout.token_ids.begin(), layout.token_ids.end());
  layout.anchor_is_prefix = true;
  for (int32_t i = 0; i < kChunks; ++i)
    add(prompt::SpanKind::kChunk, i, text * (i + 1) / kChunks - text * i / kChunks);
  add(prompt::SpanKind::kQuestion, -1, sizes.question);
  return layout;
}

double LayerWeights(const ModelShape& shape) {
  const double query_dim = 1.0 * shape.num_heads * shape.head_dim;
  const double kv_dim = 1.0 * shape.num_kv_heads * shape.head_dim;
  return 1.0 * shape.hidden_dim * (2 * query_dim + 2 * kv_dim + 3.0 * shape.ffn_dim);
}

// What a full prefill multiplies: every weight with every token, the scores and sums of attention that the
// mask leaves, and the logits of one token.
double PrefillFlops(const ModelShape& shape, double tokens) {
  const double attention = 4.0 * shape.num_heads * shape.head_dim * tokens * (tokens + 1) / 2;
  return shape.num_layers * (2 * tokens * LayerWeights(shape) + attention) +
         2.0 * shape.vocab_size * shape.hidden_dim;
}

// What a step of decoding reads of the weights, which are bf16, once for all its rows.
double StepWeightBytes(const ModelShape& shape) {
  return 2 * (shape.num_layers * LayerWeights(shape) + 1.0 * shape.vocab_size * shape.hidden_dim);
}

// Eight, or as many as leave room for the model.
int64_t NumSequences(const ModelShape& shape, const Sizes& sizes) {
  constexpr int64_t kPageBytes = int64_t{24} << 30;
  const int64_t token_bytes = int64_t{4} * shape.num_layers * shape.num_kv_heads * shape.head_dim;
  return std::clamp<int64_t>(kPageBytes / (token_bytes * sizes.tokens), 2, 8);
}

class ModelBench {
 public:
  ModelBench(Bench& bench, const ModelShape& shape, ModelRuntime& runtime, StagedBackend& staged,
             store::ChunkStore& chunk_store)
      : bench_(bench),
        shape_(shape),
        staged_(staged),
        runtime_(runtime),
        // Every sequence reads pages of its own, as sequences with different prompts do.
        runner_(runtime, chunk_store, {.share_prefixes = false}),
        layout_(MakePrompt(bench.sizes(), shape.vocab_size)),
        num_sequences_(NumSequences(shape, bench.sizes())) {}

  absl::StatusOr<nlohmann::ordered_json> Run() {
    int64_t stored_tokens = 0;
    for (const prompt::Span& span : layout_.spans) {
      if (span.kind != prompt::SpanKind::kChunk) continue;
      stored_tokens += span.end - span.begin;
      const absl::Span<const int32_t> tokens =
          absl::MakeConstSpan(layout_.token_ids).subspan(span.begin, span.end - span.begin);
      KVBLEND_RETURN_IF_ERROR(runner_.EnsureStored("", layout_.anchor_ids, tokens, {}, KeepRunning).status());
    }
    BlendOptions everything;
    everything.reuse = Reuse::kNothing;
    KVBLEND_ASSIGN_OR_RETURN(const Prefill full, Measure(everything, Part::kAll));
    const double flops = PrefillFlops(shape_, static_cast<double>(layout_.token_ids.size()));
    nlohmann::ordered_json result = {
        {"model", shape_.name},
        {"tokens", layout_.token_ids.size()},
        {"chunks", kChunks},
        {"stored_bytes", stored_tokens * runtime_.key_space.format.BytesPerToken()},
        {"full_prefill",
         {{"ttft_seconds", full.seconds.Median()},
          {"ttft_seconds_min", full.seconds.Min()},
          {"ttft_seconds_max", full.seconds.Max()},
          {"flops", flops},
          {"share_of_gemm_peak", flops / full.seconds.Median() / bench_.gemm_flops_per_second()}}},
        {"blended", nlohmann::ordered_json::array()}};
    struct Blend {
      Policy policy;
      double ratio;
      bool corrected;
    };
    KVBLEND_ASSIGN_OR_RETURN(const std::shared_ptr<const kv::LoadedCorrection> correction,
                             MakeCorrection(runtime_));
    for (const auto& [policy, ratio, corrected] : {Blend{Policy::kNone, 0, false},
                                                   {Policy::kNone, 0, true},
                                                   {Policy::kQuery, 0.05, true},
                                                   {Policy::kQuery, 0.15, false},
                                                   {Policy::kQuery, 0.15, true},
                                                   {Policy::kHkvd, 0.15, false}}) {
      runtime_.correction = corrected ? correction : nullptr;
      BlendOptions none;
      none.policy = Policy::kNone;
      BlendOptions options;
      options.policy = policy;
      options.ratio = ratio;
      // The loads are the same whatever is chosen.
      KVBLEND_ASSIGN_OR_RETURN(const Prefill loading, Measure(none, Part::kLoading));
      KVBLEND_ASSIGN_OR_RETURN(const Prefill blended, Measure(options, Part::kAll));
      KVBLEND_ASSIGN_OR_RETURN(const Prefill computing, Measure(options, Part::kComputing));
      // Loading and computing side by side; neither can be quicker than by itself.
      const double allowed = std::max(loading.seconds.Median(), computing.seconds.Median());
      result["blended"].push_back(
          {{"policy", std::string(Name(policy))},
           {"ratio", ratio},
           {"corrected", corrected},
           {"recomputed_tokens", blended.report.recomputed_tokens},
           {"ttft_seconds", blended.seconds.Median()},
           {"ttft_seconds_min", blended.seconds.Min()},
           {"ttft_seconds_max", blended.seconds.Max()},
           {"times_faster_than_full", full.seconds.Median() / blended.seconds.Median()},
           {"load_seconds", loading.seconds.Median()},
           {"compute_seconds", computing.seconds.Median()},
           {"over_what_they_allow", blended.seconds.Median() / allowed}});
    }
    runtime_.correction = nullptr;
    result["decode"] = nlohmann::ordered_json::array();
    for (const int64_t sequences : {int64_t{1}, num_sequences_}) {
      KVBLEND_ASSIGN_OR_RETURN(auto decode, MeasureDecode(sequences));
      result["decode"].push_back(std::move(decode));
    }
    return result;
  }

 private:
  struct Prefill {
    Samples seconds;
    PromptReport report;
  };

  absl::StatusOr<Prefill> Measure(const BlendOptions& options, Part part) {
    Prefill result;
    for (int32_t i = 0; i <= bench_.sizes().model_repetitions; ++i) {
      staged_.Do(part);
      const absl::Time start = absl::Now();
      auto prompt = runner_.Prefill(layout_, options, "", KeepRunning);
      const double time = absl::ToDoubleSeconds(absl::Now() - start);
      staged_.Do(Part::kAll);
      if (!prompt.ok()) return prompt.status();
      // What is left out leaves nothing to look at.
      if (part == Part::kAll && !std::all_of(prompt->logits.begin(), prompt->logits.end(),
                                             [](float logit) { return std::isfinite(logit); })) {
        return absl::InternalError(absl::StrCat(shape_.name, ": a logit is not finite"));
      }
      if (i > 0) result.seconds.Add(time);  // the first one grows scratch memory
      result.report = std::move(prompt->report);
    }
    return result;
  }

  // Steps of one token behind as many copies of the prompt, each with pages of its own.
  absl::StatusOr<nlohmann::ordered_json> MeasureDecode(int64_t sequences) {
    BlendOptions everything;
    everything.reuse = Reuse::kNothing;
    std::vector<PrefilledPrompt> prompts;
    std::vector<NextTokens> next;
    for (int64_t i = 0; i < sequences; ++i) {
      KVBLEND_ASSIGN_OR_RETURN(PrefilledPrompt prompt, runner_.Prefill(layout_, everything, "", KeepRunning));
      prompts.push_back(std::move(prompt));
    }
    for (PrefilledPrompt& prompt : prompts) {
      next.push_back({.prompt = &prompt, .token_ids = {1}, .sampling = {kernels::SamplingSpec{}}});
    }
    // A step leaves num_tokens as it is, so the next one does the same. The first is run and the second is
    // recorded.
    constexpr int32_t kNotTimed = 3;
    Samples seconds;
    for (int32_t i = 0; i < kNotTimed + bench_.sizes().repetitions; ++i) {
      const absl::Time start = absl::Now();
      KVBLEND_RETURN_IF_ERROR(runner_.ExtendAll(next).status());
      if (i >= kNotTimed) seconds.Add(absl::ToDoubleSeconds(absl::Now() - start));
    }
    const double kv_bytes = 2.0 * shape_.num_layers * shape_.num_kv_heads * shape_.head_dim * 2 *
                            static_cast<double>(layout_.token_ids.size());
    const double bytes = StepWeightBytes(shape_) + kv_bytes * static_cast<double>(sequences);
    return nlohmann::ordered_json{
        {"sequences", sequences},
        {"step_seconds", seconds.Median()},
        {"step_seconds_min", seconds.Min()},
        {"step_seconds_max", seconds.Max()},
        {"tokens_per_second", static_cast<double>(sequences) / seconds.Median()},
        {"bytes", bytes},
        {"share_of_copy_peak", bytes / seconds.Median() / bench_.copy_bytes_per_second()}};
  }

  Bench& bench_;
  const ModelShape shape_;
  StagedBackend& staged_;
  ModelRuntime& runtime_;
  PromptRunner runner_;
  const prompt::PromptLayout layout_;
  const int64_t num_sequences_;  // that are decoded together
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> MeasureModel(Bench& bench, const ModelShape& shape, int device) {
  StagedBackend* staged = nullptr;
  KVBLEND_ASSIGN_OR_RETURN(const auto runtime, MakeRuntime(shape, bench.sizes(), device, &staged,
                                                           NumSequences(shape, bench.sizes()) + 1));
  KVBLEND_ASSIGN_OR_RETURN(
      const auto chunk_store,
      store::ChunkStore::Create({.byte_budget = int64_t{24} << 30, .memory = runtime->host_memory.get()}));
  return ModelBench(bench, shape, *runtime, *staged, *chunk_store).Run();
}

}  // namespace kvblend::gpu_bench
