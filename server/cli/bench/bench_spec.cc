#include "server/cli/bench/bench_spec.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

bool HasRatio(v1::Policy policy) {
  return policy == v1::POLICY_QUERY || policy == v1::POLICY_HKVD || policy == v1::POLICY_RANDOM;
}

bool Contains(const std::vector<BenchMode>& modes, BenchMode mode) {
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

/// `variant` with the policy and each of the ratios and numbers of voting layers that make a difference for it.
void AddBlends(v1::Policy policy, const std::vector<BenchRatio>& ratios,
               const std::vector<int32_t>& query_layers, BenchVariant variant,
               std::vector<BenchVariant>& variants) {
  variant.policy = policy;
  if (!HasRatio(policy)) return variants.push_back(variant);
  for (const int32_t layers : policy == v1::POLICY_QUERY ? query_layers : std::vector<int32_t>{0}) {
    variant.query_layers = layers;
    for (const BenchRatio& ratio : ratios) {
      variant.ratio = ratio;
      variants.push_back(variant);
    }
  }
}

}  // namespace

NameTable<BenchMode> NamesOf(BenchMode) {
  static constexpr NamedValue<BenchMode> kModes[] = {{BenchMode::kFull, "full"},
                                                     {BenchMode::kPrefix, "prefix"},
                                                     {BenchMode::kReuse, "reuse"},
                                                     {BenchMode::kBlend, "blend"}};
  return kModes;
}

absl::StatusOr<BenchRatio> ParseBenchRatio(std::string_view text) {
  if (text == "auto") return kAutoRatio;
  double ratio = 0;
  if (!absl::SimpleAtod(std::string(text), &ratio) || !(ratio >= 0 && ratio <= 1)) {  // also refuses NaN
    return absl::InvalidArgumentError(
        absl::StrCat("ratio is '", std::string(text), "'; allowed: 0 to 1, or auto"));
  }
  return ratio;
}

std::string RatioName(const BenchRatio& ratio) { return ratio ? absl::StrCat(*ratio) : "auto"; }

v1::BlendOptions BenchVariant::blend_options() const {
  v1::BlendOptions options;
  options.set_anchoring(anchoring);
  options.set_store_misses(false);  // a measurement must not change what the next one finds
  options.set_reuse(mode == BenchMode::kFull     ? v1::REUSE_NOTHING
                    : mode == BenchMode::kPrefix ? v1::REUSE_PREFIX
                                                 : v1::REUSE_CHUNKS);
  if (policy) options.set_policy(*policy);
  if (ratio) {
    options.set_ratio_mode(*ratio == kAutoRatio ? v1::RATIO_MODE_AUTO : v1::RATIO_MODE_FIXED);
    if (*ratio != kAutoRatio) options.set_ratio(**ratio);
  }
  options.set_query_layers(query_layers);
  if (!correction) options.set_correction(false);
  return options;
}

std::string BenchVariant::Label() const {
  std::string label(kvblend::Name(mode));
  if (mode == BenchMode::kBlend && policy) absl::StrAppend(&label, " ", Name(*policy));
  if (query_layers > 0) absl::StrAppend(&label, " by ", query_layers, " layers");
  if (ratio) absl::StrAppend(&label, " ", RatioName(*ratio));
  if (policy) absl::StrAppend(&label, " ", Name(anchoring));
  if (!correction) absl::StrAppend(&label, " uncorrected");
  return label;
}

absl::StatusOr<std::vector<BenchVariant>> MakeVariants(const std::vector<BenchMode>& modes,
                                                       const std::vector<v1::Policy>& policies,
                                                       const std::vector<BenchRatio>& ratios,
                                                       const std::vector<v1::Anchoring>& anchorings,
                                                       const std::vector<int32_t>& query_layers,
                                                       const std::vector<bool>& corrections) {
  if (modes.empty()) return absl::InvalidArgumentError("no modes; allowed: full, prefix, reuse, blend");
  if (anchorings.empty()) return absl::InvalidArgumentError("no anchoring; allowed: anchored, isolated");
  const bool blends = Contains(modes, BenchMode::kBlend);
  if (blends && policies.empty()) return absl::InvalidArgumentError("mode blend needs at least one policy");
  for (const BenchRatio& ratio : ratios) {
    if (ratio && !(*ratio >= 0 && *ratio <= 1)) {  // also refuses NaN
      return absl::InvalidArgumentError(absl::StrCat("ratio is ", *ratio, "; allowed: 0 to 1, or auto"));
    }
  }
  std::vector<BenchVariant> variants;
  if (Contains(modes, BenchMode::kFull)) variants.push_back({.mode = BenchMode::kFull});
  if (Contains(modes, BenchMode::kPrefix)) variants.push_back({.mode = BenchMode::kPrefix});
  for (const v1::Policy policy : policies) {
    if (!blends || !HasRatio(policy) || !ratios.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("policy ", Name(policy), " needs a ratio"));
  }
  for (const v1::Anchoring anchoring : anchorings) {
    for (const bool correction : corrections) {
      BenchVariant variant{.anchoring = anchoring, .correction = correction};
      if (Contains(modes, BenchMode::kReuse)) {
        variant.mode = BenchMode::kReuse;
        variant.policy = v1::POLICY_NONE;
        variants.push_back(variant);
      }
      variant.mode = BenchMode::kBlend;
      for (const v1::Policy policy : blends ? policies : std::vector<v1::Policy>()) {
        AddBlends(policy, ratios, query_layers, variant, variants);
      }
    }
  }
  return variants;
}

}  // namespace kvblend::server::cli
