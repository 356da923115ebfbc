// What an operation computes beside the matrices that it is given; plain types, for device code too.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace kvblend::kernels {

/// What GatedActivation makes of the gate, and of what is gated.
enum class Activation : uint8_t {
  kSilu,      // z / (1 + exp(-z))
  kGeluTanh,  // z / (1 + exp(-2 u)), u = sqrt(2 / pi) (z + 0.044715 z^3): GELU by its tanh approximation
  /// z / (1 + exp(-kClampedSiluSharpness z)) of the gate, held below kClampedSiluLimit; what is gated is held
  /// between plus and minus that limit, and 1 is added (gpt-oss, arXiv:2508.10925).
  kClampedSilu,
};
inline constexpr float kClampedSiluLimit = 7.0f;
inline constexpr float kClampedSiluSharpness = 1.702f;

/// What attention computes, apart from what it reads.
struct AttentionSpec {
  int32_t num_heads = 0;       // query heads; a multiple of the pages' num_kv_heads
  float scale = 1;             // of scores before the softmax, usually 1 / sqrt(head_dim)
  int32_t sliding_window = 0;  // a row at position q sees keys k with q - k < sliding_window; 0: all k <= q
  /// Scores, scaled, become cap * tanh(score / cap) ahead of the softmax (Gemma 2, arXiv:2408.00118, section
  /// 2); 0: they stay as they are.
  float logit_soft_cap = 0;
  /// f32 [1, num_heads] in the backend's memory: a score for each query head, neither scaled nor capped, that
  /// joins the denominator of its softmax and has no value (gpt-oss, arXiv:2508.10925). Without data there
  /// are none.
  ConstMatrixView sinks = {};

  /// The keys that a row at `position` sees are [FirstVisible(position), position].
  int32_t FirstVisible(int32_t position) const {
    return sliding_window == 0 || position < sliding_window ? 0 : position - sliding_window + 1;
  }
};

/// How Backend::SpreadDeviation weighs a row for a token of its range that is `distance` tokens away, by
/// exp(-distance / reach) + anywhere, and how much of the rows' weighted deviations such a token takes on:
/// their sum / (reserve + the sum of the weights), the less the fewer rows there are and the farther away.
/// Where `anywhere` is 0, a token farther than kSpreadReaches times `reach` from every row stays as it is.
struct DeviationSpread {
  float reach = 8;  // tokens, above 0, at most kMaxSpreadReach
  float anywhere = 0;
  float reserve = 2;  // above 0
};
inline constexpr float kSpreadReaches = 6;
inline constexpr float kMaxSpreadReach = 1000;

}  // namespace kvblend::kernels
