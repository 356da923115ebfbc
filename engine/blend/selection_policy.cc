#include "engine/blend/selection_policy.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::blend {
namespace {

int32_t ShareOf(double ratio, int32_t num_tokens) {
  return static_cast<int32_t>(std::llround(ratio * static_cast<double>(num_tokens)));
}

/// `query` and `hkvd`: the tokens that were measured highest.
class MeasuredPolicy final : public SelectionPolicy {
 public:
  MeasuredPolicy(Policy policy, double ratio, const Requirement& requirement)
      : policy_(policy), ratio_(ratio), requirement_(requirement) {}
  Policy policy() const override { return policy_; }
  Requirement requirement() const override { return requirement_; }
  int32_t Budget(const Candidates& candidates) const override {
    return ShareOf(ratio_, candidates.num_tokens);
  }
  absl::StatusOr<std::vector<int32_t>> Select(const Candidates& candidates,
                                              HighestScores highest) const override {
    const int32_t count = Budget(candidates);
    if (count == 0) return std::vector<int32_t>();  // then nothing was measured
    KVBLEND_ASSIGN_OR_RETURN(std::vector<int32_t> chosen, highest(count));
    const std::vector<int32_t> positions = candidates.Positions();
    for (int32_t& candidate : chosen) candidate = positions[candidate];
    return chosen;
  }

 private:
  const Policy policy_;
  const double ratio_;
  const Requirement requirement_;
};

class LinkPolicy final : public SelectionPolicy {
 public:
  explicit LinkPolicy(int32_t tokens) : tokens_(tokens) {}
  Policy policy() const override { return Policy::kLink; }
  Requirement requirement() const override { return {}; }
  int32_t Budget(const Candidates& candidates) const override {
    int32_t budget = 0;
    for (const CandidateSpan& span : candidates.spans) budget += std::min(tokens_, span.end - span.begin);
    return budget;
  }
  absl::StatusOr<std::vector<int32_t>> Select(const Candidates& candidates, HighestScores) const override {
    std::vector<int32_t> chosen;
    for (const CandidateSpan& span : candidates.spans) {
      const int32_t end = span.begin + std::min(tokens_, span.end - span.begin);
      for (int32_t position = span.begin; position < end; ++position) chosen.push_back(position);
    }
    return chosen;
  }

 private:
  const int32_t tokens_;
};

/// `none` and `all`.
class ConstantPolicy final : public SelectionPolicy {
 public:
  explicit ConstantPolicy(bool all) : all_(all) {}
  Policy policy() const override { return all_ ? Policy::kAll : Policy::kNone; }
  Requirement requirement() const override { return {}; }
  int32_t Budget(const Candidates& candidates) const override { return all_ ? candidates.num_tokens : 0; }
  absl::StatusOr<std::vector<int32_t>> Select(const Candidates& candidates, HighestScores) const override {
    return all_ ? candidates.Positions() : std::vector<int32_t>();
  }

