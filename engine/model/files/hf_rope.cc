// TranslateHfRope: the fields about rotary position embeddings.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "engine/model/architecture.h"
#include "engine/model/files/hf_config.h"
#include "engine/model/files/json_text.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr double kGemmaLocalTheta = 10000;  // what readers of GGUF files take for layers with a window
constexpr int64_t kMaxHfPositions = int64_t{1} << 31;

class RopeTranslator {
 public:
  RopeTranslator(const HfFields& config, const HfModel& model, TranslatedModel& out)
      : config_(config), model_(model), out_(out) {}

  absl::Status Translate();

 private:
  std::string Key(std::string_view name) const {
    return Concat(model_.architecture->architecture, ".rope.", name);
  }
  absl::Status CheckLocal(const HfFields& fields, std::string_view theta_field) const;
  absl::Status TranslateTheta(const HfFields* scaling);
  absl::Status TranslateRotatedShare(const HfFields* scaling);
  absl::Status TranslateScaling(const HfFields& scaling);
  absl::Status TranslateLinear(const HfFields& scaling);
  absl::Status TranslateYarn(const HfFields& scaling);
  absl::Status TranslateLlama3(const HfFields& scaling);
  absl::Status TranslateLongRope(const HfFields& scaling);
  absl::Status TranslateFactors(const HfFields& scaling, std::string_view field, std::string tensor);

  const HfFields& config_;
  const HfModel& model_;
  TranslatedModel& out_;
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

absl::Status RopeTranslator::CheckLocal(const HfFields& fields, std::string_view theta_field) const {
  KVBLEND_ASSIGN_OR_RETURN(const auto theta, fields.Number(theta_field));
  if (!theta.has_value() || *theta == kGemmaLocalTheta) return absl::OkStatus();
  return fields.NotImplemented(theta_field, Concat(kGemmaLocalTheta));
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
  if (scaling != nullptr && !share.has_value()) {
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
  KVBLEND_ASSIGN_OR_RETURN(auto original,
                           scaling.Integer("original_max_position_embeddings", 1, kMaxHfPositions));
  if (!original.has_value()) {
    KVBLEND_ASSIGN_OR_RETURN(original, config_.Integer("max_position_embeddings", 1, kMaxHfPositions));
  }
  if (!original.has_value()) return config_.Missing("max_position_embeddings");
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
  KVBLEND_ASSIGN_OR_RETURN(const double original,
                           RequirePositive(scaling, "original_max_position_embeddings"));
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
  KVBLEND_ASSIGN_OR_RETURN(const auto context,
                           config_.Integer("max_position_embeddings", 1, kMaxHfPositions));
  KVBLEND_ASSIGN_OR_RETURN(auto original,
                           config_.Integer("original_max_position_embeddings", 2, kMaxHfPositions));
  if (!original.has_value()) {
    KVBLEND_ASSIGN_OR_RETURN(original,
                             scaling.Integer("original_max_position_embeddings", 2, kMaxHfPositions));
  }
  if (!original.has_value()) return config_.Missing("original_max_position_embeddings");
  KVBLEND_RETURN_IF_ERROR(TranslateFactors(scaling, "long_factor", "rope_factors_long.weight"));
  KVBLEND_RETURN_IF_ERROR(TranslateFactors(scaling, "short_factor", "rope_factors_short.weight"));
  double stretch = static_cast<double>(*context) / static_cast<double>(*original);
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
  if (*type == "linear") return TranslateLinear(scaling);
  if (*type == "llama3") return TranslateLlama3(scaling);
  if (*type == "yarn") return TranslateYarn(scaling);
  const bool is_phi = model_.architecture->architecture == "phi3";
  if (is_phi && (*type == "longrope" || *type == "su")) return TranslateLongRope(scaling);
  return scaling.NotImplemented(
      scaling.Find("rope_type") != nullptr ? "rope_type" : "type",
      is_phi ? "default, linear, llama3, yarn, longrope, su" : "default, linear, llama3, yarn");
}

absl::Status RopeTranslator::Translate() {
  KVBLEND_RETURN_IF_ERROR(CheckLocal(config_, "rope_local_base_freq"));
  const bool is_new = config_.Find("rope_parameters") != nullptr;
  const std::string_view field = is_new ? "rope_parameters" : "rope_scaling";
  const nlohmann::json* object = config_.Find(field);
  if (object == nullptr) {
    KVBLEND_RETURN_IF_ERROR(TranslateTheta(nullptr));
    return TranslateRotatedShare(nullptr);
  }
  if (!object->is_object()) return config_.Wrong(field, "an object");
  std::string name = Concat(config_.name(), ": ", field);
  // One object for each kind of layer.
  if (object->contains("full_attention")) {
    for (const auto& [kind, value] : object->items()) {
      const bool is_known = kind == "full_attention" || kind == "sliding_attention";
      if (!is_known || !value.is_object()) {
        return config_.Wrong(field, "an object each for 'full_attention' and 'sliding_attention'");
      }
    }
    if (const auto local = object->find("sliding_attention"); local != object->end()) {
      const HfFields fields(*local, Concat(name, ".sliding_attention"));
      KVBLEND_RETURN_IF_ERROR(CheckLocal(fields, "rope_theta"));
      KVBLEND_ASSIGN_OR_RETURN(const auto type, fields.Text("rope_type"));
      if (type.has_value() && *type != "default") return fields.NotImplemented("rope_type", "default");
      KVBLEND_RETURN_IF_ERROR(CheckRopeFields(fields, {}));
    }
    name += ".full_attention";
    object = &(*object)["full_attention"];
  }
  const HfFields scaling(*object, std::move(name));
  KVBLEND_RETURN_IF_ERROR(TranslateTheta(&scaling));
  KVBLEND_RETURN_IF_ERROR(TranslateRotatedShare(&scaling));
  return TranslateScaling(scaling);
}

}  // namespace

absl::Status TranslateHfRope(const HfFields& config, const HfModel& model, TranslatedModel& out) {
  return RopeTranslator(config, model, out).Translate();
}

}  // namespace kvblend::model
