// A clock that nobody sets, for measuring and waiting. Dates come from absl::Now.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvblend {

/// The date of the first call and what has passed since, by a clock that goes on evenly when that of the
/// machine is set.
inline absl::Time SteadyNow() {
  using Steady = std::chrono::steady_clock;
  static const Steady::time_point begin = Steady::now();
  static const absl::Time date = absl::Now();
  return date + absl::FromChrono(Steady::now() - begin);
}

/// A time by the machine's clock, such as a deadline that came with a request, as SteadyNow counts.
inline absl::Time ToSteady(absl::Time time) { return SteadyNow() + (time - absl::Now()); }

}  // namespace kvblend
