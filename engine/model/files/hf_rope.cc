// TranslateHfRope: the fields about rotary position embeddings.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/model/architecture.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/json_text.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr int64_t kMaxHfPositions = (int64_t{1} << 31) - 1;

class RopeTranslator {
 public:
  RopeTranslator(const HfFields& config, HfModel& model, TranslatedModel& out)
      : config_(config),
        model_(model),
        out_(out),
        default_local_theta_(FindArchitecture(model.architecture->architecture)->windowed_rope_freq_base) {}

  absl::Status Translate();

 private:
  std::string Key(std::string_view name) const {
    return Concat(model_.architecture->architecture, ".rope.", name);
  }
  absl::StatusOr<const nlohmann::json*> FindScaling(std::string_view& field) const;
  absl::StatusOr<const nlohmann::json*> SplitByLayer(const nlohmann::json& object, std::string& name);
  absl::StatusOr<std::optional<int64_t>> OriginalContext(const HfFields& scaling) const;
  absl::Status TranslateTheta(const HfFields* scaling);
  absl::Status TranslateRotatedShare(const HfFields* scaling);
  absl::Status TranslateScaling(const HfFields& scaling);
  absl::Status TranslateLinear(const HfFields& scaling);
  absl::Status TranslateYarn(const HfFields& scaling);
  absl::Status TranslateLlama3(const HfFields& scaling);
  absl::Status TranslateLongRope(const HfFields& scaling);
  absl::Status TranslateFactors(const HfFields& scaling, std::string_view field, std::string tensor);

  const HfFields& config_;
  HfModel& model_;
  TranslatedModel& out_;
  /// Of layers with a window, where those have one of their own; otherwise 0.
  const double default_local_theta_;
  std::optional<double> local_theta_;
  double theta_ = 0;
  int64_t rotated_ = 0;  // elements of a head
};

// A number that must be there and be above 0.
absl::StatusOr<double> RequirePositive(const HfFields& fields, std::string_view name) {
  KVBLEND_ASSIGN_OR_RETURN(const auto value, fields.Number(name));
  if (!value.has_value() || !(*value > 0)) return fields.Wrong(name, "numbers above 0");
  return *value;
}

absl::Status CheckRopeFields(const HfFields& fields, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : fields.object().items()) {
    const bool is_common =
        name == "rope_type" || name == "type" || name == "rope_theta" || name == "partial_rotary_factor";
    if (value.is_null() || is_common || std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::UnimplementedError(
        Concat(fields.name(), ": field ", Quote(name), " (", ShowJson(value),
               ") is not known for this type and may change the model's results"));
  }
  return absl::OkStatus();
}

// As transformers reads it: what stands outside comes first, except where each kind of layer has an object.
absl::StatusOr<std::optional<int64_t>> RopeTranslator::OriginalContext(const HfFields& scaling) const {
  constexpr std::string_view kField = "original_max_position_embeddings";
  if (default_local_theta_ == 0 && config_.Find(kField) != nullptr)
    return config_.Integer(kField, 2, kMaxHfPositions);
  return scaling.Integer(kField, 1, kMaxHfPositions);
}

absl::Status RopeTranslator::TranslateTheta(const HfFields* scaling) {
  KVBLEND_ASSIGN_OR_RETURN(auto theta, config_.Number("rope_theta"));
  if (scaling != nullptr && scaling->Find("rope_theta") != nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(theta, scaling->Number("rope_theta"));
  }
  theta_ = theta.value_or(model_.architecture->default_rope_theta);
  if (!theta.has_value() && theta_ == 0) return config_.Missing("rope_theta");
  if (!(theta_ > 0)) return config_.Wrong("rope_theta", "numbers above 0");
  out_.SetFloat(Key("freq_base"), theta_);
  return absl::OkStatus();
}

