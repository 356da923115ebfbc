// What SampleTokens tells of a row, and part of what it is told (kernels/sampling.h). Plain data, for device
// code too.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvblend::kernels {

inline constexpr int32_t kMaxTopTokens = 20;
/// Columns that a row of logits may have.
inline constexpr int64_t kMaxSampledVocab = int64_t{1} << 24;

/// Fractional bits of a token's weight: so many that the sum over a vocabulary is at most 2^63.
constexpr int WeightBits(int64_t vocab_size) {
  int bits = 52;
  while ((int64_t{1} << (63 - bits)) < vocab_size) --bits;
  return bits;
}

/// What becomes of a token's logit before one is chosen.
struct LogitChange {
  int32_t token_id = 0;
  bool repeated = false;  // the repetition penalty holds for it
  float added = 0;        // finite; behind the penalty
};

struct SampledToken {
  int32_t token_id = -1;
  float logit = 0;             // the token's
  int32_t invalid_token = -1;  // the first whose logit is NaN or infinite; the other fields mean nothing then
  float invalid_logit = 0;
  float scored_logit = 0;

  // 0 unless log-probabilities are wanted.
  float max_logit = 0;
  uint64_t weight_sum = 0;              // of exp(logit - max_logit), in units of 2^-WeightBits(vocab_size)
  int32_t num_top = 0;                  // as asked for, but no more than there are
  int32_t top_ids[kMaxTopTokens] = {};  // most likely first
  float top_logits[kMaxTopTokens] = {};

  /// A token's natural log-probability is its logit less this.
  double LogSumExp(int64_t vocab_size) const {
    return max_logit + std::log(std::ldexp(static_cast<double>(weight_sum), -WeightBits(vocab_size)));
  }
};

}  // namespace kvblend::kernels
