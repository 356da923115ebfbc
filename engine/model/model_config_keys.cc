#include "engine/model/model_config_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "engine/model/gguf_text.h"

namespace kvblend::model {
namespace {

// Read by model_config.cc.
constexpr std::array<std::string_view, 16> kReadModelKeys = {
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.attention.value_length",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scale_linear",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.type",
    "llama.vocab_size",
    "tokenizer.chat_template",
};

// They describe a model without changing its results for the architecture and tokenizer that are accepted.
constexpr std::array<std::string_view, 4> kHarmlessModelKeys = {
    "llama.rope.scaling.finetuned",                // whether training used the scaling
    "llama.rope.scaling.original_context_length",  // used by YaRN only, which is refused
    "tokenizer.huggingface.json",                  // the same tokenizer in another form
    "tokenizer.chat_templates",                    // names of further templates
};

// Keys of the tokenizer that are read, or only matter to kinds of tokenizers that do not have them, or name tokens
// that kvblend neither inserts nor treats as an end of text.
constexpr std::array<std::string_view, 28> kTokenizerKeys = {
    "add_bos_token",
    "add_space_prefix",
    "bos_token_id",
    "cls_token_id",
    "eom_token_id",
    "eos_token_id",
    "eot_token_id",
    "fim_mid_token_id",
    "fim_pad_token_id",
    "fim_pre_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
    "fim_suf_token_id",
    "mask_token_id",
    "merges",
    "middle_token_id",
    "model",
    "padding_token_id",
    "pre",
    "prefix_token_id",
    "remove_extra_whitespaces",
    "scores",
    "seperator_token_id",
    "suffix_token_id",
    "token_type",
    "token_type_count",
    "tokens",
    "unknown_token_id",
};

// Features that are off at one value and not implemented at any other.
struct Switch {
  std::string_view key;
  double off;
};
constexpr std::array<Switch, 12> kSwitches = {{
    {"llama.attention.causal", 1},
    {"llama.attention.clamp_kqv", 0},
    {"llama.attention.max_alibi_bias", 0},
    {"llama.attention.sliding_window", 0},
    {"llama.expert_count", 0},
    {"llama.expert_used_count", 0},
    {"llama.expert_shared_count", 0},
    {"llama.rope.scaling.attn_factor", 1},
    {"llama.use_parallel_residual", 0},
    {"split.count", 1},
    {"split.no", 0},
    {"tokenizer.ggml.add_eos_token", 0},
}};

// The value of a number or bool.
std::optional<double> AsNumber(const GgufEntry& entry) {
  if (const auto* value = std::get_if<uint64_t>(&entry.value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<int64_t>(&entry.value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<double>(&entry.value)) return *value;
  if (const auto* value = std::get_if<bool>(&entry.value)) return *value ? 1 : 0;
  return std::nullopt;
}

template <typename Keys>
bool Contains(const Keys& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

absl::Status CheckKey(const GgufFile& file, const GgufEntry& entry) {
  const std::string_view key = entry.key;
  const auto refuse = [&](std::string_view why) {
    return absl::UnimplementedError(Concat(file.name(), ": key '", key, "' ", why));
  };
  if (key == "general.type") {
    const auto* type = std::get_if<std::string_view>(&entry.value);
    if (type == nullptr || *type != "model")
      return refuse("is not 'model': adapters and projectors cannot be run");
    return absl::OkStatus();
  }
  if (key == "general.quantization_version") {
    if (AsNumber(entry) != 2.0) return refuse("names a block layout that cannot be read; readable: 2");
    return absl::OkStatus();
  }
  if (key == "llama.tensor_data_layout") {
    const auto* layout = std::get_if<std::string_view>(&entry.value);
    if (layout == nullptr || *layout != "Meta AI original pth") {
      return refuse(
          "names a layout that cannot be read; readable: 'Meta AI original pth' (interleaved RoPE pairs)");
    }
    return absl::OkStatus();
  }
  // Provenance, authors, licences, data sets, how the file was quantized, the shards' tensor total.
  if (key.starts_with("general.") || key.starts_with("quantize.") || key == "split.tensors.count") {
    return absl::OkStatus();
  }
  if (Contains(kReadModelKeys, key) || Contains(kHarmlessModelKeys, key)) return absl::OkStatus();
  // Templates beside the main one: tokenizer.chat_template.tool_use, ...
  if (key.starts_with("tokenizer.chat_template.")) return absl::OkStatus();
  for (const Switch& feature : kSwitches) {
    if (key != feature.key) continue;
    if (AsNumber(entry) == feature.off) return absl::OkStatus();
    return refuse(Concat("asks for a feature that is not implemented; allowed: ", feature.off));
  }
  constexpr std::string_view kTokenizerPrefix = "tokenizer.ggml.";
  if (key.starts_with(kTokenizerPrefix) && Contains(kTokenizerKeys, key.substr(kTokenizerPrefix.size()))) {
    return absl::OkStatus();
  }
  return refuse("is not known to this version of kvblend and may change the model's results");
}

}  // namespace

absl::Status CheckMetadataKeys(const GgufFile& file) {
  for (const GgufEntry& entry : file.metadata()) {
    KVBLEND_RETURN_IF_ERROR(CheckKey(file, entry));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::model
