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
  return options;
}

std::string BenchVariant::Label() const {
  std::string label(kvblend::Name(mode));
  if (mode == BenchMode::kBlend && policy) absl::StrAppend(&label, " ", Name(*policy));
  if (query_layers > 0) absl::StrAppend(&label, " by ", query_layers, " layers");
  if (ratio) absl::StrAppend(&label, " ", RatioName(*ratio));
  if (policy) absl::StrAppend(&label, " ", Name(anchoring));
  return label;
}

absl::StatusOr<std::vector<BenchVariant>> MakeVariants(const std::vector<BenchMode>& modes,
                                                       const std::vector<v1::Policy>& policies,
                                                       const std::vector<BenchRatio>& ratios,
                                                       const std::vector<v1::Anchoring>& anchorings,
                                                       const std::vector<int32_t>& query_layers) {
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
  for (const v1::Anchoring anchoring : anchorings) {
    if (Contains(modes, BenchMode::kReuse)) {
      variants.push_back({.mode = BenchMode::kReuse, .policy = v1::POLICY_NONE, .anchoring = anchoring});
    }
    if (!blends) continue;
    for (const v1::Policy policy : policies) {
      BenchVariant variant{.mode = BenchMode::kBlend, .policy = policy, .anchoring = anchoring};
      if (!HasRatio(policy)) {
        variants.push_back(variant);
        continue;
      }
      if (ratios.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("policy ", Name(policy), " needs a ratio"));
      }
      for (const int32_t layers : policy == v1::POLICY_QUERY ? query_layers : std::vector<int32_t>{0}) {
        variant.query_layers = layers;
        for (const BenchRatio& ratio : ratios) {
          variant.ratio = ratio;
          variants.push_back(variant);
        }
      }
    }
  }
  return variants;
}

}  // namespace kvblend::server::cli
