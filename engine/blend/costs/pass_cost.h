// What a forward pass costs, learnt from passes that really ran.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace kvblend::blend {

/// What a pass's time depends on.
struct PassSize {
  double rows = 0;          // tokens that are computed
  double visible_keys = 0;  // summed over the rows: the keys at positions up to their own
};

/// Seconds per layer = a + b rows + c visible keys: launching the operations and reading the weights, the
/// matrix products, and the attention.
struct PassCost {
  double per_layer = 0;        // a
  double per_row = 0;          // b
  double per_visible_key = 0;  // c

  double LayerSeconds(const PassSize& size) const {
    return per_layer + per_row * size.rows + per_visible_key * size.visible_keys;
  }
};

/// Fits a PassCost to measurements: least squares of the relative error, with no term below 0 (else small
/// passes would get negative times), and outliers weigh less (a pass that was interrupted says nothing about
/// the next). Terms that the measurements can't tell apart are left out.
///
/// Keeps the last few passes of each size, so that many of one size don't push out what is known of others.
/// Not thread-safe.
class PassCostFit {
 public:
  /// A pass of `size` took `seconds` for one layer, on average. Ignored unless rows and seconds are above 0.
  void Add(const PassSize& size, double layer_seconds);

  /// nullopt until something has been measured.
  std::optional<PassCost> Fit() const;

 private:
  static constexpr size_t kSamplesPerBucket = 4;
  static constexpr int64_t kHalfLife = 256;  // passes after which a measurement counts half

  struct Sample {
    PassSize size;
    double layer_seconds = 0;
    int64_t number = 0;
  };
  using Bucket = std::pair<int, int>;  // logarithms of the rows, and of the keys per row

  std::map<Bucket, std::vector<Sample>> buckets_;
  int64_t count_ = 0;
};

}  // namespace kvblend::blend
