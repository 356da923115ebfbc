#include "engine/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/model/key_reader.h"
#include "engine/model/model_tensors.h"

namespace kvblend::model {
namespace {

constexpr double kMaxFactor = 1e6;

absl::Status Refuse(const GgufFile& file, std::string_view what) {
  return absl::InvalidArgumentError(Concat(file.name(), ": ", what));
}

/// What the keys say, before any frequency is computed.
struct Scaling {
  enum class Type : uint8_t { kNone, kLinear, kYarn, kLongRope } type = Type::kNone;
  double factor = 1;
  double attention_factor = 1;
  int32_t original_context_length = 0;
  double beta_fast = 32, beta_slow = 1;
  bool has_whole_bounds = true;  // Architecture::yarn_has_whole_bounds
};

absl::StatusOr<Scaling::Type> TypeOf(const GgufFile& file, const Architecture& architecture,
                                     KeyReader& keys) {
  // Writers leave the type out when they mean linear.
  const std::string name = keys.StringOr("rope.scaling.type", "linear");
  KVBLEND_RETURN_IF_ERROR(keys.status());
  if (name == "none") return Scaling::Type::kNone;
  if (name == "linear") return Scaling::Type::kLinear;
  if (name == "yarn") return Scaling::Type::kYarn;
  if (name == "longrope" && architecture.reads_long_rope) return Scaling::Type::kLongRope;
  return absl::UnimplementedError(
      Concat(file.name(), ": key '", keys.Key("rope.scaling.type"), "' is ", Quote(name),
             ", which is not implemented; allowed: 'none', 'linear', 'yarn'",
             architecture.reads_long_rope ? ", 'longrope'"
                                          : " (llama3 scaling is stored as the tensor rope_freqs.weight)"));
}

absl::StatusOr<Scaling> ReadScaling(const GgufFile& file, const Architecture& architecture,
                                    const RopeShape& shape) {
  KeyReader keys(file, std::string(architecture.name) + ".");
  Scaling scaling;
  scaling.has_whole_bounds = architecture.yarn_has_whole_bounds;
  KVBLEND_ASSIGN_OR_RETURN(scaling.type, TypeOf(file, architecture, keys));
  const std::string type_key = keys.Key("rope.scaling.type"), factor_key = keys.Key("rope.scaling.factor");
  const std::string old_key = keys.Key("rope.scale_linear");  // before scaling had a type
  const double old_factor = keys.FloatOr("rope.scale_linear", 0, kMaxFactor, 1);
  scaling.factor = keys.FloatOr("rope.scaling.factor", 0, kMaxFactor, old_factor);
  scaling.attention_factor = keys.FloatOr("rope.scaling.attn_factor", 0, kMaxFactor, 1);
  scaling.original_context_length =
      keys.IntegerOr("rope.scaling.original_context_length", 1, int64_t{1} << 24, shape.context_length);
  scaling.beta_fast = keys.FloatOr("rope.scaling.yarn_beta_fast", 0, kMaxFactor, 32);
  scaling.beta_slow = keys.FloatOr("rope.scaling.yarn_beta_slow", 0, kMaxFactor, 1);
  KVBLEND_RETURN_IF_ERROR(keys.status());

  if (keys.Has("rope.scale_linear") && scaling.factor != old_factor) {
    return Refuse(file, Concat("key '", factor_key, "' is ", scaling.factor, " and '", old_key, "' is ",
                               old_factor, "; allowed: equal values"));
  }
  if (scaling.type == Scaling::Type::kNone && scaling.factor != 1) {
    return Refuse(file, Concat("key '", factor_key, "' is ", scaling.factor, " although '", type_key,
                               "' is 'none'; allowed: 1"));
  }
  const bool needs_factor = scaling.type == Scaling::Type::kLinear || scaling.type == Scaling::Type::kYarn;
  if (keys.Has("rope.scaling.type") && needs_factor && !keys.Has("rope.scaling.factor") &&
      !keys.Has("rope.scale_linear")) {
    return Refuse(file, Concat("key '", factor_key, "' is missing although '", type_key, "' is '",
                               scaling.type == Scaling::Type::kYarn ? "yarn" : "linear", "'"));
  }
  const bool has_temperature = scaling.type == Scaling::Type::kYarn || architecture.reads_long_rope;
  if (!has_temperature && scaling.attention_factor != 1) {
    return absl::UnimplementedError(Concat(file.name(), ": key '", keys.Key("rope.scaling.attn_factor"),
                                           "' is ", scaling.attention_factor, "; allowed without YaRN: 1"));
  }
  return scaling;
}

// Divisors of the frequencies, one for every rotated pair; ones when there is no such tensor.
absl::StatusOr<std::vector<float>> ReadDivisors(const GgufFile& file, std::string_view name, int32_t pairs) {
  std::vector<float> divisors(pairs, 1.0f);
  if (file.FindTensor(name) == nullptr) return divisors;
  KVBLEND_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file, name, 1, pairs));
  KVBLEND_RETURN_IF_ERROR(tensor->ReadRow(0, absl::MakeSpan(divisors)));
  for (int32_t i = 0; i < pairs; ++i) {
    if (!(std::isfinite(divisors[i]) && divisors[i] > 0)) {
      return Refuse(file, Concat("tensor '", name, "' holds ", divisors[i], " at index ", i,
                                 "; allowed: positive finite numbers"));
    }
  }
  return divisors;
}

