#include "engine/kv/pair_moments.h"

#include <Eigen/Core>
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::kv {
namespace {

using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatRow = Eigen::RowVectorXf;
using Row = Eigen::RowVectorXd;
using Kind = PairMoments::Kind;

Eigen::Map<Row> RowOf(std::vector<double>& values) {
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
    if (!std::isfinite(static_cast<double>(value)))
      return absl::InvalidArgumentError("a moment is not finite");
  }
  return absl::OkStatus();
}

template <typename T>
void Put(absl::Span<const T> values, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// Which pairs can be added: NaN, infinity and squares whose sums f32 cannot hold would stay in the sums for
/// ever.
std::vector<bool> Usable(const LayerPairs& pairs, int64_t channels) {
  constexpr float kLargest = 1e15f;
  const auto fit = [&](absl::Span<const float> values, size_t row) {
    const auto begin = values.begin() + static_cast<int64_t>(row) * channels;
    return std::all_of(begin, begin + channels, [](float x) { return std::abs(x) <= kLargest; });
  };
  std::vector<bool> usable(pairs.tokens.size());
  for (size_t row = 0; row < usable.size(); ++row) {
    const float weight = pairs.weights[row];
    usable[row] = weight > 0 && weight <= kLargest && fit(pairs.stored, row) && fit(pairs.fresh, row);
  }
  return usable;
}

}  // namespace

std::vector<float> WeightsOfMass(absl::Span<const float> mass) {
  constexpr double kLeast = 0.05;  // in means: tokens that nobody looks at count a little
  const double mean = std::accumulate(mass.begin(), mass.end(), 0.0) / static_cast<double>(mass.size());
  std::vector<float> weights(mass.size(), 1.0f);
  if (!(mean > 0)) return weights;
  for (size_t i = 0; i < mass.size(); ++i) {
    weights[i] = static_cast<float>(std::sqrt((mass[i] / mean + kLeast) / (1 + kLeast)));
  }
  return weights;
}

double MeanShareOfKAndV(absl::Span<const double> part, absl::Span<const double> whole, double of_nothing) {
  const size_t half = whole.size() / 2;
  double shares = 0;
  for (const size_t begin : {size_t{0}, half}) {
    const double parts = std::accumulate(part.begin() + begin, part.begin() + begin + half, 0.0);
    const double all = std::accumulate(whole.begin() + begin, whole.begin() + begin + half, 0.0);
    shares += all > 0 ? parts / all : of_nothing;
  }
  return shares / 2;
}

PairMoments::PairMoments(int64_t channels, Kind kind)
    : channels_(channels),
      kind_(kind),
      dd_(channels),
      xx_(kind == Kind::kFull ? channels * (channels + 1) / 2 : channels),
      xd_(kind == Kind::kFull ? channels * channels : channels) {
  for (Place& place : places_) {
    place.mean_x.resize(channels);
    place.mean_d.resize(channels);
  }
}

int64_t PairMoments::SizeBytes(int64_t channels, Kind kind) {
  const int64_t means = (2 * kernels::kNumKvCorrectionPlaces + 1) * channels;
  const int64_t sums =
      kind == Kind::kFull ? channels * (channels + 1) / 2 + channels * channels : 2 * channels;
  return means * static_cast<int64_t>(sizeof(double)) + sums * static_cast<int64_t>(sizeof(float));
}

int64_t PairMoments::EncodedBytes(int64_t channels, Kind kind) {
  return static_cast<int64_t>(sizeof(int64_t) + kernels::kNumKvCorrectionPlaces * sizeof(double)) +
         SizeBytes(channels, kind);
}

int64_t PairMoments::DiagonalIndex(int64_t channel) const {
  return kind_ == Kind::kFull ? channel * channels_ - channel * (channel - 1) / 2 : channel;
}

double PairMoments::Covariance(int64_t channel) const {
  return xd_[kind_ == Kind::kFull ? channel * (channels_ + 1) : channel];
}

double PairMoments::weight() const {
  return std::accumulate(places_.begin(), places_.end(), 0.0,
                         [](double sum, const Place& place) { return sum + place.weight; });
}

// T. Chan, G. Golub, R. LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances",
// 1979.
void PairMoments::Add(const LayerPairs& pairs) {
  constexpr int64_t kPlaces = kernels::kNumKvCorrectionPlaces;
  const auto rows = static_cast<int64_t>(pairs.tokens.size());
  const Eigen::Map<const FloatMatrix> stored(pairs.stored.data(), rows, channels_),
      fresh(pairs.fresh.data(), rows, channels_);
  // Each row less its place's mean in `pairs`, times the root of its weight; behind the rows, for each place,
  // how far this mean is from the mean so far.
  FloatMatrix x = FloatMatrix::Zero(rows + kPlaces, channels_), d = x;
  const std::vector<bool> usable = Usable(pairs, channels_);
  for (int64_t p = 0; p < kPlaces; ++p) {
    double added = 0;
    Row mean_x = Row::Zero(channels_), mean_d = mean_x;
    const auto for_rows = [&](auto&& visit) {
      for (int64_t i = 0; i < rows; ++i) {
        if (usable[i] && kernels::KvCorrectionPlace(pairs.tokens[i]) == p) visit(i);
      }
    };
    for_rows([&](int64_t i) {
      const double w = pairs.weights[i];
      added += w;
      mean_x += w * stored.row(i).cast<double>();
      mean_d += w * (fresh.row(i) - stored.row(i)).cast<double>();
      ++count_;
    });
    if (added == 0) continue;
    mean_x /= added;
    mean_d /= added;
    for_rows([&](int64_t i) {
      const float root = std::sqrt(pairs.weights[i]);
      x.row(i) = root * (stored.row(i) - mean_x.cast<float>());
      d.row(i) = root * (fresh.row(i) - stored.row(i) - mean_d.cast<float>());
    });
    Place& place = places_[p];
    const double total = place.weight + added, root = std::sqrt(place.weight * added / total);
    Eigen::Map<Row> so_far_x = RowOf(place.mean_x), so_far_d = RowOf(place.mean_d);
    x.row(rows + p) = (root * (mean_x - so_far_x)).cast<float>();
    d.row(rows + p) = (root * (mean_d - so_far_d)).cast<float>();
    so_far_x += added / total * (mean_x - so_far_x);
    so_far_d += added / total * (mean_d - so_far_d);
    place.weight = total;
  }
  AddProducts({x.data(), static_cast<size_t>(x.size())}, {d.data(), static_cast<size_t>(d.size())});
}

void PairMoments::AddProducts(absl::Span<const float> x_rows, absl::Span<const float> d_rows) {
  const int64_t rows = static_cast<int64_t>(x_rows.size()) / channels_;
  const Eigen::Map<const FloatMatrix> x(x_rows.data(), rows, channels_), d(d_rows.data(), rows, channels_);
  RowOf(dd_) += d.cast<double>().colwise().squaredNorm();
  if (kind_ == Kind::kDiagonal) {
    Eigen::Map<FloatRow>(xx_.data(), channels_) += x.colwise().squaredNorm();
    Eigen::Map<FloatRow>(xd_.data(), channels_) += x.cwiseProduct(d).colwise().sum();
    return;
  }
  const FloatMatrix xx = x.transpose() * x;
  for (int64_t row = 0; row < channels_; ++row) {
    const int64_t tail = channels_ - row;
    Eigen::Map<FloatRow>(xx_.data() + DiagonalIndex(row), tail) += xx.row(row).tail(tail);
  }
  Eigen::Map<FloatMatrix>(xd_.data(), channels_, channels_).noalias() += x.transpose() * d;
}

// As in Add, a row for each place makes up for the difference of the two means.
void PairMoments::Merge(const PairMoments& other) {
  assert(other.channels_ == channels_ && other.kind_ == kind_);
  constexpr int64_t kPlaces = kernels::kNumKvCorrectionPlaces;
  FloatMatrix x = FloatMatrix::Zero(kPlaces, channels_), d = x;
  for (int64_t p = 0; p < kPlaces; ++p) {
    const Place& from = other.places_[p];
    Place& place = places_[p];
    if (from.weight == 0) continue;
    const double total = place.weight + from.weight, root = std::sqrt(place.weight / total * from.weight);
    const auto take = [&](std::vector<double>& mean, const std::vector<double>& from_mean, auto&& row) {
      const Row apart = Eigen::Map<const Row>(from_mean.data(), channels_) - RowOf(mean);
      row = (root * apart).cast<float>();
      RowOf(mean) += from.weight / total * apart;
    };
    take(place.mean_x, from.mean_x, x.row(p));
    take(place.mean_d, from.mean_d, d.row(p));
    place.weight = total;
  }
  count_ += other.count_;
  AddProducts({x.data(), static_cast<size_t>(x.size())}, {d.data(), static_cast<size_t>(d.size())});
  for (int64_t c = 0; c < channels_; ++c) dd_[c] += other.dd_[c];
  for (size_t i = 0; i < xx_.size(); ++i) xx_[i] += other.xx_[i];
  for (size_t i = 0; i < xd_.size(); ++i) xd_[i] += other.xd_[i];
}

void PairMoments::Fade(double factor) {
  for (Place& place : places_) place.weight *= factor;
  for (double& value : dd_) value *= factor;
  for (auto* sums : {&xx_, &xd_}) {
    for (float& value : *sums) value *= static_cast<float>(factor);
  }
}

std::vector<double> PairMoments::Xx() const {
  std::vector<double> full(channels_ * channels_);
  for (int64_t row = 0; row < channels_; ++row) {
    for (int64_t col = row; col < channels_; ++col) {
      full[row * channels_ + col] = full[col * channels_ + row] = xx_[DiagonalIndex(row) + col - row];
    }
  }
  return full;
}

double PairMoments::Deviation() const {
  std::vector<double> d = dd_, y(channels_);
  for (int64_t c = 0; c < channels_; ++c) {
    y[c] = dd_[c] + 2 * Covariance(c) + Variance(c);
    for (const Place& place : places_) {
      d[c] += place.weight * place.mean_d[c] * place.mean_d[c];
      y[c] += place.weight * std::pow(place.mean_x[c] + place.mean_d[c], 2);
    }
  }
  return MeanShareOfKAndV(d, y, 0);
}

void PairMoments::AppendTo(std::string& bytes) const {
  Put<int64_t>({&count_, 1}, bytes);
  for (const Place& place : places_) {
    Put<double>({&place.weight, 1}, bytes);
    for (const auto* values : {&place.mean_x, &place.mean_d}) Put<double>(*values, bytes);
  }
  Put<double>(dd_, bytes);
  for (const auto* values : {&xx_, &xd_}) Put<float>(*values, bytes);
}

absl::Status PairMoments::TakeFrom(std::string_view& bytes) {
  KVBLEND_RETURN_IF_ERROR(Take<int64_t>(bytes, {&count_, 1}));
  constexpr int64_t kMost = int64_t{1} << 48;  // so that sums over many do not overflow
  if (count_ < 0 || count_ > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("a number of pairs is ", count_, "; allowed: 0 to ", kMost));
  }
  for (Place& place : places_) {
    KVBLEND_RETURN_IF_ERROR(Take<double>(bytes, {&place.weight, 1}));
    if (place.weight < 0) {
      return absl::InvalidArgumentError(absl::StrCat("a weight is ", place.weight, "; allowed: 0 or more"));
    }
    for (auto* values : {&place.mean_x, &place.mean_d})
      KVBLEND_RETURN_IF_ERROR(Take<double>(bytes, absl::MakeSpan(*values)));
  }
  KVBLEND_RETURN_IF_ERROR(Take<double>(bytes, absl::MakeSpan(dd_)));
  for (auto* values : {&xx_, &xd_}) KVBLEND_RETURN_IF_ERROR(Take<float>(bytes, absl::MakeSpan(*values)));
  for (int64_t c = 0; c < channels_; ++c) {
    if (dd_[c] < 0 || Variance(c) < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a sum of squares is ", std::min<double>(dd_[c], Variance(c)), "; allowed: 0 or more"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kv
