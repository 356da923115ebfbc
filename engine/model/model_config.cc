#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/model/key_reader.h"
#include "engine/model/model_config_keys.h"
#include "engine/model/model_tensors.h"
#include "engine/text/utf8.h"

namespace kvblend::model {
namespace {

// Generous bounds: no model comes near them, and products of any two stay within 64 bits.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 24;
constexpr size_t kMaxNameBytes = 200;
constexpr double kMaxScale = 1e6, kMinDivisor = 1e-6, kMaxFreqBase = 1e12;
constexpr double kMinSoftCap = 1e-3;  // kernels::Backend takes none below

absl::Status RefuseConfig(const GgufFile& file, std::string_view what) {
  return absl::InvalidArgumentError(Concat(file.name(), ": ", what));
}

absl::StatusOr<const Architecture*> ReadArchitecture(const GgufFile& file) {
  std::string_view name;
  if (file.HasKey("general.architecture")) {
    KVBLEND_ASSIGN_OR_RETURN(name, file.GetString("general.architecture"));
  }
  const Architecture* architecture = FindArchitecture(name);
  if (architecture != nullptr) return architecture;
  return absl::UnimplementedError(Concat(file.name(), ": key 'general.architecture' is ", Quote(name),
                                         "; implemented: ", ArchitectureNames()));
}

void ReadDimensions(KeyReader& keys, ModelConfig& config) {
  config.num_layers = keys.Integer("block_count", 1, kMaxLayers);
  config.hidden_dim = keys.Integer("embedding_length", 1, kMaxDim);
  config.num_heads = keys.Integer("attention.head_count", 1, kMaxDim);
  config.num_kv_heads = keys.IntegerOr("attention.head_count_kv", 1, kMaxDim, config.num_heads);
  config.ffn_dim = keys.Integer("feed_forward_length", 1, kMaxDim);
  config.context_length = keys.Integer("context_length", 1, kMaxContext);
  config.rms_epsilon = static_cast<float>(keys.Float("attention.layer_norm_rms_epsilon", 0, 1));
  config.rope_freq_base = static_cast<float>(keys.FloatOr("rope.freq_base", 0, kMaxFreqBase, 10000));
}

// Reads how many experts there are, and which of the feed-forward lengths is theirs.
absl::Status ReadExperts(const GgufFile& file, KeyReader& keys, ModelConfig& config) {
  const Architecture& architecture = *config.architecture;
  if (architecture.experts == Presence::kNever) return absl::OkStatus();
  const bool always = architecture.experts == Presence::kAlways;
  config.num_experts = always ? keys.Integer("expert_count", 1, kernels::kMaxExperts)
                              : keys.IntegerOr("expert_count", 0, kernels::kMaxExperts, 0);
  KVBLEND_RETURN_IF_ERROR(keys.status());
  if (config.num_experts == 0) {
    // Without experts, other keys about them must be 0 or missing.
    keys.IntegerOr("expert_used_count", 0, 0, 0);
    keys.IntegerOr("expert_feed_forward_length", 0, 0, 0);
    return keys.status();
  }
  config.num_used_experts =
      keys.Integer("expert_used_count", 1, std::min(config.num_experts, kernels::kMaxChosenExperts));
  config.ffn_dim = keys.IntegerOr("expert_feed_forward_length", 1, kMaxDim, config.ffn_dim);
  KVBLEND_RETURN_IF_ERROR(keys.status());
  config.renormalises_experts = architecture.renormalises_experts;
  if (keys.Has("expert_weights_norm")) {
    KVBLEND_ASSIGN_OR_RETURN(config.renormalises_experts, file.GetBool(keys.Key("expert_weights_norm")));
  }
  return absl::OkStatus();
}

absl::Status ReadHeadDim(const GgufFile& file, KeyReader& keys, ModelConfig& config, RopeShape& shape) {
  if (!keys.Has("attention.key_length") && config.hidden_dim % config.num_heads != 0) {
    return RefuseConfig(file, Concat("key '", keys.Key("attention.head_count"), "' is ", config.num_heads,
                                     "; allowed: divisors of the embedding length, ", config.hidden_dim,
                                     ", as there is no key '", keys.Key("attention.key_length"), "'"));
  }
  config.head_dim = keys.IntegerOr("attention.key_length", 1, kMaxDim, config.hidden_dim / config.num_heads);
  const int32_t value_length = keys.IntegerOr("attention.value_length", 1, kMaxDim, config.head_dim);
  const int32_t rotated = keys.IntegerOr("rope.dimension_count", 0, kMaxDim, config.head_dim);
  KVBLEND_RETURN_IF_ERROR(keys.status());
  if (config.num_heads % config.num_kv_heads != 0) {
    return RefuseConfig(file,
                        Concat("key '", keys.Key("attention.head_count_kv"), "' is ", config.num_kv_heads,
                               "; allowed: divisors of the ", config.num_heads, " heads"));
  }
  if (config.head_dim % 2 != 0) {
    return RefuseConfig(file, Concat("the head dimension is ", config.head_dim, "; allowed: even numbers"));
  }
  if (value_length != config.head_dim) {
    return absl::UnimplementedError(Concat(file.name(), ": key '", keys.Key("attention.value_length"),
                                           "' is ", value_length, "; allowed: the key length, ",
                                           config.head_dim));
  }
  if (rotated <= 0 || rotated % 2 != 0 || rotated > config.head_dim) {
    return absl::UnimplementedError(Concat(file.name(), ": key '", keys.Key("rope.dimension_count"), "' is ",
                                           rotated, "; allowed: even, 2 to the head dimension, ",
                                           config.head_dim));
  }
  shape = {.head_dim = config.head_dim,
           .rotated_dims = rotated,
           .context_length = config.context_length,
           .freq_base = config.rope_freq_base};
  return absl::OkStatus();
}

absl::Status ReadScales(KeyReader& keys, ModelConfig& config) {
  const Architecture& architecture = *config.architecture;
  const auto root = [](double x) { return static_cast<float>(std::sqrt(x)); };
  if (architecture.embedding_times_root) config.embedding_scale = root(config.hidden_dim);
  config.attention_scale = 1.0f / root(config.num_layers == architecture.num_layers_scaled_by_width
                                           ? static_cast<double>(config.hidden_dim) / config.num_heads
                                           : config.head_dim);
  if (!architecture.reads_scales) return absl::OkStatus();
  config.embedding_scale = static_cast<float>(keys.FloatOr("embedding_scale", 0, kMaxScale, 1));
  config.residual_scale = static_cast<float>(keys.FloatOr("residual_scale", 0, kMaxScale, 1));
  config.attention_scale =
      static_cast<float>(keys.FloatOr("attention.scale", 0, kMaxScale, config.attention_scale));
  // Logits are divided by the file's number.
  config.logit_scale = static_cast<float>(1 / keys.FloatOr("logit_scale", kMinDivisor, kMaxScale, 1));
  return keys.status();
}

// Reads 0, which means no cap, or a cap that backends take.
absl::Status ReadSoftCap(const GgufFile& file, KeyReader& keys, std::string_view key, float fallback,
                         float& cap) {
  cap = fallback;
  if (!keys.Has(key)) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(const double value, file.GetFloat(keys.Key(key)));
  if (value != 0 && !(value >= kMinSoftCap && value <= kMaxScale)) {
    return RefuseConfig(file, Concat("key '", keys.Key(key), "' is ", value, "; allowed: 0 (none), ",
                                     kMinSoftCap, " to ", kMaxScale));
  }
  cap = static_cast<float>(value);
  return absl::OkStatus();
}

absl::Status ReadSoftCaps(const GgufFile& file, KeyReader& keys, ModelConfig& config) {
  const Architecture& architecture = *config.architecture;
  if (!architecture.has_soft_caps()) return absl::OkStatus();
  KVBLEND_RETURN_IF_ERROR(ReadSoftCap(file, keys, "attn_logit_softcapping", architecture.attention_soft_cap,
                                      config.attention_soft_cap));
  return ReadSoftCap(file, keys, "final_logit_softcapping", architecture.logit_soft_cap,
                     config.logit_soft_cap);
}

// Reads which layers see all tokens, and how each rotates.
absl::Status ReadLayers(const GgufFile& file, KeyReader& keys, const RopeShape& shape, ModelConfig& config) {
  const Architecture& architecture = *config.architecture;
  KVBLEND_ASSIGN_OR_RETURN(RopeConfig rope, ReadRopeConfig(file, architecture, shape));
  config.ropes.push_back(std::move(rope));
  const int32_t window =
      keys.IntegerOr("attention.sliding_window", 0, kMaxContext, architecture.default_window);
  KVBLEND_RETURN_IF_ERROR(keys.status());
  int32_t windowed_rope = 0, no_rope = 0;
  if (architecture.windowed_rope_freq_base > 0) {
    windowed_rope = static_cast<int32_t>(config.ropes.size());
    RopeShape windowed = shape;
    windowed.freq_base = static_cast<float>(
        keys.FloatOr("rope.freq_base_swa", 0, kMaxFreqBase, architecture.windowed_rope_freq_base));
    KVBLEND_RETURN_IF_ERROR(keys.status());
    config.ropes.push_back(PlainRope(windowed));
  }
  if (architecture.unrotated_layer_period > 0) {
    no_rope = static_cast<int32_t>(config.ropes.size());
    config.ropes.push_back(NoRope(shape));
  }
  const auto last_of = [](int32_t layer, int32_t period) {
    return period > 0 && layer % period == period - 1;
  };
  config.layers.resize(config.num_layers);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    LayerConfig& of_layer = config.layers[layer];
    if (architecture.windowed_layers == WindowedLayers::kAll ||
        (architecture.windowed_layers == WindowedLayers::kAllButEveryNth &&
         !last_of(layer, architecture.window_period))) {
      of_layer = {.sliding_window = window, .rope = windowed_rope};
    }
    if (last_of(layer, architecture.unrotated_layer_period)) of_layer.rope = no_rope;
  }
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const GgufFile& file, KeyReader& keys, ModelConfig& config) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return RefuseConfig(file, "tensor 'token_embd.weight' is missing");
  if (embedding->rows() > kMaxVocab) {
    return RefuseConfig(file, Concat("tensor 'token_embd.weight' has ", embedding->rows(),
                                     " rows; allowed: 1 to ", kMaxVocab));
  }
  config.vocab_size = keys.IntegerOr("vocab_size", 1, kMaxVocab, static_cast<int32_t>(embedding->rows()));
  KVBLEND_RETURN_IF_ERROR(keys.status());
  if (const GgufEntry* entry = file.FindEntry("tokenizer.ggml.tokens"); entry != nullptr) {
    const auto* tokens = std::get_if<GgufArray>(&entry->value);
    if (tokens != nullptr && tokens->count > config.vocab_size) {
      return RefuseConfig(
          file, Concat("key 'tokenizer.ggml.tokens' has ", tokens->count, " elements; allowed: at most the ",
                       config.vocab_size, " rows of the embedding"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool ModelConfig::UsesLongRope(int32_t context_tokens) const {
  return std::any_of(ropes.begin(), ropes.end(),
                     [&](const RopeConfig& rope) { return rope.UsesLong(context_tokens); });
}

kernels::RopeSpec ModelConfig::RopeSpecOf(const RopeConfig& rope, int64_t max_position) const {
  kernels::RopeSpec spec;
  spec.layout = architecture->rope_layout;
  spec.head_dim = head_dim;
  spec.max_position = max_position;
  spec.inv_freq = rope.UsesLong(context_length) ? rope.long_inv_freq : rope.inv_freq;
  spec.magnitude = rope.magnitude;
  return spec;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfig config;
  KVBLEND_ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(file));
  KVBLEND_RETURN_IF_ERROR(CheckMetadataKeys(file, *config.architecture));
  KeyReader general(file, "");
  config.name = text::ShownOnOneLine(general.StringOr("general.name", ""), kMaxNameBytes);
  config.chat_template = general.StringOr("tokenizer.chat_template", "");
  KVBLEND_RETURN_IF_ERROR(general.status());

  KeyReader keys(file, std::string(config.architecture->name) + ".");
  ReadDimensions(keys, config);
  KVBLEND_RETURN_IF_ERROR(keys.status());
  KVBLEND_RETURN_IF_ERROR(ReadExperts(file, keys, config));
  RopeShape shape;
  KVBLEND_RETURN_IF_ERROR(ReadHeadDim(file, keys, config, shape));
  KVBLEND_RETURN_IF_ERROR(ReadScales(keys, config));
  KVBLEND_RETURN_IF_ERROR(ReadSoftCaps(file, keys, config));
  KVBLEND_RETURN_IF_ERROR(ReadVocabulary(file, keys, config));
  config.tied_output = file.FindTensor("output.weight") == nullptr;
  const auto has = [&](Presence presence, std::string_view tensor) {
    return presence == Presence::kAlways ||
           (presence == Presence::kOptional && file.FindTensor(tensor) != nullptr);
  };
  config.has_qkv_bias = has(config.architecture->qkv_bias, "blk.0.attn_q.bias");
  config.has_output_bias = has(config.architecture->output_bias, "blk.0.attn_output.bias");
  config.rotation_order = RotationOrder(config.architecture->rope_layout, shape);
  KVBLEND_RETURN_IF_ERROR(CheckTensors(file, config));
  KVBLEND_RETURN_IF_ERROR(ReadLayers(file, keys, shape, config));
  return config;
}

}  // namespace kvblend::model
