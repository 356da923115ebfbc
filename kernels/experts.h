// What the operations on a mixture of experts (Shazeer et al., "Outrageously Large Neural Networks", ICLR
// 2017) work with: several weight matrices of one shape, of which each row is multiplied by a few that the
// router chose for it.
#pragma once

#include <cstdint>
#include <limits>

namespace kvblend::kernels {

/// More of either are refused.
inline constexpr int32_t kMaxExperts = 4096;
inline constexpr int32_t kMaxChosenExperts = 32;

/// How a row of router logits becomes experts and weights. The gate is a softmax.
struct RoutingSpec {
  int32_t num_chosen = 0;  // experts per row, 1 to kMaxChosenExperts and to the number of logits
  /// Weights are the softmax over the chosen experts' logits, which is the softmax over all, divided by its
  /// sum over the chosen ones; otherwise the softmax over all logits, as it is.
  bool renormalise = true;
};

/// Weight matrices W_e [rows = out_features, cols = in_features], e < num_experts, in the form that the
/// backend's ExpertLinear wants, opaque to callers. Immutable after creation, so any number of threads may
/// use it.
class PackedExperts {
 public:
  virtual ~PackedExperts() = default;
  virtual int32_t num_experts() const = 0;
  virtual int64_t rows() const = 0;  // of each
  virtual int64_t cols() const = 0;
  /// As PackedWeights::rows_as_alone, of rows of the output: each token has one for each of its experts.
  virtual int64_t rows_as_alone() const { return std::numeric_limits<int64_t>::max(); }
};

}  // namespace kvblend::kernels
