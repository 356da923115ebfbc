#include "engine/model/files/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/files/json_text.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr int64_t kMaxHfInteger = std::numeric_limits<int32_t>::max();
// Backends take no more (kernels/checks.cc). Bounded here: RoPE's divisors are made before tensors are read.
constexpr int64_t kMaxHfHeadDim = 65536;

const HfField* FindField(absl::Span<const HfField> fields, std::string_view name) {
  const auto found =
      std::find_if(fields.begin(), fields.end(), [&](const HfField& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

absl::StatusOr<const HfArchitecture*> FindHfArchitecture(const HfFields& config) {
  KVBLEND_ASSIGN_OR_RETURN(const auto type, config.Text("model_type"));
  if (!type.has_value()) return config.Missing("model_type");
  std::string known;
  for (const HfArchitecture& architecture : HfArchitectures()) {
    if (architecture.model_type == *type) return &architecture;
    known.append(known.empty() ? "" : ", ").append(architecture.model_type);
  }
  return config.NotImplemented("model_type", known);
}

class ConfigTranslator {
 public:
  ConfigTranslator(const HfFields& config, const HfArchitecture& architecture, TranslatedModel& out)
      : config_(config), architecture_(architecture), out_(out) {
    model_.architecture = &architecture;
  }

  absl::StatusOr<HfModel> Translate();

 private:
  std::string Key(std::string_view name) const { return Concat(architecture_.architecture, ".", name); }
  absl::Status CheckKnown() const;
  absl::Status TranslateFields(absl::Span<const HfField> fields);
  absl::Status TranslateField(const HfField& field);
  absl::Status TranslateHeads();
  absl::Status TranslateWindow();
  absl::Status CheckLayerTypes(bool has_window) const;
  absl::Status CheckRotatedLayers() const;
  absl::Status CheckActivation() const;
  absl::Status CheckAttentionScale() const;

  const HfFields& config_;
  const HfArchitecture& architecture_;
  TranslatedModel& out_;
  HfModel model_;
};

absl::Status ConfigTranslator::CheckKnown() const {
  for (const auto& [name, value] : config_.object().items()) {
    if (value.is_null()) continue;
    if (FindField(HfCommonFields(), name) != nullptr || FindField(architecture_.fields, name) != nullptr) {
      continue;
    }
    return absl::UnimplementedError(Concat(config_.name(), ": field ", Quote(name), " (", ShowJson(value),
                                           ") is not known for '", architecture_.model_type,
                                           "' and may change the model's results"));
  }
  return absl::OkStatus();
}

absl::Status ConfigTranslator::TranslateField(const HfField& field) {
  if (config_.Find(field.name) == nullptr) {
    if (field.kind == HfFieldKind::kNumberOrNull && config_.object().contains(field.name)) {
      out_.SetFloat(Key(field.text), 0);
    }
    return field.required ? config_.Missing(field.name) : absl::OkStatus();
  }
  if (field.kind == HfFieldKind::kInteger) {
    KVBLEND_ASSIGN_OR_RETURN(const auto value, config_.Integer(field.name, 1, kMaxHfInteger));
    if (field.text == "expert_count") {
      if (model_.num_experts != 0) {  // it was there under its other name
        return *value == model_.num_experts ? absl::OkStatus()
                                            : config_.Wrong(field.name, Concat(model_.num_experts));
      }
      model_.num_experts = *value;
    }
    out_.SetInteger(Key(field.text), static_cast<uint64_t>(*value));
  } else if (field.kind == HfFieldKind::kNumber || field.kind == HfFieldKind::kNumberOrNull) {
    KVBLEND_ASSIGN_OR_RETURN(const auto value, config_.Number(field.name));
    out_.SetFloat(Key(field.text), *value);
  } else if (field.kind == HfFieldKind::kSwitch) {
    KVBLEND_ASSIGN_OR_RETURN(const auto value, config_.Bool(field.name));
    if (!*value) out_.SetBool(Key(field.text), false);
  } else if (field.kind == HfFieldKind::kSameAs) {
    const nlohmann::json* other = config_.Find(field.text);
    if (other != nullptr && *config_.Find(field.name) != *other) {
      return config_.Wrong(field.name, Concat(ShowJson(*other), ", as of '", field.text, "'"));
    }
  } else if (field.kind == HfFieldKind::kMustBe) {
    if (*config_.Find(field.name) != nlohmann::json::parse(field.text)) {
      return config_.NotImplemented(field.name, field.text);
    }
  }
  return absl::OkStatus();
}

absl::Status ConfigTranslator::TranslateFields(absl::Span<const HfField> fields) {
  for (const HfField& field : fields) {
    KVBLEND_RETURN_IF_ERROR(TranslateField(field));
  }
  return absl::OkStatus();
}

absl::Status ConfigTranslator::TranslateHeads() {
  KVBLEND_ASSIGN_OR_RETURN(const auto layers, config_.Integer("num_hidden_layers", 1, kMaxHfInteger));
  KVBLEND_ASSIGN_OR_RETURN(const auto heads, config_.Integer("num_attention_heads", 1, kMaxHfInteger));
  KVBLEND_ASSIGN_OR_RETURN(const auto hidden, config_.Integer("hidden_size", 1, kMaxHfInteger));
  model_.num_layers = *layers;
  model_.num_heads = *heads;
  KVBLEND_ASSIGN_OR_RETURN(const auto kv_heads, config_.Integer("num_key_value_heads", 1, kMaxHfInteger));
  model_.num_kv_heads = kv_heads.value_or(*heads);
  out_.SetInteger(Key("attention.head_count_kv"), static_cast<uint64_t>(model_.num_kv_heads));

  KVBLEND_ASSIGN_OR_RETURN(const auto head_dim, config_.Integer("head_dim", 2, kMaxHfHeadDim));
  if (!head_dim.has_value() && *hidden % *heads != 0) {
    return config_.Wrong("num_attention_heads",
                         Concat("divisors of 'hidden_size', ", *hidden, ", as there is no field 'head_dim'"));
  }
  model_.head_dim = head_dim.value_or(*hidden / *heads);
  if (model_.head_dim % 2 != 0 || model_.head_dim > kMaxHfHeadDim) {
    return config_.Wrong(
        head_dim.has_value() ? "head_dim" : "num_attention_heads",
        Concat("what makes heads of an even size, up to ", kMaxHfHeadDim, "; it is ", model_.head_dim));
  }
  if (head_dim.has_value()) {
    out_.SetInteger(Key("attention.key_length"), static_cast<uint64_t>(*head_dim));
    out_.SetInteger(Key("attention.value_length"), static_cast<uint64_t>(*head_dim));
  }
  KVBLEND_ASSIGN_OR_RETURN(const auto vocab_size, config_.Integer("vocab_size", 1, kMaxHfInteger));
  if (!vocab_size.has_value()) return config_.Missing("vocab_size");
  model_.vocab_size = *vocab_size;
  if (architecture_.writes_vocab_size) {
    out_.SetInteger(Key("vocab_size"), static_cast<uint64_t>(*vocab_size));
    out_.SetInteger(Key("rope.dimension_count"), static_cast<uint64_t>(model_.head_dim));
  }
  return absl::OkStatus();
}

absl::Status ConfigTranslator::CheckLayerTypes(bool has_window) const {
  const nlohmann::json* types = config_.Find("layer_types");
  if (types == nullptr) return absl::OkStatus();
  if (!types->is_array() || static_cast<int64_t>(types->size()) != model_.num_layers) {
    return config_.Wrong("layer_types", Concat("one for each of the ", model_.num_layers, " layers"));
  }
  const int32_t pattern = architecture_.window_pattern;
  for (size_t layer = 0; layer < types->size(); ++layer) {
    const bool full = pattern == 1 ? !has_window : (layer + 1) % static_cast<size_t>(pattern) == 0;
    const std::string_view expected = full ? "full_attention" : "sliding_attention";
    const nlohmann::json& type = (*types)[layer];
    if (!type.is_string() || type.get_ref<const std::string&>() != expected) {
      return absl::UnimplementedError(Concat(config_.name(), ": field 'layer_types' is ", ShowJson(type),
                                             " for layer ", layer, "; implemented: '", expected, "' there"));
    }
  }
  return absl::OkStatus();
}

// no_rope_layers has one number for each layer, 1 where the layer has RoPE.
absl::Status ConfigTranslator::CheckRotatedLayers() const {
  const nlohmann::json* layers = config_.Find("no_rope_layers");
  if (layers == nullptr) return absl::OkStatus();
  if (!layers->is_array() || static_cast<int64_t>(layers->size()) != model_.num_layers) {
    return config_.Wrong("no_rope_layers", Concat("one for each of the ", model_.num_layers, " layers"));
  }
  const int64_t period = architecture_.unrotated_layer_period;
  for (int64_t layer = 0; layer < model_.num_layers; ++layer) {
    const nlohmann::json& rotated = (*layers)[static_cast<size_t>(layer)];
    const int expected = period > 0 && layer % period == period - 1 ? 0 : 1;
    if (rotated == expected) continue;
    return absl::UnimplementedError(Concat(config_.name(), ": field 'no_rope_layers' is ", ShowJson(rotated),
                                           " for layer ", layer, "; implemented: ", expected, " there"));
  }
  return absl::OkStatus();
}

absl::Status ConfigTranslator::TranslateWindow() {
  KVBLEND_ASSIGN_OR_RETURN(const auto window, config_.Integer("sliding_window", 0, kMaxHfInteger));
  KVBLEND_ASSIGN_OR_RETURN(const auto is_on, config_.Bool("use_sliding_window"));
  if (architecture_.switches_window && is_on.value_or(false)) {
    return config_.NotImplemented("use_sliding_window", "false");
  }
  const bool windowed_by_layer = architecture_.window_pattern > 1;
  if (windowed_by_layer && !window.has_value()) return config_.Missing("sliding_window");
  const bool named = config_.object().contains("sliding_window");  // null: no window
  const int64_t size = named ? window.value_or(0) : architecture_.default_window;
  const bool in_use =
      size > 0 && (windowed_by_layer || (architecture_.has_window && size < model_.context_length));
  if (in_use) out_.SetInteger(Key("attention.sliding_window"), static_cast<uint64_t>(size));
  return CheckLayerTypes(in_use);
}

absl::Status ConfigTranslator::CheckActivation() const {
  const std::string_view allowed = architecture_.gelu ? "gelu_pytorch_tanh" : "silu";
  // Gemma's is hidden_activation: some of its configurations have "gelu" in the older hidden_act. Others have
  // hidden_act alone.
  for (const std::string_view field : {"hidden_activation", "hidden_act"}) {
    if (field == "hidden_activation" && !architecture_.gelu) continue;
    KVBLEND_ASSIGN_OR_RETURN(const auto activation, config_.Text(field));
    if (!activation.has_value()) continue;
    if (*activation != allowed) return config_.NotImplemented(field, allowed);
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

// Gemma's scores are scaled by a field that GGUF files do not have: readers take the head's size, and for the
// largest model of each generation the width per head.
absl::Status ConfigTranslator::CheckAttentionScale() const {
  if (!architecture_.gelu) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(const auto scalar, config_.Number("query_pre_attn_scalar"));
  KVBLEND_ASSIGN_OR_RETURN(const auto hidden, config_.Integer("hidden_size", 1, kMaxHfInteger));
  const bool largest = model_.num_layers == (architecture_.window_pattern == 2 ? 46 : 62);
  const int64_t expected = largest ? *hidden / model_.num_heads : model_.head_dim;
  if (!scalar.has_value()) return config_.Missing("query_pre_attn_scalar");
  if (*scalar == static_cast<double>(expected)) return absl::OkStatus();
  return config_.NotImplemented("query_pre_attn_scalar", Concat(expected));
}

absl::StatusOr<HfModel> ConfigTranslator::Translate() {
  KVBLEND_RETURN_IF_ERROR(CheckKnown());
  out_.SetString("general.architecture", std::string(architecture_.architecture));
  KVBLEND_RETURN_IF_ERROR(TranslateFields(HfCommonFields()));
  KVBLEND_RETURN_IF_ERROR(TranslateFields(architecture_.fields));
  KVBLEND_RETURN_IF_ERROR(TranslateHeads());
  KVBLEND_RETURN_IF_ERROR(TranslateHfRope(config_, model_, out_));
  out_.SetInteger(Key("context_length"), static_cast<uint64_t>(model_.context_length));
  KVBLEND_RETURN_IF_ERROR(TranslateWindow());
  KVBLEND_RETURN_IF_ERROR(CheckRotatedLayers());
  KVBLEND_RETURN_IF_ERROR(CheckActivation());
  KVBLEND_RETURN_IF_ERROR(CheckAttentionScale());
  KVBLEND_RETURN_IF_ERROR(TranslateHfQuantization(config_, model_));
  KVBLEND_ASSIGN_OR_RETURN(model_.tied_output, config_.Bool("tie_word_embeddings"));
  return model_;
}

}  // namespace

const nlohmann::json* HfFields::Find(std::string_view field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<int64_t>> HfFields::Integer(std::string_view field, int64_t min,
                                                         int64_t max) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  const std::string allowed = Concat("whole numbers from ", min, " to ", max);
  if (!value->is_number_integer()) return Wrong(field, allowed);
  if (value->is_number_unsigned() && std::cmp_greater(value->get<uint64_t>(), max))
    return Wrong(field, allowed);
  const auto number = value->get<int64_t>();
  if (number < min || number > max) return Wrong(field, allowed);
  return number;
}

absl::StatusOr<std::optional<double>> HfFields::Number(std::string_view field) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>())) return Wrong(field, "numbers");
  return value->get<double>();
}

absl::StatusOr<std::optional<bool>> HfFields::Bool(std::string_view field) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Wrong(field, "true, false");
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> HfFields::Text(std::string_view field) const {
  const nlohmann::json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Wrong(field, "strings");
  return value->get<std::string>();
}

absl::Status HfFields::Missing(std::string_view field) const {
  return absl::InvalidArgumentError(Concat(name_, ": field '", field, "' is missing"));
}

absl::Status HfFields::Wrong(std::string_view field, std::string_view allowed) const {
  const nlohmann::json* value = Find(field);
  return absl::InvalidArgumentError(Concat(name_, ": field '", field, "' is ",
                                           value == nullptr ? "missing" : ShowJson(*value),
                                           "; allowed: ", allowed));
}

absl::Status HfFields::NotImplemented(std::string_view field, std::string_view allowed) const {
  return absl::UnimplementedError(Wrong(field, allowed).message());
}

absl::StatusOr<HfModel> TranslateHfConfig(const HfFields& config, TranslatedModel& out) {
  KVBLEND_ASSIGN_OR_RETURN(const HfArchitecture* architecture, FindHfArchitecture(config));
  return ConfigTranslator(config, *architecture, out).Translate();
}

}  // namespace kvblend::model
