#include "engine/model/model_config_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

// Read by model_config.cc and rope_config.cc, for every architecture. Without the architecture's prefix, as
// all below.
constexpr std::array<std::string_view, 15> kReadKeys = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.type",
    "vocab_size",
};

// Keys that do not change results, or change them only together with a key that is looked at.
constexpr std::array<std::string_view, 5> kHarmlessKeys = {
    "rope.scaling.attn_factor",              // rope_config.cc refuses it where it has no meaning
    "rope.scaling.finetuned",                // whether training used the scaling
    "rope.scaling.original_context_length",  // read where the scaling has a use for it
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

// Read where the architecture can have experts.
constexpr std::array<std::string_view, 4> kExpertKeys = {"expert_count", "expert_feed_forward_length",
                                                         "expert_used_count", "expert_weights_norm"};

constexpr std::array<std::string_view, 5> kHarmlessTokenizerKeys = {
    "tokenizer.chat_template",          // read
    "tokenizer.chat_templates",         // names of further templates
    "tokenizer.huggingface.json",       // the same tokenizer in another form
    "tokenizer.huggingface.bos_token",  // read
    "tokenizer.huggingface.eos_token",  // read
};

// Read where the architecture has them.
constexpr std::array<std::string_view, 4> kScaleKeys = {"attention.scale", "embedding_scale", "logit_scale",
                                                        "residual_scale"};

constexpr std::array<std::string_view, 2> kSoftCapKeys = {"attn_logit_softcapping",
                                                          "final_logit_softcapping"};

// Keys of the tokenizer that are read, or only matter to kinds of tokenizers that do not have them, or name
// tokens that kvblend neither inserts nor treats as an end of text.
constexpr std::array<std::string_view, 30> kTokenizerKeys = {
    "add_bos_token",
    "add_space_prefix",
    "bos_token_id",
    "cls_token_id",
    "eog_token_ids",
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
    "precompiled_charsmap",
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
constexpr std::array<Switch, 13> kModelSwitches = {{
    {"attention.causal", 1},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_gating_func", 1},  // GGUF's number for a softmax
    {"expert_group_count", 0},
    {"expert_group_used_count", 0},
    {"expert_shared_count", 0},
    {"expert_shared_feed_forward_length", 0},
    {"expert_weights_scale", 1},
    {"leading_dense_block_count", 0},
    {"use_parallel_residual", 0},
}};
constexpr Switch kNoWindow = {"attention.sliding_window", 0};
// Read where layers with a window have a base of their own; and how often a layer has none.
constexpr std::string_view kWindowedBaseKey = "rope.freq_base_swa";
constexpr std::string_view kWindowPeriodKey = "attention.sliding_window_pattern";
constexpr std::array<Switch, 4> kFileSwitches = {{
    {"split.count", 1},
    {"split.no", 0},
    {"tokenizer.ggml.add_eos_token", 0},
    {"tokenizer.ggml.add_sep_token", 0},
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

absl::Status RefuseKey(const GgufFile& file, const GgufEntry& entry, std::string_view why) {
  return absl::UnimplementedError(Concat(file.name(), ": key '", entry.key, "' ", why));
}

// Whether `feature` is about this key; `status` becomes an error unless it is off.
bool IsSwitch(const GgufFile& file, const GgufEntry& entry, std::string_view key, const Switch& feature,
              absl::Status& status) {
  if (key != feature.key) return false;
  if (AsNumber(entry) != feature.off) {
    status =
        RefuseKey(file, entry, Concat("asks for a feature that is not implemented; allowed: ", feature.off));
  }
  return true;
}

absl::Status UnknownKey(const GgufFile& file, const GgufEntry& entry) {
  return RefuseKey(file, entry, "is not known to this version of kvblend and may change the model's results");
}

// `key` is the entry's without the architecture's prefix.
absl::Status CheckModelKey(const GgufFile& file, const Architecture& architecture, const GgufEntry& entry,
                           std::string_view key) {
  if (key == "tensor_data_layout") {
    const auto* layout = std::get_if<std::string_view>(&entry.value);
    if (layout == nullptr || *layout != "Meta AI original pth") {
      return RefuseKey(
          file, entry,
          "names a layout that cannot be read; readable: 'Meta AI original pth' (interleaved RoPE pairs)");
    }
    return absl::OkStatus();
  }
  if (Contains(kReadKeys, key) || Contains(kHarmlessKeys, key)) return absl::OkStatus();
  if (architecture.reads_scales && Contains(kScaleKeys, key)) return absl::OkStatus();
  if (architecture.has_soft_caps() && Contains(kSoftCapKeys, key)) return absl::OkStatus();
  if (architecture.experts != Presence::kNever && Contains(kExpertKeys, key)) return absl::OkStatus();
  if (key == kNoWindow.key && architecture.windowed_layers != WindowedLayers::kNone) return absl::OkStatus();
  if (key == kWindowedBaseKey && architecture.windowed_rope_freq_base > 0) return absl::OkStatus();
  absl::Status status;
  if (architecture.windowed_layers == WindowedLayers::kAllButEveryNth &&
      IsSwitch(file, entry, key, {kWindowPeriodKey, static_cast<double>(architecture.window_period)},
               status)) {
    return status;
  }
  if (IsSwitch(file, entry, key, kNoWindow, status)) return status;
  for (const Switch& feature : kModelSwitches) {
    if (IsSwitch(file, entry, key, feature, status)) return status;
  }
  return UnknownKey(file, entry);
}

absl::Status CheckKey(const GgufFile& file, const Architecture& architecture, const GgufEntry& entry) {
  const std::string_view key = entry.key;
  if (key == "general.type") {
    const auto* type = std::get_if<std::string_view>(&entry.value);
    if (type == nullptr || *type != "model")
      return RefuseKey(file, entry, "is not 'model': adapters and projectors cannot be run");
    return absl::OkStatus();
  }
  if (key == "general.quantization_version") {
    if (AsNumber(entry) != 2.0)
      return RefuseKey(file, entry, "names a block layout that cannot be read; readable: 2");
    return absl::OkStatus();
  }
  // Provenance, authors, licences, data sets, how the file was quantized, the shards' tensor total.
  if (key.starts_with("general.") || key.starts_with("quantize.") || key == "split.tensors.count") {
    return absl::OkStatus();
  }
  // Templates beside the main one: tokenizer.chat_template.tool_use, ...
  if (Contains(kHarmlessTokenizerKeys, key) || key.starts_with("tokenizer.chat_template."))
    return absl::OkStatus();
  absl::Status status;
  for (const Switch& feature : kFileSwitches) {
    if (IsSwitch(file, entry, key, feature, status)) return status;
  }
  constexpr std::string_view kTokenizerPrefix = "tokenizer.ggml.";
  if (key.starts_with(kTokenizerPrefix) && Contains(kTokenizerKeys, key.substr(kTokenizerPrefix.size()))) {
    return absl::OkStatus();
  }
  const std::string_view prefix = architecture.name;
  if (key.size() > prefix.size() && key.starts_with(prefix) && key[prefix.size()] == '.') {
    return CheckModelKey(file, architecture, entry, key.substr(prefix.size() + 1));
  }
  return UnknownKey(file, entry);
}

}  // namespace

absl::Status CheckMetadataKeys(const GgufFile& file, const Architecture& architecture) {
  for (const GgufEntry& entry : file.metadata()) {
    KVBLEND_RETURN_IF_ERROR(CheckKey(file, architecture, entry));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::model
