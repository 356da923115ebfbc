// What one unit of something costs, measured again and again on a machine that has other things to do too.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace kvblend::store {

/// The median of the last samples, each counting as much as what it measured: a hiccup in one of them changes
/// nothing, and a machine that has really become slower shows as soon as half of what is remembered says so.
/// Not thread-safe.
class MeasuredRate {
 public:
  static constexpr size_t kMaxSamples = 32;

  /// `amount` (bytes, tokens ...) took `seconds`. Ignored unless both are above 0.
  void Add(double amount, double seconds);

  void Clear();

  /// Nothing: not measured yet.
  std::optional<double> seconds_per_unit() const;

 private:
  struct Sample {
    double amount = 0;
    double seconds = 0;
  };
  std::vector<Sample> samples_;  // a ring once full
  size_t next_ = 0;
};

}  // namespace kvblend::store