double Frequency(const RopeShape& shape, int32_t pair) {
  return std::pow(static_cast<double>(shape.freq_base), -2.0 * pair / shape.rotated_dims);
}

// How much of the interpolated frequency pair i gets: 0 for pairs that turn more than beta_fast times in the
// original context, 1 for those that turn less than beta_slow times, linear in between (YaRN, 3.2).
double YarnShare(const Scaling& scaling, const RopeShape& shape, int32_t pair) {
  const auto pair_that_turns = [&](double turns) {
    return shape.rotated_dims * std::log(scaling.original_context_length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(static_cast<double>(shape.freq_base)));
  };
  double low = pair_that_turns(scaling.beta_fast), high = pair_that_turns(scaling.beta_slow);
  if (scaling.has_whole_bounds) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, shape.rotated_dims - 1.0);
  return std::clamp((pair - low) / std::max(high - low, 0.001), 0.0, 1.0);
}

absl::StatusOr<std::vector<float>> Frequencies(const GgufFile& file, const Scaling& scaling,
                                               const RopeShape& shape, absl::Span<const float> divisors) {
  std::vector<float> inv_freq(shape.head_dim / 2, 0.0f);
  for (int32_t i = 0; i < shape.rotated_dims / 2; ++i) {
    double frequency = Frequency(shape, i) / static_cast<double>(divisors[i]);
    if (scaling.type == Scaling::Type::kLinear) frequency /= scaling.factor;
    if (scaling.type == Scaling::Type::kYarn) {
      const double share = YarnShare(scaling, shape, i);
      frequency = frequency / scaling.factor * share + frequency * (1 - share);
    }
    inv_freq[i] = static_cast<float>(frequency);
    if (!std::isfinite(inv_freq[i])) {
      return Refuse(file, Concat("the RoPE frequency of pair ", i, " is not a finite number"));
    }
  }
  return inv_freq;
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRopeConfig(const GgufFile& file, const Architecture& architecture,
                                          const RopeShape& shape) {
  KVBLEND_ASSIGN_OR_RETURN(const Scaling scaling, ReadScaling(file, architecture, shape));
  const int32_t pairs = shape.rotated_dims / 2;
  RopeConfig rope;
  rope.original_context_length = scaling.original_context_length;
  const bool has_long =
      architecture.reads_long_rope && file.FindTensor("rope_factors_long.weight") != nullptr;
  KVBLEND_ASSIGN_OR_RETURN(
      const std::vector<float> divisors,
      ReadDivisors(file, has_long ? "rope_factors_short.weight" : "rope_freqs.weight", pairs));
  KVBLEND_ASSIGN_OR_RETURN(rope.inv_freq, Frequencies(file, scaling, shape, divisors));
  if (has_long) {
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> long_divisors,
                             ReadDivisors(file, "rope_factors_long.weight", pairs));
    KVBLEND_ASSIGN_OR_RETURN(rope.long_inv_freq, Frequencies(file, scaling, shape, long_divisors));
  }
  rope.magnitude = static_cast<float>(scaling.attention_factor);
  // YaRN, 3.4: the temperature of the softmax, moved into the rotation of both Q and K.
  if (scaling.type == Scaling::Type::kYarn && scaling.factor > 1) {
    rope.magnitude = static_cast<float>(scaling.attention_factor * (1 + 0.1 * std::log(scaling.factor)));
  }
  return rope;
}

RopeConfig PlainRope(const RopeShape& shape) {
  RopeConfig rope = NoRope(shape);
  for (int32_t i = 0; i < shape.rotated_dims / 2; ++i)
    rope.inv_freq[i] = static_cast<float>(Frequency(shape, i));
  return rope;
}

RopeConfig NoRope(const RopeShape& shape) {
  return {.inv_freq = std::vector<float>(shape.head_dim / 2, 0.0f),
          .long_inv_freq = {},
          .original_context_length = shape.context_length};
}

std::vector<int32_t> RotationOrder(kernels::RopeLayout layout, const RopeShape& shape) {
  if (layout == kernels::RopeLayout::kInterleaved || shape.rotated_dims == shape.head_dim) return {};
  const int32_t half = shape.head_dim / 2, rotated_half = shape.rotated_dims / 2;
  std::vector<int32_t> order(shape.head_dim);
  for (int32_t i = 0; i < half; ++i) {
    const bool rotated = i < rotated_half;
    order[i] = rotated ? i : rotated_half + i;
    order[half + i] = rotated ? rotated_half + i : half + i;
  }
  return order;
}

}  // namespace kvblend::model
