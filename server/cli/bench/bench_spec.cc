#include "server/cli/bench/bench_spec.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/api/engine.h"

namespace kvblend::server::cli {
namespace {

bool HasRatio(Policy policy) {
  return policy == Policy::kQuery || policy == Policy::kHkvd || policy == Policy::kRandom;
}

bool Contains(const std::vector<BenchMode>& modes, BenchMode mode) {
  return std::find(modes.begin(), modes.end(), mode) != modes.end();
}

}  // namespace

std::string_view Name(BenchMode mode) {
  switch (mode) {
    case BenchMode::kFull:
      return "full";
    case BenchMode::kPrefix:
      return "prefix";
    case BenchMode::kReuse:
      return "reuse";
    case BenchMode::kBlend:
      return "blend";
  }
  return "unknown";
}

absl::StatusOr<BenchMode> ParseBenchMode(std::string_view name) {
  for (const BenchMode mode : {BenchMode::kFull, BenchMode::kPrefix, BenchMode::kReuse, BenchMode::kBlend}) {
    if (name == Name(mode)) return mode;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown mode '", std::string(name), "'; allowed: full, prefix, reuse, blend"));
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

std::string Name(const BenchRatio& ratio) { return ratio ? absl::StrCat(*ratio) : "auto"; }

BlendOptions BenchVariant::blend_options() const {
  BlendOptions options;
  options.anchoring = anchoring;
  options.store_misses = false;  // a measurement must not change what the next one finds
  switch (mode) {
    case BenchMode::kFull:
      options.reuse = Reuse::kNothing;
      break;
    case BenchMode::kPrefix:
      options.reuse = Reuse::kPrefix;
      break;
    case BenchMode::kReuse:
    case BenchMode::kBlend:
      options.reuse = Reuse::kChunks;
      break;
  }
  if (policy) options.policy = *policy;
  if (ratio) {
    options.ratio_mode = *ratio == kAutoRatio ? RatioMode::kAuto : RatioMode::kFixed;
    options.ratio = *ratio;
  }
  options.query_layers = query_layers;
  return options;
}

std::string BenchVariant::Label() const {
  std::string label(Name(mode));
  if (mode == BenchMode::kBlend && policy) label.append(" ").append(kvblend::Name(*policy));
  if (query_layers > 0) absl::StrAppend(&label, " by ", query_layers, " layers");
  if (ratio) absl::StrAppend(&label, " ", Name(*ratio));
  if (policy) label.append(" ").append(kvblend::Name(anchoring));
  return label;
}

absl::StatusOr<std::vector<BenchVariant>> MakeVariants(const std::vector<BenchMode>& modes,
                                                       const std::vector<Policy>& policies,
                                                       const std::vector<BenchRatio>& ratios,
                                                       const std::vector<Anchoring>& anchorings,
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
  for (const Anchoring anchoring : anchorings) {
    if (Contains(modes, BenchMode::kReuse)) {
      variants.push_back({.mode = BenchMode::kReuse, .policy = Policy::kNone, .anchoring = anchoring});
    }
    if (!blends) continue;
    for (const Policy policy : policies) {
      BenchVariant variant{.mode = BenchMode::kBlend, .policy = policy, .anchoring = anchoring};
      if (!HasRatio(policy)) {
        variants.push_back(variant);
        continue;
      }
      if (ratios.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("policy ", std::string(kvblend::Name(policy)), " needs a ratio"));
      }
      for (const int32_t layers : policy == Policy::kQuery ? query_layers : std::vector<int32_t>{0}) {
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
