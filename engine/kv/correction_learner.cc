#include "engine/kv/correction_learner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/kv/correction_fit.h"

namespace kvblend::kv {
namespace {

using Kind = PairMoments::Kind;

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The same map, with zeros for the further ranks.
LayerCorrection Widened(LayerCorrection layer, int64_t channels, int64_t rank, int64_t to_rank) {
  if (layer.empty() || rank == to_rank) return layer;
  std::vector<float> down(channels * to_rank);
  for (int64_t channel = 0; channel < channels; ++channel) {
    std::copy_n(layer.down.begin() + channel * rank, rank, down.begin() + channel * to_rank);
  }
  layer.down = std::move(down);
  layer.up.resize(to_rank * channels);
  return layer;
}

int64_t FitAfter(int64_t chunks) {
  if (chunks >= CorrectionLearner::kFitEvery) return chunks + CorrectionLearner::kFitEvery;
  int64_t next = CorrectionLearner::kFirstFit;
  while (next <= chunks) next *= 2;
  return next;
}

}  // namespace

PairMoments::Kind KindOfMoments(const LearnerOptions& options) {
  const int64_t full = PairMoments::SizeBytes(options.channels(), Kind::kFull);
  return options.max_bytes / (2 * options.num_layers) >= full ? Kind::kFull : Kind::kDiagonal;
}

CorrectionLearner::CorrectionLearner(const LearnerOptions& options)
    : options_(options), kind_(KindOfMoments(options)) {}

void CorrectionLearner::Reset(std::string base) {
  state_ = {.replica = state_.replica, .base = std::move(base)};
}

void CorrectionLearner::Restore(LearnerState state) { state_ = std::move(state); }

void CorrectionLearner::SetInForce(std::optional<LearnedCorrection> correction) {
  in_force_ = std::move(correction);
}

void CorrectionLearner::Add(const ChunkPairs& pairs) {
  const auto rows = static_cast<int64_t>(pairs.tokens.size());
  if (rows == 0) return;
  for (auto* side : {&state_.fitted, &state_.kept_back}) {
    if (side->empty()) side->assign(options_.num_layers, PairMoments(options_.channels(), kind_));
  }
  std::vector<PairMoments>& moments = pairs.kept_back ? state_.kept_back : state_.fitted;
  const double most = pairs.kept_back ? options_.max_tokens / 3 : options_.max_tokens;
  const int64_t layer_values = rows * options_.channels();
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    PairMoments& of_layer = moments[layer];
    const absl::Span<const float> weights = pairs.weights.subspan(layer * rows, rows);
    const double added = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (const double kept = most - added; of_layer.weight() > kept && kept > 0) {
      of_layer.Fade(kept / of_layer.weight());
    }
    of_layer.Add({.stored = pairs.stored.subspan(layer * layer_values, layer_values),
                  .fresh = pairs.fresh.subspan(layer * layer_values, layer_values),
                  .tokens = pairs.tokens,
                  .weights = weights});
  }
  state_.tokens += rows;
  ++(pairs.kept_back ? state_.kept_back_chunks : state_.fitted_chunks);
}

bool CorrectionLearner::due(const OtherPairs::Seen& others) const {
  // Of a fit before the start it is known how many chunks it had of the others, but not whose.
  const int64_t had = others.has_fit ? 0 : state_.all_at_fit - state_.own_at_fit;
  const int64_t came =
      state_.fitted_chunks - state_.own_at_fit + std::max<int64_t>(0, others.new_chunks - had);
  const int64_t learners = state_.all_at_fit >= kFitEvery ? 1 + others.learners : 1;
  if (came < learners * (FitAfter(state_.all_at_fit) - state_.all_at_fit)) return false;
  if (state_.kept_back_chunks + others.kept_back_chunks < kMinKeptBackChunks) return false;
  const double weight = (state_.fitted.empty() ? 0 : state_.fitted.front().weight()) + others.weight;
  return !full() || weight >= static_cast<double>(kMinPairsPerChannel * options_.channels());
}

