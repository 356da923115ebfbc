// Popularity as it is found among documents: the r-th most wanted is wanted in proportion to 1 / r^exponent.
#pragma once

#include <random>
#include <vector>

namespace kvblend::server::cli {

/// Not thread-safe where the same `random` is used.
class ZipfChoice {
 public:
  /// Chooses among `count` things, numbered from 0 by rank. Exponent 0: all are equally likely.
  /// REQUIRES: count > 0, exponent >= 0.
  ZipfChoice(int count, double exponent);

  /// `wanted` different ones, in the order drawn: each draw is among those that are left, in proportion to
  /// their weights (exponential keys: Efraimidis and Spirakis, Information Processing Letters 97, 2006). All
  /// of them, if fewer.
  std::vector<int> Draw(int wanted, std::mt19937_64& random) const;

 private:
  std::vector<double> weights_;
};

}  // namespace kvblend::server::cli
