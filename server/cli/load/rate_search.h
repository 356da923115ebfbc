// Finds the highest rate that a server bears: doubling until it does not, then halving the interval in
// between.
#pragma once

#include <optional>

namespace kvblend::server::cli {

/// Not thread-safe. Assumes that a server that bears a rate bears lower ones.
class RateSearch {
 public:
  /// Begins at `first_rate` > 0 and ends when the interval is narrower than `precision` times its lower end.
  explicit RateSearch(double first_rate, double precision = 0.1);

  /// The rate to try next; nothing when it is found, or after kMaxTries.
  std::optional<double> Next() const;
  /// What became of it. REQUIRES: Next() has a rate.
  void Tell(bool was_borne);

  /// The highest rate that was borne; 0: none was.
  double highest() const { return lower_; }
  /// The lowest that was not; nothing: all were.
  std::optional<double> refused() const { return upper_; }

  static constexpr int kMaxTries = 16;

 private:
  const double first_rate_;
  const double precision_;
  double lower_ = 0;
  std::optional<double> upper_;
  int tries_ = 0;
};

}  // namespace kvblend::server::cli
