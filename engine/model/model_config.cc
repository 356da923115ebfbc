#include "engine/model/model_config.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/gguf_text.h"
#include "engine/model/model_config_keys.h"
#include "engine/model/model_tensors.h"

namespace kvblend::model {
namespace {

// Generous bounds: no llama model comes near them, and products of any two stay within 64 bits.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxContext = 1 << 24;

// Reads keys into fields and keeps the first error.
class KeyReader {
 public:
  explicit KeyReader(const GgufFile& file) : file_(file) {}

  int32_t Integer(std::string_view key, int64_t min, int64_t max) {
    return Keep(file_.GetInteger(key, min, max));
  }
  int32_t IntegerOr(std::string_view key, int64_t min, int64_t max, int32_t fallback) {
    return file_.HasKey(key) ? Integer(key, min, max) : fallback;
  }
  /// A number strictly between the bounds.
  double Float(std::string_view key, double above, double below) {
    auto value = file_.GetFloat(key);
    if (value.ok() && !(*value > above && *value < below)) {
      value = absl::InvalidArgumentError(Concat(file_.name(), ": key '", key, "' is ", *value,
                                                "; allowed: above ", above, ", below ", below));
    }
    return Keep(std::move(value));
  }
  double FloatOr(std::string_view key, double above, double below, double fallback) {
    return file_.HasKey(key) ? Float(key, above, below) : fallback;
  }
  std::string StringOr(std::string_view key, std::string_view fallback) {
    return std::string(file_.HasKey(key) ? Keep(file_.GetString(key)) : fallback);
  }

  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
  T Keep(absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    if (status_.ok()) status_ = value.status();
    return T{};
  }

  const GgufFile& file_;
  absl::Status status_;
};

absl::Status Refuse(const GgufFile& file, std::string_view what) {
  return absl::InvalidArgumentError(Concat(file.name(), ": ", what));
}

// The factor by which linear scaling (position interpolation) slows all rotations down.
absl::StatusOr<double> ReadLinearFactor(const GgufFile& file) {
  constexpr std::string_view kTypeKey = "llama.rope.scaling.type";
  constexpr std::string_view kFactorKey = "llama.rope.scaling.factor";
  constexpr std::string_view kOldFactorKey = "llama.rope.scale_linear";  // before scaling had a type
  constexpr double kMaxFactor = 1e6;
  KeyReader keys(file);
  // Writers leave the type out when they mean linear.
  const std::string type = keys.StringOr(kTypeKey, "linear");
  const double old_factor = keys.FloatOr(kOldFactorKey, 0, kMaxFactor, 1);
  const double factor = keys.FloatOr(kFactorKey, 0, kMaxFactor, old_factor);
  if (!keys.status().ok()) return keys.status();
  if (type != "none" && type != "linear") {
    return absl::UnimplementedError(Concat(file.name(), ": key '", kTypeKey, "' is '", type,
                                           "', which is not implemented; allowed: 'none', 'linear' (llama3 "
                                           "scaling is stored as the tensor rope_freqs.weight)"));
  }
  if (file.HasKey(kOldFactorKey) && factor != old_factor) {
    return Refuse(file, Concat("key '", kFactorKey, "' is ", factor, " and '", kOldFactorKey, "' is ",
                               old_factor, "; allowed: equal values"));
  }
  if (type == "none" && factor != 1) {
    return Refuse(file, Concat("key '", kFactorKey, "' is ", factor, " although '", kTypeKey,
                               "' is 'none'; allowed: 1"));
  }
  if (file.HasKey(kTypeKey) && type == "linear" && !file.HasKey(kFactorKey) && !file.HasKey(kOldFactorKey)) {
    return Refuse(file, Concat("key '", kFactorKey, "' is missing although '", kTypeKey, "' is 'linear'"));
  }
  return factor;
}

// base^(-2i/d), divided by the linear factor and by the file's own divisors for each frequency, if it has
// them.
absl::StatusOr<std::vector<float>> ReadInverseFrequencies(const GgufFile& file, const ModelConfig& config) {
  KVBLEND_ASSIGN_OR_RETURN(const double linear_factor, ReadLinearFactor(file));
  const int32_t pairs = config.head_dim / 2;
  std::vector<float> divisors(pairs, 1.0f);
  if (file.FindTensor("rope_freqs.weight") != nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file, "rope_freqs.weight", 1, pairs));
    KVBLEND_RETURN_IF_ERROR(tensor->ReadRow(0, absl::MakeSpan(divisors)));
  }
  std::vector<float> inv_freq(pairs);
  for (int32_t i = 0; i < pairs; ++i) {
    if (!(std::isfinite(divisors[i]) && divisors[i] > 0)) {
      return Refuse(file, Concat("tensor 'rope_freqs.weight' holds ", divisors[i], " at index ", i,
                                 "; allowed: positive finite numbers"));
    }
    const double unscaled = std::pow(static_cast<double>(config.rope_freq_base), -2.0 * i / config.head_dim);
    inv_freq[i] = static_cast<float>(unscaled / (linear_factor * static_cast<double>(divisors[i])));
    if (!std::isfinite(inv_freq[i])) {
      return Refuse(file, Concat("the RoPE frequency of pair ", i, " is not a finite number"));
    }
  }
  return inv_freq;
}

