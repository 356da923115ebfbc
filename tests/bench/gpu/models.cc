#include "tests/bench/gpu/models.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/store/format/backend_memory.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/bench/gpu/inputs.h"
#include "tests/bench/gpu/random_weights.h"
#include "tests/bench/gpu/staged_backend.h"

namespace kvblend::gpu_bench {
namespace {

using kernels::WeightUsage;
using Part = StagedBackend::Part;

constexpr double kRatio = 0.15;
constexpr int32_t kChunks = 10;

absl::Status KeepRunning() { return absl::OkStatus(); }

model::ModelConfig ConfigOf(const ModelShape& shape, int32_t context_length) {
  model::ModelConfig config;
  config.architecture = model::FindArchitecture("llama");
  config.name = shape.name;
  config.num_layers = shape.num_layers;
  config.hidden_dim = shape.hidden_dim;
  config.num_heads = shape.num_heads;
  config.num_kv_heads = shape.num_kv_heads;
  config.head_dim = shape.head_dim;
  config.ffn_dim = shape.ffn_dim;
  config.vocab_size = shape.vocab_size;
  config.context_length = context_length;
  config.rms_epsilon = 1e-5f;
  config.rope_freq_base = shape.rope_freq_base;
  config.attention_scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  config.ropes.push_back(model::PlainRope({.head_dim = shape.head_dim,
                                           .rotated_dims = shape.head_dim,
                                           .context_length = context_length,
                                           .freq_base = shape.rope_freq_base}));
  config.layers.resize(shape.num_layers);
  return config;
}

absl::StatusOr<std::unique_ptr<kernels::Buffer>> Ones(kernels::Backend& backend, kernels::Stream& stream,
                                                      int64_t count) {
  const std::vector<float> ones(count, 1.0f);
  KVBLEND_ASSIGN_OR_RETURN(auto buffer, backend.Allocate(count * 4));
  KVBLEND_RETURN_IF_ERROR(backend.CopyFromHost(stream, buffer->data(), ones.data(), count * 4));
  KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream));
  return buffer;
}

absl::StatusOr<model::ModelWeights> MakeWeights(const model::ModelConfig& config, kernels::Backend& backend,
                                                kernels::Stream& stream) {
  uint64_t seed = 1000;
  const int64_t hidden = config.hidden_dim, ffn = config.ffn_dim;
  const int64_t query_dim = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{config.num_kv_heads} * config.head_dim;
  const auto linear = [&](int64_t rows, int64_t cols) {
    return MakeRandomWeights(rows, cols, WeightUsage::kLinear, ++seed);
  };
  model::ModelWeights weights;
  KVBLEND_ASSIGN_OR_RETURN(weights.token_embedding,
                           MakeRandomWeights(config.vocab_size, hidden, WeightUsage::kEmbedding, ++seed));
  KVBLEND_ASSIGN_OR_RETURN(weights.output, linear(config.vocab_size, hidden));
  KVBLEND_ASSIGN_OR_RETURN(weights.output_norm, Ones(backend, stream, hidden));
  weights.layers.resize(config.num_layers);
  for (model::LayerWeights& layer : weights.layers) {
    KVBLEND_ASSIGN_OR_RETURN(layer.attn_norm, Ones(backend, stream, hidden));
    KVBLEND_ASSIGN_OR_RETURN(layer.ffn_norm, Ones(backend, stream, hidden));
    KVBLEND_ASSIGN_OR_RETURN(layer.qkv, linear(query_dim + 2 * kv_dim, hidden));
    KVBLEND_ASSIGN_OR_RETURN(layer.attn_output, linear(hidden, query_dim));
    KVBLEND_ASSIGN_OR_RETURN(layer.gate_up, linear(2 * ffn, hidden));
    KVBLEND_ASSIGN_OR_RETURN(layer.down, linear(hidden, ffn));
  }
  KVBLEND_ASSIGN_OR_RETURN(auto rope, backend.CreateRopeTable({.layout = config.architecture->rope_layout,
                                                               .head_dim = config.head_dim,
                                                               .max_position = config.context_length,
                                                               .inv_freq = config.ropes[0].inv_freq}));
  weights.ropes.push_back(std::move(rope));
  return weights;
}

