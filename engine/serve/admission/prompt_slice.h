// How long prompts may work between two steps of decoding.
#pragma once

#include <algorithm>

namespace kvblend {

/// How far apart tokens of an answer may come before a reader waits for them.
inline constexpr double kUnnoticedSeconds = 0.1;

/// Seconds; `step_seconds`: what a step of decoding takes, 0: not known; `target_seconds`: what answers'
/// tokens may be apart, 0: not said. Without a target, prompts get five times as long as steps do, so that
/// one that is alone takes a fifth longer for all the answers beside it, and that many answers come to share
/// each step. Where tokens would then be further apart than kUnnoticedSeconds they get less, but one and a
/// half times as long in any case.
inline double PromptSliceSeconds(double step_seconds, double target_seconds) {
  if (target_seconds > 0) return std::max(target_seconds - step_seconds, 0.0);
  return std::clamp(kUnnoticedSeconds - step_seconds, 1.5 * step_seconds, 5 * step_seconds);
}

}  // namespace kvblend