absl::Status RopeTranslator::TranslateRotatedShare(const HfFields* scaling) {
  KVBLEND_ASSIGN_OR_RETURN(auto share, config_.Number("partial_rotary_factor"));
  if (scaling != nullptr && scaling->Find("partial_rotary_factor") != nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(share, scaling->Number("partial_rotary_factor"));
  }
  rotated_ = model_.head_dim;
  const bool has_key = model_.architecture->architecture == "phi3";
  if (share.has_value() && !(*share > 0 && *share <= 1 && (has_key || *share == 1))) {
    return config_.NotImplemented("partial_rotary_factor", has_key ? "above 0, up to 1" : "1");
  }
  if (!has_key) return absl::OkStatus();
  rotated_ = static_cast<int64_t>(share.value_or(1) * static_cast<double>(model_.head_dim));
  if (rotated_ < 2 || rotated_ % 2 != 0) {
    return config_.Wrong("partial_rotary_factor",
                         Concat("what rotates an even number of a head's ", model_.head_dim, " elements"));
  }
  out_.SetInteger(Key("dimension_count"), static_cast<uint64_t>(rotated_));
  return absl::OkStatus();
}

absl::Status RopeTranslator::TranslateLinear(const HfFields& scaling) {
  KVBLEND_RETURN_IF_ERROR(CheckRopeFields(scaling, {"factor"}));
  KVBLEND_ASSIGN_OR_RETURN(const double factor, RequirePositive(scaling, "factor"));
  out_.SetString(Key("scaling.type"), "linear");
  out_.SetFloat(Key("scaling.factor"), factor);
  return absl::OkStatus();
}

absl::Status RopeTranslator::TranslateYarn(const HfFields& scaling) {
  KVBLEND_RETURN_IF_ERROR(CheckRopeFields(scaling, {"factor", "original_max_position_embeddings", "beta_fast",
                                                    "beta_slow", "truncate", "attention_factor"}));
  const bool whole = FindArchitecture(model_.architecture->architecture)->yarn_has_whole_bounds;
  KVBLEND_ASSIGN_OR_RETURN(const auto truncate, scaling.Bool("truncate"));
  if (truncate.value_or(true) != whole) return scaling.NotImplemented("truncate", whole ? "true" : "false");
  KVBLEND_ASSIGN_OR_RETURN(const double factor, RequirePositive(scaling, "factor"));
  KVBLEND_ASSIGN_OR_RETURN(auto original, OriginalContext(scaling));
  if (!original.has_value()) original = model_.context_length;
  // Who adds the scaling to a published configuration, as Qwen's describe it, leaves max_position_embeddings.
  const double reached = factor * static_cast<double>(*original);
  model_.context_length = std::max(
      model_.context_length, static_cast<int64_t>(std::min(reached, static_cast<double>(kMaxHfPositions))));
  out_.SetString(Key("scaling.type"), "yarn");
  out_.SetFloat(Key("scaling.factor"), factor);
  out_.SetInteger(Key("scaling.original_context_length"), static_cast<uint64_t>(*original));
  for (const std::string_view bound : {"beta_fast", "beta_slow"}) {
    if (scaling.Find(bound) == nullptr) continue;
    KVBLEND_ASSIGN_OR_RETURN(const double turns, RequirePositive(scaling, bound));
    out_.SetFloat(Key(Concat("scaling.yarn_", bound)), turns);
  }
  if (scaling.Find("attention_factor") != nullptr) {
    // GGUF files have attention_factor divided by the factor that YaRN's paper gives.
    KVBLEND_ASSIGN_OR_RETURN(const double attention, RequirePositive(scaling, "attention_factor"));
    out_.SetFloat(Key("scaling.attn_factor"), attention / (factor > 1 ? 1 + 0.1 * std::log(factor) : 1));
  }
  return absl::OkStatus();
}

