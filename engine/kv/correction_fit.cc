#include "engine/kv/correction_fit.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/kv/fits/leading_directions.h"

namespace kvblend::kv {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const Vector> Column(const std::vector<double>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

std::vector<float> Floats(const Matrix& values) {
  std::vector<float> floats(values.size());
  Eigen::Map<FloatMatrix>(floats.data(), values.rows(), values.cols()) = values.cast<float>();
  return floats;
}

Matrix Doubles(absl::Span<const float> values, int64_t rows, int64_t cols) {
  return Eigen::Map<const FloatMatrix>(values.data(), rows, cols).cast<double>();
}

/// The offset of all tokens counts as so many pairs of each place, so that places of which few pairs have
/// been seen stay near it.
constexpr double kPairsOfAllPlaces = 8;

/// offset[place] = the place's mean of d, less what the map makes of its mean of x.
template <typename Mapped>
Matrix Offsets(const PairMoments& pairs, const Mapped& mapped) {
  const int64_t channels = pairs.channels();
  Matrix offsets(kernels::kNumKvCorrectionPlaces, channels);
  Vector of_all = Vector::Zero(channels);
  for (int64_t p = 0; p < offsets.rows(); ++p) {
    const PairMoments::Place& place = pairs.places()[p];
    const Vector own = Column(place.mean_d) - mapped(Column(place.mean_x));
    offsets.row(p) = own.transpose();
    of_all += place.weight / pairs.weight() * own;
  }
  for (int64_t p = 0; p < offsets.rows(); ++p) {
    const double seen = pairs.places()[p].weight;
    const double share = seen / (seen + kPairsOfAllPlaces);
    offsets.row(p) = share * offsets.row(p) + (1 - share) * of_all.transpose();
  }
  return offsets;
}

struct Map {
  Matrix down, up;  // [channels, rank], [rank, channels]
};

/// The `rank` leading directions of the regression without `own`; zeros for those not worth their cost.
std::optional<Map> FitMap(const PairMoments& pairs, const Vector& own, const Vector& variance, double floor,
                          const FitOptions& options, absl::FunctionRef<bool()> keep_going) {
  const int64_t channels = pairs.channels();
  const double n = pairs.weight();
  const std::vector<double> xx = pairs.Xx();
  const Matrix c = Eigen::Map<const Matrix>(xx.data(), channels, channels) / n;
  Matrix regularised = c;
  regularised.diagonal() += options.ridge * variance + Vector::Constant(channels, floor);
  const Eigen::LLT<Matrix> decomposed = regularised.llt();
  if (!keep_going()) return std::nullopt;
  Matrix rest = decomposed.solve(Doubles(pairs.xd(), channels, channels) / n);
  rest.diagonal() -= own;
  if (!keep_going()) return std::nullopt;
  const Matrix variance_of_rest = rest.transpose() * c * rest;
  if (!keep_going()) return std::nullopt;
  const std::optional<LeadingDirections> leading =
      FindLeadingDirections({variance_of_rest.data(), static_cast<size_t>(variance_of_rest.size())}, channels,
                            options.rank, keep_going);
  if (!leading.has_value()) return std::nullopt;
  const auto gains = Column(leading->values);
  Matrix directions = Eigen::Map<const Matrix>(leading->vectors.data(), options.rank, channels).transpose();
  const double deviation = Column(pairs.dd()).sum() / n;
  for (int32_t first = 0; first < options.rank; first += FitOptions::kRankStep) {
    const int32_t count = std::min(FitOptions::kRankStep, options.rank - first);
    if (gains.segment(first, count).sum() >= options.least_gain * deviation) continue;
    directions.rightCols(options.rank - first).setZero();
    break;
  }
  return Map{rest * directions, directions.transpose()};
}

}  // namespace

int32_t FittedRank(PairMoments::Kind kind, int64_t channels, const FitOptions& options) {
  if (kind == PairMoments::Kind::kDiagonal) return 0;
  return static_cast<int32_t>(std::min<int64_t>(options.rank, channels));
}

LayerCorrection FitLayer(const PairMoments& pairs, const FitOptions& options) {
  return *FitLayer(pairs, options, [] { return true; });
}

std::optional<LayerCorrection> FitLayer(const PairMoments& pairs, const FitOptions& options,
                                        absl::FunctionRef<bool()> keep_going) {
  const int64_t channels = pairs.channels();
  const double n = pairs.weight();
  if (pairs.count() < 2 || n <= 0 || pairs.Deviation() == 0) return LayerCorrection{};

  // Channels that never change have no variance to divide by; they get an offset alone.
  Vector variance(channels), covariance(channels);
  for (int64_t i = 0; i < channels; ++i) {
    variance[i] = std::max(pairs.Variance(i), 0.0) / n;
    covariance[i] = pairs.Covariance(i) / n;
  }
  const double floor = std::max(1e-12, 1e-9 * variance.maxCoeff());
  const Vector own = (variance.array() > floor).select(covariance.array() / variance.array().max(floor), 0.0);

  const int32_t rank = FittedRank(pairs, options);
  Map map{Matrix::Zero(channels, rank), Matrix::Zero(rank, channels)};
  if (rank > 0) {
    const double ridge = options.ridge + 2 * static_cast<double>(channels) / n;
    std::optional<Map> fitted =
        FitMap(pairs, own, variance, floor, {rank, ridge, options.least_gain}, keep_going);
    if (!fitted.has_value()) return std::nullopt;
    map = *std::move(fitted);
  }
  const Matrix offsets = Offsets(pairs, [&](const Vector& x) -> Vector {
    return own.cwiseProduct(x) + map.up.transpose() * (map.down.transpose() * x);
  });
  return LayerCorrection{.scale = Floats(Vector::Ones(channels) + own),
                         .offset = Floats(offsets),
                         .down = Floats(map.down),
                         .up = Floats(map.up)};
}

void ScaleKeyPart(double strength, int32_t rank, LayerCorrection& correction) {
  const auto channels = static_cast<int64_t>(correction.scale.size()), keys = channels / 2;
  const auto part = static_cast<float>(strength);
  Eigen::Map<Eigen::ArrayXf> scale(correction.scale.data(), channels);
  scale.head(keys) = 1 + part * (scale.head(keys) - 1);
  Eigen::Map<FloatMatrix>(correction.offset.data(), kernels::kNumKvCorrectionPlaces, channels)
      .leftCols(keys) *= part;
  Eigen::Map<FloatMatrix>(correction.up.data(), rank, channels).leftCols(keys) *= part;
}

double ResidualShare(const PairMoments& pairs, const LayerCorrection& correction, int32_t rank) {
  if (pairs.weight() <= 0 || correction.empty()) return 1;
  const int64_t channels = pairs.channels();
  // d is predicted as scale' x + up' down' x + offset, about the means of its place.
  const Vector own = Doubles(correction.scale, channels, 1) - Vector::Ones(channels);
  const Matrix offsets = Doubles(correction.offset, kernels::kNumKvCorrectionPlaces, channels);
  const Matrix down = Doubles(correction.down, channels, rank), up = Doubles(correction.up, rank, channels);
  Vector left = Column(pairs.dd());
  if (rank > 0) {
    const std::vector<double> xx = pairs.Xx();
    Matrix map = down * up;
    map.diagonal() += own;
    const Matrix through = Eigen::Map<const Matrix>(xx.data(), channels, channels) * map;
    left +=
        map.cwiseProduct(through - 2 * Doubles(pairs.xd(), channels, channels)).colwise().sum().transpose();
  } else {
    for (int64_t i = 0; i < channels; ++i) {
      left[i] += own[i] * (own[i] * pairs.Variance(i) - 2 * pairs.Covariance(i));
    }
  }
  std::vector<double> before = pairs.dd();
  for (int64_t p = 0; p < offsets.rows(); ++p) {
    const PairMoments::Place& place = pairs.places()[p];
    const auto mean_x = Column(place.mean_x), mean_d = Column(place.mean_d);
    const Vector missed = mean_d - offsets.row(p).transpose() - own.cwiseProduct(mean_x) -
                          up.transpose() * (down.transpose() * mean_x);
    left += place.weight * missed.cwiseAbs2();
    for (int64_t i = 0; i < channels; ++i) before[i] += place.weight * mean_d[i] * mean_d[i];
  }
  return MeanShareOfKAndV({left.data(), static_cast<size_t>(channels)}, before, 1);
}

}  // namespace kvblend::kv
