// Moments of pairs (engine/kv/correction_fit.h) that are kept for long: means and centred sums, so that f32 is enough
// for these, and of what is symmetric a triangle. A full one takes 6 * channels^2 bytes, a third of PairMoments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/kv/correction_fit.h"

namespace kvblend::kv {

/// One layer's. Not thread-safe.
class RunningMoments {
 public:
  /// kDiagonal: only how each channel goes with itself, which is enough for a scale and an offset.
  enum class Kind : uint32_t { kFull, kDiagonal };

  RunningMoments(int64_t channels, Kind kind);
  static int64_t SizeBytes(int64_t channels, Kind kind);

  /// stored, fresh: [weights.size(), channels]. Each pair counts as so many of them; > 0.
  void Add(absl::Span<const float> stored, absl::Span<const float> fresh, absl::Span<const float> weights);
  /// All pairs so far count as `factor` times what they did. In (0, 1].
  void Fade(double factor);

  /// Sum of the pairs' weights.
  double weight() const { return weight_; }
  Kind kind() const { return kind_; }
  int64_t channels() const { return channels_; }

  /// For a fit; counts are rounded weights. REQUIRES: kFull
  PairMoments Pairs() const;

  /// Mean square of y - x over that of y, K's and V's channels each on their own and then averaged. 0 without pairs.
  double Deviation() const;
  /// FitLayer and ResidualShare of corrections without a map, for both kinds.
  LayerCorrection FitScales() const;
  double ResidualShareOfScales(const LayerCorrection& correction) const;

  /// Little-endian, without channels and kind, which who reads them has to know.
  void AppendTo(std::string& bytes) const;
  /// Takes them from the front. kInvalidArgument: too few, or a value that is none of a sum's.
  absl::Status TakeFrom(std::string_view& bytes);

 private:
  int64_t Diagonal(int64_t channel) const;      // index into xx_
  double CrossOfItself(int64_t channel) const;  // of xd_
  double MeanShare(absl::Span<const double> part, absl::Span<const double> whole, double of_nothing) const;

  int64_t channels_;
  Kind kind_;
  double weight_ = 0;
  std::vector<double> mean_x_, mean_d_;  // d: y - x
  std::vector<double> dd_;               // [channels], about the mean
  std::vector<float> xx_;                // upper triangle by rows, or the diagonal; about the means
  std::vector<float> xd_;                // [channels, channels] or the diagonal; about the means
};

}  // namespace kvblend::kv