// Llama 3.1's scaling: long wavelengths are slowed down by the factor, short ones stay, those between pass
// from one to the other. GGUF files have the divisors.
absl::Status RopeTranslator::TranslateLlama3(const HfFields& scaling) {
  KVBLEND_RETURN_IF_ERROR(CheckRopeFields(
      scaling, {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}));
  KVBLEND_ASSIGN_OR_RETURN(const double factor, RequirePositive(scaling, "factor"));
  KVBLEND_ASSIGN_OR_RETURN(const double low, RequirePositive(scaling, "low_freq_factor"));
  KVBLEND_ASSIGN_OR_RETURN(const double high, RequirePositive(scaling, "high_freq_factor"));
  KVBLEND_ASSIGN_OR_RETURN(const auto stated, OriginalContext(scaling));
  if (!stated.has_value()) return scaling.Missing("original_max_position_embeddings");
  const auto original = static_cast<double>(*stated);
  if (!(high > low)) return scaling.Wrong("high_freq_factor", "numbers above low_freq_factor");
  std::vector<float> divisors;
  for (int64_t i = 0; i < rotated_; i += 2) {
    const double frequency = std::pow(theta_, -static_cast<double>(i) / static_cast<double>(rotated_));
    const double turns = original * frequency / (2 * std::numbers::pi);  // in the original context
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    divisors.push_back(static_cast<float>(1 / ((1 - kept) / factor + kept)));
  }
  out_.AddVector("rope_freqs.weight", std::move(divisors));
  return absl::OkStatus();
}

absl::Status RopeTranslator::TranslateFactors(const HfFields& scaling, std::string_view field,
                                              std::string tensor) {
  const nlohmann::json* list = scaling.Find(field);
  const std::string allowed = Concat("a list of ", rotated_ / 2, " numbers above 0");
  if (list == nullptr || !list->is_array() || static_cast<int64_t>(list->size()) != rotated_ / 2) {
    return scaling.Wrong(field, allowed);
  }
  std::vector<float> factors;
  for (const nlohmann::json& factor : *list) {
    if (!factor.is_number() || !(factor.get<double>() > 0)) return scaling.Wrong(field, allowed);
    factors.push_back(factor.get<float>());
  }
  out_.AddVector(std::move(tensor), std::move(factors));
  return absl::OkStatus();
}

absl::Status RopeTranslator::TranslateLongRope(const HfFields& scaling) {
  KVBLEND_RETURN_IF_ERROR(CheckRopeFields(
      scaling, {"long_factor", "short_factor", "factor", "original_max_position_embeddings"}));
  KVBLEND_ASSIGN_OR_RETURN(const auto original, OriginalContext(scaling));
  if (!original.has_value()) return config_.Missing("original_max_position_embeddings");
  KVBLEND_RETURN_IF_ERROR(TranslateFactors(scaling, "long_factor", "rope_factors_long.weight"));
  KVBLEND_RETURN_IF_ERROR(TranslateFactors(scaling, "short_factor", "rope_factors_short.weight"));
  double stretch = static_cast<double>(model_.context_length) / static_cast<double>(*original);
  if (scaling.Find("factor") != nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(stretch, RequirePositive(scaling, "factor"));
  }
  const double attention =
      stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(static_cast<double>(*original)));
  out_.SetFloat(Key("scaling.attn_factor"), attention);
  out_.SetInteger(Key("scaling.original_context_length"), static_cast<uint64_t>(*original));
  return absl::OkStatus();
}

absl::Status RopeTranslator::TranslateScaling(const HfFields& scaling) {
  KVBLEND_ASSIGN_OR_RETURN(auto type, scaling.Text("rope_type"));
  if (!type.has_value()) {
    KVBLEND_ASSIGN_OR_RETURN(type, scaling.Text("type"));  // as older files call it
  }
  if (!type.has_value() || *type == "default") return CheckRopeFields(scaling, {});
  // Phi's "yarn" is LongRoPE to transformers, as "su" is.
  const bool is_phi = model_.architecture->architecture == "phi3";
  if (is_phi && (*type == "longrope" || *type == "su" || *type == "yarn")) return TranslateLongRope(scaling);
  if (!is_phi && *type == "linear") return TranslateLinear(scaling);
  if (!is_phi && *type == "llama3") return TranslateLlama3(scaling);
  if (!is_phi && *type == "yarn") return TranslateYarn(scaling);
  return scaling.NotImplemented(scaling.Find("rope_type") != nullptr ? "rope_type" : "type",
                                is_phi ? "default, longrope, su, yarn" : "default, linear, llama3, yarn");
}

