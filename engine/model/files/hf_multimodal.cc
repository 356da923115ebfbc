#include "engine/model/files/hf_multimodal.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "engine/model/files/json_text.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

// What transformers takes for fields of Gemma 3's text part that configurations leave out, also published
// ones.
constexpr char kGemma3Defaults[] =
    R"({"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true})";

// Fields about images, and where these stand among tokens.
constexpr std::array<std::string_view, 12> kImageFields = {
    "boi_token_id",   "boi_token_index",   "eoi_token_id",        "eoi_token_index",
    "image_token_id", "image_token_index", "mm_tokens_per_image", "projector_hidden_act",
    "text_config",    "video_token_id",    "vision_config",       "vision_feature_layer"};
// Fields of the whole model, which count for its text part where that has none of its own.
constexpr std::array<std::string_view, 4> kSharedFields = {"bos_token_id", "eos_token_id",
                                                           "quantization_config", "tie_word_embeddings"};

template <typename Names>
bool Holds(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsHarmless(std::string_view name) {
  const auto fields = HfCommonFields();
  return std::any_of(fields.begin(), fields.end(), [&](const HfField& field) {
    return field.name == name && field.kind == HfFieldKind::kHarmless;
  });
}

}  // namespace

absl::StatusOr<std::optional<nlohmann::json>> TextPartOf(const HfFields& config) {
  KVBLEND_ASSIGN_OR_RETURN(const auto type, config.Text("model_type"));
  if (type != "gemma3") return std::nullopt;
  const nlohmann::json* text = config.Find("text_config");
  if (text == nullptr || !text->is_object()) return config.Wrong("text_config", "an object");
  nlohmann::json part = nlohmann::json::parse(kGemma3Defaults);
  part["model_type"] = "gemma3_text";
  part.update(*text);
  for (const auto& [name, value] : config.object().items()) {
    if (value.is_null() || name == "model_type" || Holds(kImageFields, name) || IsHarmless(name)) continue;
    if (!Holds(kSharedFields, name)) {
      return absl::UnimplementedError(
          Concat(config.name(), ": field ", Quote(name), " (", ShowJson(value),
                 ") is not known for 'gemma3' and may change the model's results"));
    }
    if (!text->contains(name)) part[name] = value;
  }
  return part;
}

absl::StatusOr<std::vector<SafeTensor>> TextTensorsOf(std::vector<SafeTensor> tensors,
                                                      std::string_view name) {
  // Tensor names of two generations of transformers.
  static constexpr std::string_view kOfImages[] = {"vision_tower.", "multi_modal_projector.",
                                                   "model.vision_tower.", "model.multi_modal_projector."};
  static constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
      {"language_model.model.", "model."},
      {"language_model.lm_head.", "lm_head."},
      {"model.language_model.", "model."}};
  std::vector<SafeTensor> kept;
  absl::flat_hash_set<std::string> names;
  for (SafeTensor& tensor : tensors) {
    const auto begins = [&](std::string_view prefix) { return tensor.name.starts_with(prefix); };
    if (std::any_of(std::begin(kOfImages), std::end(kOfImages), begins)) continue;
    for (const auto& [prefix, own] : kRenamed) {
      if (!begins(prefix)) continue;
      tensor.name.replace(0, prefix.size(), own);
      break;
    }
    if (!names.insert(tensor.name).second) {
      return absl::DataLossError(
          Concat(name, ": tensor ", Quote(tensor.name), " is there twice, under different names"));
    }
    kept.push_back(std::move(tensor));
  }
  return kept;
}

}  // namespace kvblend::model
