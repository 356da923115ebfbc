// Which passes a blended prefill is made of: decided in one place, for running it and for predicting its
// time.
#pragma once

#include <cstdint>

#include "engine/blend/selection_policy.h"

namespace kvblend::blend {

enum class PrefillRoute : uint8_t {
  kOnePass,    // nothing to measure first
  kQueryPass,  // the question's attention first
  kDeviation,  // all inexact tokens up to the check layer
  kAll,        // one pass that recomputes everything, because selecting would cost more
};

/// `computed_tokens`: those that the prompt computes if it comes alone. What others happen to hold of them
/// saves time, but whether the answer is exact may not depend on it. `budget`: how many of the candidates the
/// policy will choose.
inline PrefillRoute ChooseRoute(int64_t computed_tokens, int32_t candidate_tokens,
                                const Requirement& requirement, int32_t budget) {
  if (budget == 0 || budget == candidate_tokens) return PrefillRoute::kOnePass;
  switch (requirement.kind) {
    case Requirement::Kind::kNothing:
      return PrefillRoute::kOnePass;
    case Requirement::Kind::kKvDeviation:
      return PrefillRoute::kDeviation;
    case Requirement::Kind::kQuestionAttention:
      break;
  }
  // The query pass over the computed tokens and the blended pass together would run at least as many token
  // rows as computing every inexact token once. Then the exact answer is also the cheaper one.
  return 2 * computed_tokens + budget >= computed_tokens + candidate_tokens ? PrefillRoute::kAll
                                                                            : PrefillRoute::kQueryPass;
}

}  // namespace kvblend::blend