CorrectionLearner::LayerPairSums CorrectionLearner::SumsOf(int32_t layer) const {
  if (state_.fitted.empty()) {
    const PairMoments nothing(options_.channels(), kind_);
    return {nothing, nothing};
  }
  return {state_.fitted[layer], state_.kept_back[layer]};
}

std::vector<double> CorrectionLearner::Judge(absl::FunctionRef<bool()> keep_going) const {
  std::vector<double> shares(options_.num_layers, 1.0);
  if (!in_force_.has_value() || !CanJudge() || !CanJudge(*in_force_)) return shares;
  for (int32_t layer = 0; layer < options_.num_layers && keep_going(); ++layer) {
    shares[layer] = ResidualShare(state_.kept_back[layer], in_force_->layers[layer], in_force_->rank);
  }
  return shares;
}

std::vector<double> CorrectionLearner::Deviations() const {
  std::vector<double> deviations;
  for (const PairMoments& layer : state_.kept_back) deviations.push_back(layer.Deviation());
  return deviations;
}

std::optional<CorrectionLearner::Verdict> CorrectionLearner::Fit(absl::FunctionRef<bool()> keep_going,
                                                                 OtherPairs* others) const {
  const OtherPairs::Seen seen = others != nullptr ? others->seen() : OtherPairs::Seen{};
  const int64_t channels = options_.channels();
  const int32_t fit_rank = FittedRank(kind_, channels, options_.fit);
  const int32_t old_rank = in_force_.has_value() ? in_force_->rank : 0;
  Verdict verdict{
      .correction = {.model_fingerprint = options_.model_fingerprint,
                     .anchoring = options_.anchoring,
                     .num_kv_heads = options_.num_kv_heads,
                     .head_dim = options_.head_dim,
                     .rank = std::max(fit_rank, old_rank),
                     .origin = {.data = "learned while serving", .tokens = state_.tokens + seen.tokens},
                     .learned = LearnedFrom{.encoding = options_.encoding, .base = state_.base}},
      .fitted_chunks = state_.fitted_chunks + seen.fitted_chunks,
      .kept_back_chunks = state_.kept_back_chunks + seen.kept_back_chunks};
  // The fewer chunks judge, the less they say of later ones.
  const double margin = std::max(0.01, 0.1 / static_cast<double>(verdict.kept_back_chunks));
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    LayerPairSums pairs = SumsOf(layer);
    if (others != nullptr && !others->AddTo(layer, pairs.fitted, pairs.kept_back, keep_going)) {
      return std::nullopt;
    }
    verdict.deviations.push_back(pairs.kept_back.Deviation());
    LayerCorrection best;
    double before = 1;
    if (in_force_.has_value()) {
      best = in_force_->layers[layer];
      before = ResidualShare(pairs.kept_back, best, old_rank);
      if (!keep_going()) return std::nullopt;
    }
    double after = before;
    if (before > 1) {
      best = {};
      after = 1;
    }
    best = Widened(std::move(best), channels, old_rank, verdict.correction.rank);
    std::optional<LayerCorrection> fitted = FitLayer(pairs.fitted, options_.fit, keep_going);
    if (!fitted.has_value() || !keep_going()) return std::nullopt;
    if (const double share = ResidualShare(pairs.kept_back, *fitted, fit_rank);
        share < (1 - margin) * after) {
      best = Widened(*std::move(fitted), channels, fit_rank, verdict.correction.rank);
      after = share;
    }
    verdict.before.push_back(before);
    verdict.after.push_back(after);
    verdict.correction.layers.push_back(std::move(best));
    if (!keep_going()) return std::nullopt;
  }
  verdict.better = Mean(verdict.after) < (1 - margin / 2) * Mean(verdict.before);
  return verdict;
}

void CorrectionLearner::NoteFit(const Verdict& verdict) {
  state_.own_at_fit = state_.fitted_chunks;
  state_.all_at_fit = verdict.fitted_chunks;
}

}  // namespace kvblend::kv
