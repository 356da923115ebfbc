#include "engine/kv/tuning/layer_tuner.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/kv/sealed_bytes.h"

namespace kvblend::kv {
namespace {

constexpr int64_t kPlaces = kernels::kNumKvCorrectionPlaces;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::Map<Eigen::RowVectorXf>;
using ConstRow = Eigen::Map<const Eigen::RowVectorXf>;

Eigen::Map<const Matrix> View(absl::Span<const float> values, int64_t cols) {
  return {values.data(), cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols, cols};
}
Eigen::Map<Matrix> View(std::vector<float>& values, int64_t cols) {
  return {values.data(), cols == 0 ? 0 : static_cast<int64_t>(values.size()) / cols, cols};
}
Row RowOf(std::vector<float>& values) { return {values.data(), static_cast<int64_t>(values.size())}; }
/// 1 / the root of each variance; 0, so that no step moves it, for what varies too little.
std::vector<float> Reach(const Eigen::VectorXd& variance) {
  const double floor = std::max(1e-12, 1e-9 * variance.maxCoeff());
  std::vector<float> reach(variance.size());
  for (int64_t i = 0; i < variance.size(); ++i) {
    if (variance[i] > floor) reach[i] = static_cast<float>(1 / std::sqrt(variance[i]));
  }
  return reach;
}

ConstRow RowOf(const std::vector<float>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

}  // namespace

LayerTuner::LayerTuner(LayerCorrection start, int32_t rank, const PairMoments& pairs)
    : start_(std::move(start)), rank_(rank), channels_(pairs.channels()), now_(start_) {
  const double n = std::max(pairs.weight(), 1e-12);
  deviation_.resize(channels_);
  mean_x_.resize(channels_);
  Eigen::VectorXd variance(channels_);
  for (int64_t i = 0; i < channels_; ++i) {
    double squares = pairs.dd()[i], mean = 0;
    for (const PairMoments::Place& place : pairs.places()) {
      squares += place.weight * place.mean_d[i] * place.mean_d[i];
      mean += place.weight / n * place.mean_x[i];
    }
    deviation_[i] = static_cast<float>(std::sqrt(std::max(squares, 0.0) / n));
    mean_x_[i] = static_cast<float>(mean);
    variance[i] = std::max(pairs.Variance(i), 0.0) / n;
  }
  reach_x_ = Reach(variance);
  mean_down_.resize(rank_);
  if (rank_ > 0) {
    const Eigen::MatrixXd down = View(start_.down, rank_).cast<double>();
    const std::vector<double> sums = pairs.Xx();
    const Eigen::Map<const Eigen::MatrixXd> xx(sums.data(), channels_, channels_);  // symmetric
    reach_down_ = Reach((down.transpose() * xx * down).diagonal() / n);
    RowOf(mean_down_) = RowOf(std::as_const(mean_x_)) * View(start_.down, rank_);
  }
  parameters_ = gradient_ = momentum_ = power_ = mean_ = Zeros();
}

LayerTuner::Parameters LayerTuner::Zeros() const {
  return {std::vector<float>(kPlaces * channels_), std::vector<float>(channels_),
          std::vector<float>(rank_ * channels_)};
}

void LayerTuner::Apply(absl::Span<const float> stored, absl::Span<const int32_t> tokens,
                       absl::Span<float> out) const {
  const auto x = View(stored, channels_);
  Eigen::Map<Matrix> y(out.data(), x.rows(), channels_);
  y = x * RowOf(now_.scale).asDiagonal();
  if (rank_ > 0) y += (x * View(now_.down, rank_)) * View(now_.up, channels_);
  const auto offsets = View(now_.offset, channels_);
  for (int64_t i = 0; i < y.rows(); ++i) y.row(i) += offsets.row(kernels::KvCorrectionPlace(tokens[i]));
}

void LayerTuner::AddGradient(absl::Span<const float> stored, absl::Span<const int32_t> tokens,
                             absl::Span<const float> gradient) {
  const auto x = View(stored, channels_), by_y = View(gradient, channels_);
  auto offsets = View(gradient_.offset, channels_);
  const ConstRow unit = RowOf(std::as_const(deviation_));
  for (int64_t i = 0; i < x.rows(); ++i) {
    offsets.row(kernels::KvCorrectionPlace(tokens[i])).array() += by_y.row(i).array() * unit.array();
  }
  const Matrix centred = x.rowwise() - RowOf(std::as_const(mean_x_));
  RowOf(gradient_.scale).array() += (centred.array() * by_y.array()).colwise().sum() * unit.array() *
                                    RowOf(std::as_const(reach_x_)).array();
  if (rank_ == 0) return;
  Matrix down = (x * View(start_.down, rank_)).rowwise() - RowOf(std::as_const(mean_down_));
  down.array().rowwise() *= RowOf(std::as_const(reach_down_)).array();
  View(gradient_.up, channels_) += (down.transpose() * by_y) * unit.asDiagonal();
}

void LayerTuner::Step(double rate) {
  // There are a few hundred steps, one for each prompt in each pass. Adam's usual 0.999 would remember the
  // size of the first gradients, which are the largest, through all of them. The mean of the parameters, too,
  // is over the last fifty steps or so, and before there are so many over the last tenth.
  constexpr double kMomentum = 0.9, kPower = 0.98;
  ++steps_;
  const double momentum_seen = 1 - std::pow(kMomentum, steps_), power_seen = 1 - std::pow(kPower, steps_);
  const double kept = std::min(0.98, static_cast<double>(steps_) / static_cast<double>(steps_ + 9));
  for (const auto group : kGroups) {
    for (size_t i = 0; i < (parameters_.*group).size(); ++i) {
      const double by = (gradient_.*group)[i];
      const double momentum = kMomentum * (momentum_.*group)[i] + (1 - kMomentum) * by;
      const double power = kPower * (power_.*group)[i] + (1 - kPower) * by * by;
      (momentum_.*group)[i] = static_cast<float>(momentum);
      (power_.*group)[i] = static_cast<float>(power);
      float& value = (parameters_.*group)[i];
      value -= static_cast<float>(rate * momentum / momentum_seen / (std::sqrt(power / power_seen) + 1e-12));
      float& mean = (mean_.*group)[i];
      mean = static_cast<float>(kept * mean + (1 - kept) * value);
    }
  }
  gradient_ = Zeros();
  now_ = With(parameters_);
}

void LayerTuner::AppendTo(std::string& bytes) const {
  PutValue(steps_, bytes);
  for (const Parameters* part : {&parameters_, &momentum_, &power_, &mean_}) {
    for (const auto group : kGroups) PutValues(absl::MakeConstSpan(part->*group), bytes);
  }
}

absl::Status LayerTuner::TakeFrom(std::string_view& bytes) {
  const size_t floats = 4 * (parameters_.offset.size() + parameters_.scale.size() + parameters_.up.size());
  if (bytes.size() < sizeof(steps_) + floats * sizeof(float)) {
    return absl::InvalidArgumentError("the steps of a layer end too early");
  }
  steps_ = TakeValue<int64_t>(bytes);
  constexpr int64_t kMost = int64_t{1} << 48;  // so that further steps do not overflow
  if (steps_ < 0 || steps_ > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("a layer has made ", steps_, " steps; allowed: 0 to ", kMost));
  }
  for (Parameters* part : {&parameters_, &momentum_, &power_, &mean_}) {
    for (const auto group : kGroups) {
      for (float& value : part->*group) {
        value = TakeValue<float>(bytes);
        if (!std::isfinite(value)) return absl::InvalidArgumentError("a parameter of a layer is not finite");
      }
    }
  }
  now_ = With(parameters_);
  return absl::OkStatus();
}

LayerCorrection LayerTuner::Mean() const { return With(mean_); }

// The factors apply to values less their means, so they move the offsets as well.
LayerCorrection LayerTuner::With(const Parameters& parameters) const {
  LayerCorrection changed = start_;
  const Eigen::RowVectorXf unit = RowOf(deviation_);
  const Eigen::RowVectorXf scale = RowOf(parameters.scale).array() * unit.array() * RowOf(reach_x_).array();
  RowOf(changed.scale) += scale;
  Matrix offsets = View(parameters.offset, channels_) * unit.asDiagonal();
  offsets.rowwise() -= scale.cwiseProduct(RowOf(mean_x_));
  if (rank_ > 0) {
    Matrix up = View(parameters.up, channels_) * unit.asDiagonal();
    for (int64_t r = 0; r < rank_; ++r) up.row(r) *= reach_down_[r];
    View(changed.up, channels_) += up;
    offsets.rowwise() -= RowOf(mean_down_) * up;
  }
  View(changed.offset, channels_) += offsets;
  return changed;
}

}  // namespace kvblend::kv