// A runtime as ModelRuntime::Load makes it, but without a file: no tokenizer, no chat template.
absl::StatusOr<std::unique_ptr<ModelRuntime>> MakeRuntime(const ModelShape& shape, const Sizes& sizes,
                                                          int device, StagedBackend** staged) {
  auto runtime = std::make_unique<ModelRuntime>();
  KVBLEND_ASSIGN_OR_RETURN(auto backend, kernels::CreateCudaBackend(device));
  auto owner = std::make_unique<StagedBackend>(std::move(backend));
  *staged = owner.get();
  runtime->backend = std::move(owner);
  runtime->host_memory = std::make_unique<store::BackendMemory>(*runtime->backend);
  KVBLEND_ASSIGN_OR_RETURN(runtime->stream, runtime->backend->CreateStream());
  // One page more than the prompt takes.
  runtime->config = ConfigOf(shape, sizes.tokens + sizes.page_size);
  runtime->max_context_tokens = runtime->config.context_length;
  KVBLEND_ASSIGN_OR_RETURN(runtime->weights,
                           MakeWeights(runtime->config, *runtime->backend, *runtime->stream));
  runtime->transformer =
      std::make_unique<model::Transformer>(runtime->config, runtime->weights, *runtime->backend);
  runtime->key_space.format = {.encoding = kernels::KvEncoding::kBF16,
                               .num_layers = shape.num_layers,
                               .num_kv_heads = shape.num_kv_heads,
                               .head_dim = shape.head_dim};
  kv::PagePool::Options pool;
  pool.num_layers = shape.num_layers;
  pool.num_kv_heads = shape.num_kv_heads;
  pool.head_dim = shape.head_dim;
  pool.page_size = sizes.page_size;
  pool.num_pages = 2 * (runtime->max_context_tokens / sizes.page_size + 1);
  pool.dtype = kernels::DataType::kBF16;
  KVBLEND_ASSIGN_OR_RETURN(runtime->page_pool, kv::PagePool::Create(*runtime->backend, pool));
  return runtime;
}

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

// What a full prefill multiplies: every weight with every token, the scores and sums of attention that the
// mask leaves, and the logits of one token.
double PrefillFlops(const ModelShape& shape, double tokens) {
  const double query_dim = 1.0 * shape.num_heads * shape.head_dim;
  const double kv_dim = 1.0 * shape.num_kv_heads * shape.head_dim;
  const double layer = 1.0 * shape.hidden_dim * (2 * query_dim + 2 * kv_dim + 3.0 * shape.ffn_dim);
  const double attention = 4 * query_dim * tokens * (tokens + 1) / 2;
  return shape.num_layers * (2 * tokens * layer + attention) + 2.0 * shape.vocab_size * shape.hidden_dim;
}

class ModelBench {
 public:
  ModelBench(Bench& bench, const ModelShape& shape, ModelRuntime& runtime, StagedBackend& staged,
             store::ChunkStore& chunk_store)
      : bench_(bench),
        shape_(shape),
        staged_(staged),
        runtime_(runtime),
        runner_(runtime, chunk_store),
        layout_(MakePrompt(bench.sizes(), shape.vocab_size)) {}

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
    // The loads are the same whatever is chosen.
    BlendOptions none;
    none.policy = Policy::kNone;
    KVBLEND_ASSIGN_OR_RETURN(const Prefill loading, Measure(none, Part::kLoading));
    for (const Policy policy : {Policy::kQuery, Policy::kHkvd}) {
      BlendOptions options;
      options.policy = policy;
      options.ratio = kRatio;
      KVBLEND_ASSIGN_OR_RETURN(const Prefill blended, Measure(options, Part::kAll));
      KVBLEND_ASSIGN_OR_RETURN(const Prefill computing, Measure(options, Part::kComputing));
      // Loading and computing side by side; neither can be quicker than by itself.
      const double allowed = std::max(loading.seconds.Median(), computing.seconds.Median());
      result["blended"].push_back(
          {{"policy", std::string(Name(policy))},
           {"ratio", kRatio},
           {"recomputed_tokens", blended.report.recomputed_tokens},
           {"ttft_seconds", blended.seconds.Median()},
           {"ttft_seconds_min", blended.seconds.Min()},
           {"ttft_seconds_max", blended.seconds.Max()},
           {"times_faster_than_full", full.seconds.Median() / blended.seconds.Median()},
           {"load_seconds", loading.seconds.Median()},
           {"compute_seconds", computing.seconds.Median()},
           {"over_what_they_allow", blended.seconds.Median() / allowed}});
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

  Bench& bench_;
  const ModelShape shape_;
  StagedBackend& staged_;
  ModelRuntime& runtime_;
  PromptRunner runner_;
  const prompt::PromptLayout layout_;
};

}  // namespace

std::vector<ModelShape> KnownShapes() {
  return {{"Mistral-7B", 32, 4096, 32, 8, 128, 14336, 32000, 10000.0f},
          {"Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, 500000.0f},
          {"Llama-2-13B", 40, 5120, 40, 40, 128, 13824, 32000, 10000.0f}};
}

ModelShape TinyShape() { return {"tiny", 3, 64, 4, 2, 32, 96, 104, 10000.0f}; }

absl::StatusOr<nlohmann::ordered_json> MeasureModel(Bench& bench, const ModelShape& shape, int device) {
  StagedBackend* staged = nullptr;
  KVBLEND_ASSIGN_OR_RETURN(const auto runtime, MakeRuntime(shape, bench.sizes(), device, &staged));
  KVBLEND_ASSIGN_OR_RETURN(
      const auto chunk_store,
      store::ChunkStore::Create({.byte_budget = int64_t{24} << 30, .memory = runtime->host_memory.get()}));
  return ModelBench(bench, shape, *runtime, *staged, *chunk_store).Run();
}

}  // namespace kvblend::gpu_bench
