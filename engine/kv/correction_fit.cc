#include "engine/kv/correction_fit.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <utility>

namespace kvblend::kv {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const Matrix> Square(const std::vector<double>& values, int64_t size) {
  return {values.data(), size, size};
}
Eigen::Map<const Vector> Column(const std::vector<double>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

std::vector<float> Floats(const Matrix& values) {
  std::vector<float> floats(values.size());
  Eigen::Map<FloatMatrix>(floats.data(), values.rows(), values.cols()) = values.cast<float>();
  return floats;
}

Matrix Doubles(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return Eigen::Map<const FloatMatrix>(values.data(), rows, cols).cast<double>();
}

}  // namespace

PairMoments::PairMoments(int64_t channels)
    : channels_(channels),
      sum_x_(channels),
      sum_d_(channels),
      xx_(channels * channels),
      xd_(channels * channels),
      dd_(channels) {}

PairMoments::PairMoments(int64_t count, std::vector<double> sum_x, std::vector<double> sum_d,
                         std::vector<double> xx, std::vector<double> xd, std::vector<double> dd)
    : channels_(static_cast<int64_t>(sum_x.size())),
      count_(count),
      sum_x_(std::move(sum_x)),
      sum_d_(std::move(sum_d)),
      xx_(std::move(xx)),
      xd_(std::move(xd)),
      dd_(std::move(dd)) {}

void PairMoments::Add(absl::Span<const float> stored, absl::Span<const float> fresh) {
  const int64_t rows = static_cast<int64_t>(stored.size()) / channels_;
  const Eigen::Map<const FloatMatrix> x(stored.data(), rows, channels_), y(fresh.data(), rows, channels_);
  const FloatMatrix d = y - x;
  // Products in f32 over one chunk, sums over chunks in double.
  const FloatMatrix xx = x.transpose() * x, xd = x.transpose() * d;
  Eigen::Map<Matrix>(xx_.data(), channels_, channels_) += xx.cast<double>();
  Eigen::Map<Matrix>(xd_.data(), channels_, channels_) += xd.cast<double>();
  Eigen::Map<Vector>(sum_x_.data(), channels_) += x.cast<double>().colwise().sum().transpose();
  Eigen::Map<Vector>(sum_d_.data(), channels_) += d.cast<double>().colwise().sum().transpose();
  Eigen::Map<Vector>(dd_.data(), channels_) += d.cast<double>().cwiseAbs2().colwise().sum().transpose();
  count_ += rows;
}

LayerCorrection FitLayer(const PairMoments& pairs, const FitOptions& options) {
  const int64_t channels = pairs.channels();
  const auto n = static_cast<double>(pairs.count());
  if (pairs.count() < 2 || Column(pairs.dd()).sum() == 0) return {};
  const Vector mean_x = Column(pairs.sum_x()) / n, mean_d = Column(pairs.sum_d()) / n;
  const Matrix c = Square(pairs.xx(), channels) / n - mean_x * mean_x.transpose();
  const Matrix d = Square(pairs.xd(), channels) / n - mean_x * mean_d.transpose();

  // Channels that never change have no variance to divide by; they get an offset alone.
  const Vector variance = c.diagonal().cwiseMax(0.0);
  const double floor = std::max(1e-12, 1e-9 * variance.maxCoeff());
  const Vector own =
      (variance.array() > floor).select(d.diagonal().array() / variance.array().max(floor), 0.0);

  Matrix regularised = c;
  regularised.diagonal() += options.ridge * variance + Vector::Constant(channels, floor);
  Matrix rest = regularised.llt().solve(d);
  rest.diagonal() -= own;

  const int64_t rank = std::min<int64_t>(options.rank, channels);
  Matrix down(channels, options.rank), up(options.rank, channels);
  down.setZero();
  up.setZero();
  if (rank > 0) {
    const Eigen::SelfAdjointEigenSolver<Matrix> varies(rest.transpose() * c * rest);
    const Matrix directions = varies.eigenvectors().rightCols(rank);  // ascending eigenvalues
    down.leftCols(rank) = rest * directions;
    up.topRows(rank) = directions.transpose();
  }
  const Vector predicted = own.cwiseProduct(mean_x) + up.transpose() * (down.transpose() * mean_x);
  return {.scale = Floats(Vector::Ones(channels) + own),
          .offset = Floats(mean_d - predicted),
          .down = Floats(down),
          .up = Floats(up)};
}

double ResidualShare(const PairMoments& pairs, const LayerCorrection& correction, int32_t rank) {
  if (pairs.count() == 0 || correction.empty()) return 1;
  const int64_t channels = pairs.channels();
  // d is predicted as x map + offset.
  Matrix map = Doubles(correction.down, channels, rank) * Doubles(correction.up, rank, channels);
  map.diagonal() += Doubles(correction.scale, channels, 1) - Vector::Ones(channels);
  const Vector offset = Doubles(correction.offset, channels, 1);
  const Vector mapped_sum = map.transpose() * Column(pairs.sum_x());
  const Vector squares =
      (map.transpose() * Square(pairs.xx(), channels)).cwiseProduct(map.transpose()).rowwise().sum();
  const Vector crosses = map.cwiseProduct(Square(pairs.xd(), channels)).colwise().sum().transpose();
  const Vector left = Column(pairs.dd()) + squares + static_cast<double>(pairs.count()) * offset.cwiseAbs2() -
                      2 * crosses - 2 * offset.cwiseProduct(Column(pairs.sum_d())) +
                      2 * offset.cwiseProduct(mapped_sum);
  const auto share = [&](int64_t begin) {
    const double before = Column(pairs.dd()).segment(begin, channels / 2).sum();
    return before > 0 ? left.segment(begin, channels / 2).sum() / before : 1.0;
  };
  return (share(0) + share(channels / 2)) / 2;
}

}  // namespace kvblend::kv