// rope_parameters, or rope_scaling as it was called before; nullptr without either. Files that were edited
// have both: they must say the same, as which one counts depends on who reads them.
absl::StatusOr<const nlohmann::json*> RopeTranslator::FindScaling(std::string_view& field) const {
  const nlohmann::json* found = nullptr;
  for (const std::string_view name : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* object = config_.Find(name);
    if (object == nullptr) continue;
    if (!object->is_object()) return config_.Wrong(name, "an object");
    if (object->empty()) continue;
    if (found == nullptr) {
      std::tie(found, field) = std::pair{object, name};
      continue;
    }
    const nlohmann::json& other = found->contains("full_attention") ? (*found)["full_attention"] : *found;
    for (const auto& [member, value] : object->items()) {
      const std::string its_name = member == "type" && !other.contains(member) ? "rope_type" : member;
      if (value.is_null() || (other.is_object() && other.value(its_name, nlohmann::json()) == value))
        continue;
      return config_.Wrong(name, Concat("none beside '", field, "', or what that says"));
    }
  }
  return found;
}

// The part of layers that see everything, of an object for each kind of layer; other objects as they are.
absl::StatusOr<const nlohmann::json*> RopeTranslator::SplitByLayer(const nlohmann::json& object,
                                                                   std::string& name) {
  if (!object.contains("full_attention") && !object.contains("sliding_attention")) return &object;
  const bool by_layer = default_local_theta_ > 0;
  for (const auto& [kind, value] : object.items()) {
    const bool is_known = kind == "full_attention" || kind == "sliding_attention";
    if (is_known && by_layer && value.is_object() && object.contains("full_attention")) continue;
    return absl::UnimplementedError(Concat(name, " is ", ShowJson(object), "; allowed: ",
                                           by_layer
                                               ? "an object each for 'full_attention' and 'sliding_attention'"
                                               : "one object for all layers"));
  }
  if (const auto local = object.find("sliding_attention"); local != object.end()) {
    const HfFields fields(*local, Concat(name, ".sliding_attention"));
    if (fields.Find("rope_theta") != nullptr) {
      KVBLEND_ASSIGN_OR_RETURN(local_theta_, RequirePositive(fields, "rope_theta"));
    }
    KVBLEND_ASSIGN_OR_RETURN(const auto type, fields.Text("rope_type"));
    if (type.has_value() && *type != "default") return fields.NotImplemented("rope_type", "default");
    KVBLEND_RETURN_IF_ERROR(CheckRopeFields(fields, {}));
  }
  name += ".full_attention";
  return &object["full_attention"];
}

absl::Status RopeTranslator::Translate() {
  KVBLEND_ASSIGN_OR_RETURN(const auto context,
                           config_.Integer("max_position_embeddings", 1, kMaxHfPositions));
  if (!context.has_value()) return config_.Missing("max_position_embeddings");
  model_.context_length = *context;
  if (config_.Find("rope_local_base_freq") != nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(local_theta_, RequirePositive(config_, "rope_local_base_freq"));
  }
  std::string_view field = "rope_scaling";
  KVBLEND_ASSIGN_OR_RETURN(const nlohmann::json* object, FindScaling(field));
  if (object == nullptr) {
    if (model_.architecture->states_rope_scaling) return config_.Missing(field);
    KVBLEND_RETURN_IF_ERROR(TranslateTheta(nullptr));
    KVBLEND_RETURN_IF_ERROR(TranslateRotatedShare(nullptr));
  } else {
    std::string name = Concat(config_.name(), ": ", field);
    KVBLEND_ASSIGN_OR_RETURN(object, SplitByLayer(*object, name));
    const HfFields scaling(*object, std::move(name));
    KVBLEND_RETURN_IF_ERROR(TranslateTheta(&scaling));
    KVBLEND_RETURN_IF_ERROR(TranslateRotatedShare(&scaling));
    KVBLEND_RETURN_IF_ERROR(TranslateScaling(scaling));
  }
  if (local_theta_.value_or(default_local_theta_) != default_local_theta_) {
    out_.SetFloat(Key("freq_base_swa"), *local_theta_);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TranslateHfRope(const HfFields& config, HfModel& model, TranslatedModel& out) {
  return RopeTranslator(config, model, out).Translate();
}

}  // namespace kvblend::model
