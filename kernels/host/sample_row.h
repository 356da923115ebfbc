// The definition of SampleTokens and of the sum in a softmax (kernels/sampling.h), for logits in host memory.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/host/deterministic_exp.h"
#include "kernels/sampling.h"

namespace kvblend::kernels {

/// e^x for x <= 0 (or -infinity) in units of 2^-bits, rounded to the nearest, halves up.
inline uint64_t WeightOf(double x, int bits) {
  // NOLINTNEXTLINE(bugprone-incorrect-roundings): what the sum rounds is less than the halves that go up anyway
  return static_cast<uint64_t>(DeterministicExp(x) * static_cast<double>(uint64_t{1} << bits) + 0.5);
}

/// More likely first; equal logits: the lower id first.
inline bool MoreLikely(float logit_a, int32_t id_a, float logit_b, int32_t id_b) {
  return logit_a != logit_b ? logit_a > logit_b : id_a < id_b;
}

/// The sum of exp(logits[i] - max) in units of 2^-WeightBits. REQUIRES: all finite, at least one
uint64_t SumOfWeights(absl::Span<const float> logits, float max);

/// Draws from one row. REQUIRES: a checked spec; at least one logit. Thread-safe.
SampledToken SampleRow(absl::Span<const float> logits, const SamplingSpec& spec);

}  // namespace kvblend::kernels
