// Normally distributed numbers for tests that draw them by the million.
#pragma once

#include <cmath>
#include <random>

namespace kvblend::kernels {

/// The polar method (Marsaglia and Bray, SIAM Review 6, 1964), as std::normal_distribution has it in
/// libstdc++, whose numbers these are. That one computes two logarithms in 80 bits for every number drawn
/// unless the compiler does so beforehand; clang++ does not, and half the time of the conformance suite went
/// there. Not thread-safe.
class NormalValues {
 public:
  explicit NormalValues(float mean = 0, float deviation = 1) : mean_(mean), deviation_(deviation) {}

  float operator()(std::mt19937& rng) {
    has_other_ = !has_other_;
    if (!has_other_) return other_ * deviation_ + mean_;
    float x = 0, y = 0, square = 0;
    do {
      x = Uniform(rng);
      y = Uniform(rng);
      square = x * x + y * y;
    } while (square > 1 || square == 0);
    const float factor = std::sqrt(-2 * std::log(square) / square);
    other_ = x * factor;
    return y * factor * deviation_ + mean_;
  }

 private:
  /// In -1 .. 1.
  static float Uniform(std::mt19937& rng) { return static_cast<float>(rng()) * 0x1p-31f - 1; }

  float mean_;
  float deviation_;
  float other_ = 0;  // numbers come in pairs
  bool has_other_ = false;
};

}  // namespace kvblend::kernels
