#include "server/cli/bench/bench_spec.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

bool HasRatio(v1::Policy policy) {
  return policy == v1::POLICY_QUERY || policy == v1::POLICY_HKVD || policy == v1::POLICY_RANDOM;
}

bool Contains(const std::vector<BenchMode>& modes, BenchMode mode) {
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

/// `variant` with the policy and each of the ratios and numbers of voting layers that make a difference for
/// it.
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

absl::Status BadRow(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "row '", name, "': ", what,
      "; allowed: full, prefix, cacheblend, or reuse or a policy, with :RATIO, :N-layers, :isolated, "
      ":uncorrected, :unspread behind it"));
}

/// What stands behind a ':' in the name of a row.
absl::Status ParsePart(const std::string& name, const std::string& part, BenchVariant& variant) {
  if (part == "isolated") {
    variant.anchoring = v1::ANCHORING_ISOLATED;
  } else if (part == "uncorrected") {
    variant.correction = false;
  } else if (part == "unspread" && variant.mode == BenchMode::kBlend) {
    variant.spread = false;
  } else if (part.ends_with("-layers")) {
    if (variant.policy != v1::POLICY_QUERY) return BadRow(name, "only policy query has layers that vote");
    if (!absl::SimpleAtoi(part.substr(0, part.find('-')), &variant.query_layers) ||
        variant.query_layers < 1) {
      return BadRow(name, absl::StrCat("'", part, "' is no number of layers"));
    }
  } else if (!HasRatio(*variant.policy)) {
    return BadRow(name, absl::StrCat("'", part, "' makes no difference here"));
  } else {
    const auto ratio = ParseBenchRatio(part);
    if (!ratio.ok()) return BadRow(name, std::string(ratio.status().message()));
    variant.ratio = *ratio;
  }
  return absl::OkStatus();
}

}  // namespace

BenchVariant CacheBlendAsPublished() {
  return {.mode = BenchMode::kBlend,
          .policy = v1::POLICY_HKVD,
          .ratio = 0.15,
          .anchoring = v1::ANCHORING_ISOLATED,
          .correction = false,
          .spread = false};
}

absl::StatusOr<BenchVariant> ParseRow(const std::string& name) {
  if (name == "full") return BenchVariant{.mode = BenchMode::kFull};
  if (name == "prefix") return BenchVariant{.mode = BenchMode::kPrefix};
  if (name == "cacheblend") return CacheBlendAsPublished();
  const std::vector<std::string> parts = absl::StrSplit(name, ':');
  BenchVariant variant{.mode = BenchMode::kBlend};
  if (parts.front() == "reuse") {
    variant.mode = BenchMode::kReuse;
    variant.policy = v1::POLICY_NONE;
  } else {
    const auto policy = kvblend::ParseName<Policy>("policy", parts.front());
    if (!policy.ok()) return BadRow(name, absl::StrCat("'", parts.front(), "' is not known"));
    variant.policy = ToWire<v1::Policy>(*policy);
  }
  for (size_t i = 1; i < parts.size(); ++i) KVBLEND_RETURN_IF_ERROR(ParsePart(name, parts[i], variant));
  if (HasRatio(*variant.policy) && !variant.ratio) return BadRow(name, "needs a ratio");
  return variant;
}

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
  options.set_share_prefix(false);  // nor find what the last one has left
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
  if (!spread) options.set_spread_deviation(false);
  return options;
}

std::string BenchVariant::Label() const {
  std::string label(kvblend::Name(mode));
  if (mode == BenchMode::kBlend && policy) absl::StrAppend(&label, " ", Name(*policy));
  if (query_layers > 0) absl::StrAppend(&label, " by ", query_layers, " layers");
  if (ratio) absl::StrAppend(&label, " ", RatioName(*ratio));
  if (policy) absl::StrAppend(&label, " ", Name(anchoring));
  if (!correction) absl::StrAppend(&label, " uncorrected");
  if (!spread) absl::StrAppend(&label, " unspread");
  return label;
}

std::string BenchVariant::RowName() const {
  if (mode == BenchMode::kFull || mode == BenchMode::kPrefix) return std::string(kvblend::Name(mode));
  if (*this == CacheBlendAsPublished()) return "cacheblend";
  std::string name = mode == BenchMode::kReuse ? "reuse" : Name(*policy);
  if (ratio) absl::StrAppend(&name, ":", RatioName(*ratio));
  if (query_layers > 0) absl::StrAppend(&name, ":", query_layers, "-layers");
  if (anchoring == v1::ANCHORING_ISOLATED) name += ":isolated";
  if (!correction) name += ":uncorrected";
  if (!spread) name += ":unspread";
  return name;
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

absl::StatusOr<BenchMeasures> ParseMeasures(const std::vector<std::string>& names) {
  BenchMeasures measures{.ttft = false, .kl = false, .nll = false, .f1 = false};
  for (const std::string& name : names) {
    bool* measure = name == "ttft"  ? &measures.ttft
                    : name == "kl"  ? &measures.kl
                    : name == "nll" ? &measures.nll
                    : name == "f1"  ? &measures.f1
                                    : nullptr;
    if (measure == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown measure '", name, "'; allowed: ttft, kl, nll, f1"));
    }
    *measure = true;
  }
  return measures;
}

bool BenchOptions::HasFull() const {
  return std::any_of(variants.begin(), variants.end(),
                     [](const BenchVariant& variant) { return variant.mode == BenchMode::kFull; });
}

}  // namespace kvblend::server::cli
