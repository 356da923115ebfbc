// What a fit of learned corrections (engine/kv/correction_fit.h) has to know of its pairs, layer by layer. A
// pair is one token of a chunk that stood behind other chunks: x, its stored K (before RoPE) and V, and y,
// those that full prefill gave it there; d = y - x. Kept are, for every place in a chunk
// (kernels/kv_correction_place.h), the pairs' weight and the means of x and d, and over all places the sums
// of products about those means. Being centred, these need no more than f32, and of what is symmetric a
// triangle is enough: 6 * channels^2 bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kv_correction_place.h"

namespace kvblend::kv {

/// Pairs of one layer and chunk, K's channels and then V's.
struct LayerPairs {
  absl::Span<const float> stored;    // [count, channels]
  absl::Span<const float> fresh;     // [count, channels]
  absl::Span<const int32_t> tokens;  // [count]: which of their chunk
  absl::Span<const float> weights;   // [count], >= 0: what each counts
};

/// What pairs count when a fit should serve attention: `mass` is the attention that each token gets, [count].
/// Its root, for a fit on the mass itself would rest on the few tokens that get most of it; 1 on average over
/// tokens that get alike.
std::vector<float> WeightsOfMass(absl::Span<const float> mass);

/// One layer's. Not thread-safe.
class PairMoments {
 public:
  /// kDiagonal: only how each channel goes with itself, which is enough for a scale and offsets.
  enum class Kind : uint32_t { kFull, kDiagonal };

  struct Place {
    double weight = 0;
    std::vector<double> mean_x, mean_d;  // [channels]
  };

  explicit PairMoments(int64_t channels, Kind kind = Kind::kFull);
  static int64_t SizeBytes(int64_t channels, Kind kind);
  /// What AppendTo appends.
  static int64_t EncodedBytes(int64_t channels, Kind kind);

  /// Leaves out pairs with values that are not finite, or above 1e15: one of them would spoil all sums for
  /// good.
  void Add(const LayerPairs& pairs);
  /// All pairs so far count as `factor` times what they did. In (0, 1].
  void Fade(double factor);
  /// As if the pairs that `other` has seen had been added here, each with what it counts there. Exact up to
  /// rounding.
  /// REQUIRES: as many channels, and the same kind.
  void Merge(const PairMoments& other);

  Kind kind() const { return kind_; }
  int64_t channels() const { return channels_; }
  double weight() const;
  int64_t count() const { return count_; }  // pairs added, whatever their weights
  const std::array<Place, kernels::kNumKvCorrectionPlaces>& places() const { return places_; }
  const std::vector<double>& dd() const { return dd_; }  // [channels]: squares of d
  /// Row-major [channels, channels]; REQUIRES: kFull.
  std::vector<double> Xx() const;
  const std::vector<float>& xd() const { return xd_; }  // x in rows, d in columns; kDiagonal: [channels]
  double Variance(int64_t channel) const { return xx_[DiagonalIndex(channel)]; }  // times the weight
  double Covariance(int64_t channel) const;                                       // of x and d, likewise

  /// Mean square of d over that of y, K's and V's channels each on their own and then averaged. 0 without
  /// pairs.
  double Deviation() const;

  /// Little-endian, without channels and kind, which who reads them has to know.
  void AppendTo(std::string& bytes) const;
  /// Takes them from the front. kInvalidArgument: too few, or a value that is none of a sum's.
  absl::Status TakeFrom(std::string_view& bytes);

 private:
  int64_t DiagonalIndex(int64_t channel) const;  // into xx_
  /// Adds what rows, [rows, channels] each, have to dd_, xx_ and xd_.
  void AddProducts(absl::Span<const float> x, absl::Span<const float> d);

  int64_t channels_;
  Kind kind_;
  int64_t count_ = 0;
  std::array<Place, kernels::kNumKvCorrectionPlaces> places_;
  std::vector<double> dd_;
  std::vector<float> xx_;  // upper triangle by rows, or the diagonal
  std::vector<float> xd_;
};

/// Sums of `part` over sums of `whole`, K's channels and V's each on their own and then averaged;
/// `of_nothing` where the whole is 0.
double MeanShareOfKAndV(absl::Span<const double> part, absl::Span<const double> whole, double of_nothing);

}  // namespace kvblend::kv