absl::Status CheckShape(const GgufFile& file, const ModelConfig& config, int32_t value_length) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return Refuse(file, Concat("key 'llama.attention.head_count_kv' is ", config.num_kv_heads,
                               "; allowed: divisors of the ", config.num_heads, " heads"));
  }
  if (config.head_dim % 2 != 0) {
    return Refuse(file, Concat("the head dimension is ", config.head_dim, "; allowed: even numbers"));
  }
  if (value_length != config.head_dim) {
    return absl::UnimplementedError(Concat(file.name(), ": key 'llama.attention.value_length' is ",
                                           value_length, "; allowed: the key length, ", config.head_dim));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  KeyReader keys(file);
  ModelConfig config;
  config.architecture = keys.StringOr("general.architecture", "");
  if (!keys.status().ok()) return keys.status();
  if (config.architecture != "llama") {
    return absl::UnimplementedError(Concat(file.name(), ": key 'general.architecture' is '",
                                           config.architecture, "'; implemented: 'llama'"));
  }
  KVBLEND_RETURN_IF_ERROR(CheckMetadataKeys(file));

  config.name = keys.StringOr("general.name", "");
  config.chat_template = keys.StringOr("tokenizer.chat_template", "");
  config.num_layers = keys.Integer("llama.block_count", 1, kMaxLayers);
  config.hidden_dim = keys.Integer("llama.embedding_length", 1, kMaxDim);
  config.num_heads = keys.Integer("llama.attention.head_count", 1, kMaxDim);
  config.num_kv_heads = keys.IntegerOr("llama.attention.head_count_kv", 1, kMaxDim, config.num_heads);
  config.ffn_dim = keys.Integer("llama.feed_forward_length", 1, kMaxDim);
  config.context_length = keys.Integer("llama.context_length", 1, kMaxContext);
  config.rms_epsilon = static_cast<float>(keys.Float("llama.attention.layer_norm_rms_epsilon", 0, 1));
  config.rope_freq_base = static_cast<float>(keys.FloatOr("llama.rope.freq_base", 0, 1e12, 10000));
  if (!keys.status().ok()) return keys.status();

  if (!file.HasKey("llama.attention.key_length") && config.hidden_dim % config.num_heads != 0) {
    return Refuse(file, Concat("key 'llama.attention.head_count' is ", config.num_heads,
                               "; allowed: divisors of the embedding length, ", config.hidden_dim,
                               ", as there is no key 'llama.attention.key_length'"));
  }
  config.head_dim =
      keys.IntegerOr("llama.attention.key_length", 1, kMaxDim, config.hidden_dim / config.num_heads);
  const int32_t value_length = keys.IntegerOr("llama.attention.value_length", 1, kMaxDim, config.head_dim);
  const int32_t rotated = keys.IntegerOr("llama.rope.dimension_count", 0, kMaxDim, config.head_dim);
  if (!keys.status().ok()) return keys.status();
  if (rotated != config.head_dim) {
    return absl::UnimplementedError(Concat(file.name(), ": key 'llama.rope.dimension_count' is ", rotated,
                                           "; allowed: the head dimension, ", config.head_dim));
  }
  KVBLEND_RETURN_IF_ERROR(CheckShape(file, config, value_length));

  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Refuse(file, "tensor 'token_embd.weight' is missing");
  if (embedding->rows() > kMaxVocab) {
    return Refuse(file, Concat("tensor 'token_embd.weight' has ", embedding->rows(), " rows; allowed: 1 to ",
                               kMaxVocab));
  }
  config.vocab_size =
      keys.IntegerOr("llama.vocab_size", 1, kMaxVocab, static_cast<int32_t>(embedding->rows()));
  if (!keys.status().ok()) return keys.status();
  if (const GgufEntry* entry = file.FindEntry("tokenizer.ggml.tokens"); entry != nullptr) {
    const auto* tokens = std::get_if<GgufArray>(&entry->value);
    if (tokens != nullptr && tokens->count > config.vocab_size) {
      return Refuse(
          file, Concat("key 'tokenizer.ggml.tokens' has ", tokens->count, " elements; allowed: at most the ",
                       config.vocab_size, " rows of the embedding"));
    }
  }
  config.tied_output = file.FindTensor("output.weight") == nullptr;
  KVBLEND_RETURN_IF_ERROR(CheckTensors(file, config));

  KVBLEND_ASSIGN_OR_RETURN(config.inv_freq, ReadInverseFrequencies(file, config));
  return config;
}

}  // namespace kvblend::model
