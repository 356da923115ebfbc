#pragma once

#include <cmath>
#include <vector>

namespace kvblend::generate {

/// Logits from which tokens are drawn with these probabilities, at temperature 1.
inline std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

}  // namespace kvblend::generate
