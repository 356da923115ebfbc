#include "tests/bench/gpu/random_model.h"

#include <cmath>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "engine/store/format/backend_memory.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/bench/gpu/random_weights.h"

namespace kvblend::gpu_bench {
namespace {

using kernels::WeightUsage;

constexpr int32_t kCorrectionRank = 16;

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

// Small numbers, so that what it makes of stored KV stays of its size.
kv::LearnedCorrection RandomCorrection(const ModelRuntime& runtime) {
  kv::LearnedCorrection correction{.anchoring = Anchoring::kAnchored,
                                   .num_kv_heads = runtime.config.num_kv_heads,
                                   .head_dim = runtime.config.head_dim,
                                   .rank = kCorrectionRank};
  const int64_t channels = correction.channels();
  std::minstd_rand random(99);
  std::uniform_real_distribution<float> small(-0.01f, 0.01f);
  const auto fill = [&](int64_t count, float around) {
    std::vector<float> values(count);
    for (float& value : values) value = around + small(random);
    return values;
  };
  correction.layers.resize(runtime.config.num_layers);
  for (size_t layer = 1; layer < correction.layers.size(); ++layer) {
    correction.layers[layer] = {.scale = fill(channels, 1),
                                .offset = fill(kernels::kNumKvCorrectionPlaces * channels, 0),
                                .down = fill(channels * kCorrectionRank, 0),
                                .up = fill(channels * kCorrectionRank, 0)};
  }
  return correction;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRuntime>> MakeRuntime(const ModelShape& shape, const Sizes& sizes,
                                                          int device, StagedBackend** staged,
                                                          int64_t num_sequences) {
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
  runtime->key_space.format = {.encoding = kernels::KvEncoding::kInt8,
                               .num_layers = shape.num_layers,
                               .num_kv_heads = shape.num_kv_heads,
                               .head_dim = shape.head_dim};
  kv::PagePool::Options pool;
  pool.num_layers = shape.num_layers;
  pool.num_kv_heads = shape.num_kv_heads;
  pool.head_dim = shape.head_dim;
  pool.page_size = sizes.page_size;
  pool.num_pages = static_cast<int32_t>(num_sequences * (runtime->max_context_tokens / sizes.page_size + 1));
  pool.dtype = kernels::DataType::kBF16;
  KVBLEND_ASSIGN_OR_RETURN(runtime->page_pool, kv::PagePool::Create(*runtime->backend, pool));
  return runtime;
}

absl::StatusOr<std::unique_ptr<kv::LoadedCorrection>> MakeCorrection(const ModelRuntime& runtime) {
  return kv::LoadedCorrection::Load(RandomCorrection(runtime), "random", *runtime.backend);
}

std::vector<ModelShape> KnownShapes() {
  return {{"Mistral-7B", 32, 4096, 32, 8, 128, 14336, 32000, 10000.0f},
          {"Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, 500000.0f},
          {"Llama-2-13B", 40, 5120, 40, 40, 128, 13824, 32000, 10000.0f}};
}

ModelShape TinyShape() { return {"tiny", 3, 64, 4, 2, 32, 96, 104, 10000.0f}; }

}  // namespace kvblend::gpu_bench
