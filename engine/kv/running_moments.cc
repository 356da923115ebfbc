#include "engine/kv/running_moments.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::kv {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowVector = Eigen::RowVectorXd;
using Kind = RunningMoments::Kind;

Eigen::Map<RowVector> Row(std::vector<double>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}
Eigen::Map<const RowVector> Row(const std::vector<double>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

template <typename T>
absl::Status Take(std::string_view& bytes, absl::Span<T> values) {
  const size_t size = values.size() * sizeof(T);
  if (bytes.size() < size) {
    return absl::InvalidArgumentError(absl::StrCat("moments end ", size - bytes.size(), " bytes too early"));
  }
  std::memcpy(values.data(), bytes.data(), size);
  bytes.remove_prefix(size);
  for (const T value : values) {
    if (!std::isfinite(value)) return absl::InvalidArgumentError("a moment is not finite");
  }
  return absl::OkStatus();
}

template <typename T>
void Put(absl::Span<const T> values, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

RunningMoments::RunningMoments(int64_t channels, Kind kind)
    : channels_(channels),
      kind_(kind),
      mean_x_(channels),
      mean_d_(channels),
      dd_(channels),
      xx_(kind == Kind::kFull ? channels * (channels + 1) / 2 : channels),
      xd_(kind == Kind::kFull ? channels * channels : channels) {}

int64_t RunningMoments::SizeBytes(int64_t channels, Kind kind) {
  const int64_t sums =
      kind == Kind::kFull ? channels * (channels + 1) / 2 + channels * channels : 2 * channels;
  return 3 * channels * static_cast<int64_t>(sizeof(double)) + sums * static_cast<int64_t>(sizeof(float));
}

int64_t RunningMoments::Diagonal(int64_t channel) const {
  return kind_ == Kind::kFull ? channel * channels_ - channel * (channel - 1) / 2 : channel;
}

double RunningMoments::CrossOfItself(int64_t channel) const {
  return xd_[kind_ == Kind::kFull ? channel * (channels_ + 1) : channel];
}

// T. Chan, G. Golub, R. LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
void RunningMoments::Add(absl::Span<const float> stored, absl::Span<const float> fresh,
                         absl::Span<const float> weights) {
  const auto rows = static_cast<int64_t>(weights.size());
  if (rows == 0) return;
  const Eigen::Map<const FloatMatrix> x_rows(stored.data(), rows, channels_),
      y(fresh.data(), rows, channels_);
  const Eigen::VectorXd w = Eigen::Map<const Eigen::VectorXf>(weights.data(), rows).cast<double>();
  FloatMatrix x = x_rows, d = y - x_rows;
  const double added = w.sum(), total = weight_ + added;
  const RowVector mean_x = w.transpose() * x.cast<double>() / added;
  const RowVector mean_d = w.transpose() * d.cast<double>() / added;
  const Eigen::VectorXf root = w.cwiseSqrt().cast<float>();
  x = root.asDiagonal() * (x.rowwise() - mean_x.cast<float>());
  d = root.asDiagonal() * (d.rowwise() - mean_d.cast<float>());

  const double between = weight_ * added / total;
  const RowVector step_x = mean_x - Row(mean_x_), step_d = mean_d - Row(mean_d_);
  Row(dd_) += d.cast<double>().colwise().squaredNorm() + between * step_d.cwiseAbs2();
  const Eigen::RowVectorXf sx = (std::sqrt(between) * step_x).cast<float>(),
                           sd = (std::sqrt(between) * step_d).cast<float>();
  if (kind_ == Kind::kFull) {
    FloatMatrix xx = x.transpose() * x;
    xx.noalias() += sx.transpose() * sx;
    for (int64_t row = 0; row < channels_; ++row) {
      const int64_t count = channels_ - row;
      Eigen::Map<Eigen::RowVectorXf>(xx_.data() + Diagonal(row), count) += xx.row(row).tail(count);
    }
    Eigen::Map<FloatMatrix> xd(xd_.data(), channels_, channels_);
    xd.noalias() += x.transpose() * d;
    xd.noalias() += sx.transpose() * sd;
  } else {
    Eigen::Map<Eigen::RowVectorXf>(xx_.data(), channels_) += x.colwise().squaredNorm() + sx.cwiseAbs2();
    Eigen::Map<Eigen::RowVectorXf>(xd_.data(), channels_) +=
        x.cwiseProduct(d).colwise().sum() + sx.cwiseProduct(sd);
  }
  Row(mean_x_) += added / total * step_x;
  Row(mean_d_) += added / total * step_d;
  weight_ = total;
}

void RunningMoments::Fade(double factor) {
  weight_ *= factor;
  for (double& value : dd_) value *= factor;
  for (auto* sums : {&xx_, &xd_}) {
    for (float& value : *sums) value *= static_cast<float>(factor);
  }
}

PairMoments RunningMoments::Pairs() const {
  // Weights that a whole count rounds away would be means of another sum than of their own.
  const int64_t count = weight_ > 0 ? std::max<int64_t>(std::llround(weight_), 2) : 0;
  const double n = static_cast<double>(count), scale = weight_ > 0 ? n / weight_ : 0;
  std::vector<double> sum_x(channels_), sum_d(channels_), dd(channels_), xx(channels_ * channels_),
      xd(channels_ * channels_);
  const auto x = Row(mean_x_), d = Row(mean_d_);
  Row(sum_x) = n * x;
  Row(sum_d) = n * d;
  Row(dd) = scale * Row(dd_) + n * d.cwiseAbs2();
  Eigen::Map<Matrix> full(xx.data(), channels_, channels_);
  for (int64_t row = 0; row < channels_; ++row) {
    const int64_t tail = channels_ - row;
    full.row(row).tail(tail) =
        scale * Eigen::Map<const Eigen::RowVectorXf>(xx_.data() + Diagonal(row), tail).cast<double>() +
        n * x(row) * x.tail(tail);
    full.col(row).tail(tail) = full.row(row).tail(tail).transpose();
  }
  Eigen::Map<Matrix>(xd.data(), channels_, channels_) =
      scale * Eigen::Map<const FloatMatrix>(xd_.data(), channels_, channels_).cast<double>() +
      n * (x.transpose() * d);
  return {count, std::move(sum_x), std::move(sum_d), std::move(xx), std::move(xd), std::move(dd)};
}

double RunningMoments::MeanShare(absl::Span<const double> part, absl::Span<const double> whole,
                                 double of_nothing) const {
  double shares = 0;
  for (const int64_t begin : {int64_t{0}, channels_ / 2}) {
    double part_sum = 0, whole_sum = 0;
    for (int64_t channel = begin; channel < begin + channels_ / 2; ++channel) {
      part_sum += part[channel];
      whole_sum += whole[channel];
    }
    shares += whole_sum > 0 ? part_sum / whole_sum : of_nothing;
  }
  return shares / 2;
}

double RunningMoments::Deviation() const {
  std::vector<double> d(channels_), y(channels_);
  for (int64_t c = 0; c < channels_; ++c) {
    d[c] = dd_[c] + weight_ * mean_d_[c] * mean_d_[c];
    y[c] = dd_[c] + 2 * CrossOfItself(c) + xx_[Diagonal(c)] + weight_ * std::pow(mean_x_[c] + mean_d_[c], 2);
  }
  return MeanShare(d, y, 0);
}

LayerCorrection RunningMoments::FitScales() const {
  if (weight_ <= 0 || Deviation() == 0) return {};
  double largest = 0;
  for (int64_t c = 0; c < channels_; ++c) largest = std::max<double>(largest, xx_[Diagonal(c)]);
  const double floor = std::max(1e-12 * weight_, 1e-9 * largest);
  LayerCorrection fit;
  for (int64_t c = 0; c < channels_; ++c) {
    const double variance = xx_[Diagonal(c)];
    const double own = variance > floor ? CrossOfItself(c) / variance : 0;
    fit.scale.push_back(static_cast<float>(1 + own));
    fit.offset.push_back(static_cast<float>(mean_d_[c] - own * mean_x_[c]));
  }
  return fit;
}

double RunningMoments::ResidualShareOfScales(const LayerCorrection& correction) const {
  if (weight_ <= 0 || correction.empty()) return 1;
  std::vector<double> left(channels_), before(channels_);
  for (int64_t c = 0; c < channels_; ++c) {
    const double own = double{correction.scale[c]} - 1;
    const double mean = mean_d_[c] - own * mean_x_[c] - correction.offset[c];
    left[c] = dd_[c] - 2 * own * CrossOfItself(c) + own * own * xx_[Diagonal(c)] + weight_ * mean * mean;
    before[c] = dd_[c] + weight_ * mean_d_[c] * mean_d_[c];
  }
  return MeanShare(left, before, 1);
}

void RunningMoments::AppendTo(std::string& bytes) const {
  Put<double>({&weight_, 1}, bytes);
  for (const auto* values : {&mean_x_, &mean_d_, &dd_}) Put<double>(*values, bytes);
  for (const auto* values : {&xx_, &xd_}) Put<float>(*values, bytes);
}

absl::Status RunningMoments::TakeFrom(std::string_view& bytes) {
  KVBLEND_RETURN_IF_ERROR(Take<double>(bytes, {&weight_, 1}));
  if (weight_ < 0)
    return absl::InvalidArgumentError(absl::StrCat("a weight is ", weight_, "; allowed: 0 or more"));
  for (auto* values : {&mean_x_, &mean_d_, &dd_})
    KVBLEND_RETURN_IF_ERROR(Take<double>(bytes, absl::MakeSpan(*values)));
  for (auto* values : {&xx_, &xd_}) KVBLEND_RETURN_IF_ERROR(Take<float>(bytes, absl::MakeSpan(*values)));
  return absl::OkStatus();
}

}  // namespace kvblend::kv