 private:
  const bool all_;
};

class RandomPolicy final : public SelectionPolicy {
 public:
  RandomPolicy(double ratio, uint64_t seed) : ratio_(ratio), seed_(seed) {}
  Policy policy() const override { return Policy::kRandom; }
  Requirement requirement() const override { return {}; }
  int32_t Budget(const Candidates& candidates) const override {
    return ShareOf(ratio_, candidates.num_tokens);
  }
  absl::StatusOr<std::vector<int32_t>> Select(const Candidates& candidates, HighestScores) const override {
    // Random scores rather than std::shuffle: the standard leaves the shuffle's use of the generator open.
    std::mt19937_64 generator(seed_);
    std::vector<std::pair<int32_t, int32_t>> order(candidates.num_tokens);  // (rank, number of the candidate)
    for (int32_t i = 0; i < candidates.num_tokens; ++i) {
      order[i] = {-static_cast<int32_t>(generator() >> 40), i};
    }
    const int32_t count = Budget(candidates);
    std::nth_element(order.begin(), order.begin() + count, order.end());
    const std::vector<int32_t> positions = candidates.Positions();
    std::vector<int32_t> chosen(count);
    for (int32_t i = 0; i < count; ++i) chosen[i] = positions[order[i].second];
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  const double ratio_;
  const uint64_t seed_;
};

absl::Status OutOfRange(absl::string_view field, const std::string& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; allowed: ", allowed));
}

}  // namespace

std::vector<int32_t> Candidates::Positions() const {
  std::vector<int32_t> positions;
  positions.reserve(num_tokens);
  for (const CandidateSpan& span : spans) {
    for (int32_t position = span.begin; position < span.end; ++position) positions.push_back(position);
  }
  return positions;
}

absl::StatusOr<std::vector<int32_t>> NothingMeasured(int32_t count) {
  return absl::InternalError(
      absl::StrCat("the ", count, " highest scores were asked for, but none measured"));
}

absl::Status ValidateBlendOptions(const BlendOptions& options, int32_t num_layers) {
  if (static_cast<int>(options.policy) > static_cast<int>(Policy::kRandom)) {
    return OutOfRange("policy", absl::StrCat(static_cast<int>(options.policy)),
                      "query, hkvd, link, none, all, random");
  }
  if (options.ratio_mode.has_value() && *options.ratio_mode > RatioMode::kAuto) {
    return OutOfRange("ratio_mode", absl::StrCat(static_cast<int>(*options.ratio_mode)), "fixed, auto");
  }
  for (const auto& [field, share] : {std::pair("ratio", options.ratio),
                                     {"ratio_min", options.ratio_min},
                                     {"ratio_max", options.ratio_max}}) {
    if (share.has_value() && !(*share >= 0.0 && *share <= 1.0)) {  // also catches NaN
      return OutOfRange(field, absl::StrCat(*share), "0 to 1");
    }
  }
  if (options.ratio_min.has_value() && options.ratio_max.has_value() &&
      *options.ratio_min > *options.ratio_max) {
    return OutOfRange("ratio_min", absl::StrCat(*options.ratio_min),
                      absl::StrCat("0 to ratio_max (", *options.ratio_max, ")"));
  }
  if (options.query_layers < 0 || options.query_layers > num_layers) {
    return OutOfRange("query_layers", absl::StrCat(options.query_layers),
                      absl::StrCat("0 (all) to ", num_layers, " (layers of the model)"));
  }
  if (options.policy == Policy::kHkvd && (options.hkvd_layer < 1 || options.hkvd_layer >= num_layers)) {
    return OutOfRange("hkvd_layer", absl::StrCat(options.hkvd_layer),
                      absl::StrCat("1 to ", num_layers - 1, " (the last layer of the model)"));
  }
  if (options.link_tokens < 0) {
    return OutOfRange("link_tokens", absl::StrCat(options.link_tokens), "0 or more");
  }
  return absl::OkStatus();
}

bool HasRatio(Policy policy) {
  return policy == Policy::kQuery || policy == Policy::kHkvd || policy == Policy::kRandom;
}

Anchoring AnchoringOf(const BlendOptions& options, const prompt::PromptLayout& layout) {
  return layout.anchor_ids.empty() ? Anchoring::kIsolated : options.anchoring;
}

bool SpreadsDeviation(const BlendOptions& options, const prompt::PromptLayout& layout) {
  return options.spread_deviation && options.policy != Policy::kLink &&
         AnchoringOf(options, layout) == Anchoring::kAnchored;
}

absl::StatusOr<std::unique_ptr<SelectionPolicy>> CreateSelectionPolicy(const BlendOptions& options,
                                                                       int32_t num_layers) {
  KVBLEND_RETURN_IF_ERROR(ValidateBlendOptions(options, num_layers));
  const double ratio = options.ratio.value_or(RatioOptions().ratio);
  switch (options.policy) {
    case Policy::kQuery:
      return std::make_unique<MeasuredPolicy>(
          options.policy, ratio,
          Requirement{.kind = Requirement::Kind::kQuestionAttention,
                      .layers = options.query_layers == 0 ? num_layers : options.query_layers});
    case Policy::kHkvd:
      return std::make_unique<MeasuredPolicy>(options.policy, ratio,
                                              Requirement{.kind = Requirement::Kind::kKvDeviation,
                                                          .layers = options.hkvd_layer,
                                                          .source = options.hkvd_source});
    case Policy::kLink:
      return std::make_unique<LinkPolicy>(options.link_tokens);
    case Policy::kNone:
      return std::make_unique<ConstantPolicy>(/*all=*/false);
    case Policy::kAll:
      return std::make_unique<ConstantPolicy>(/*all=*/true);
    case Policy::kRandom:
      return std::make_unique<RandomPolicy>(ratio, options.random_seed);
  }
  return absl::InternalError("policy was validated but is unknown");
}

}  // namespace kvblend::blend
