// Gated activations in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/specs.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {

inline double Activated(Activation activation, double z, double up) {
  if (activation == Activation::kSilu) return z / (1 + std::exp(-z)) * up;
  if (activation == Activation::kClampedSilu) {
    z = std::min(z, 7.0);
    return z / (1 + std::exp(-static_cast<double>(1.702f) * z)) * (std::clamp(up, -7.0, 7.0) + 1);
  }
  // GELU's usual form is z (1 + tanh(u)) / 2; its tail is kept where 1 + tanh loses all digits.
  const double u = std::sqrt(2 / std::numbers::pi) * (z + 0.044715 * z * z * z);
  return up * (u > -5 ? 0.5 * z * (1 + std::tanh(u)) : z * std::exp(2 * u) / (1 + std::exp(2 * u)));
}

inline constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                              Activation::kClampedSilu};

/// Relative error of a result that is rounded to `dtype`: where that is coarse, exponentials and quotients
/// are estimates, with an error of some millionths.
inline double RoundoffOfGated(DataType dtype) {
  return UnitRoundoff(dtype) + (dtype == DataType::kF32 ? 0 : 4e-6);
}

}  // namespace kvblend::kernels
