// When the requests of a load are sent. All times are planned before the first request, so that a slow server
// cannot put off what would have shown how slow it is (coordinated omission; G. Tene, "How NOT to Measure
// Latency", 2013). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvblend::server::cli {

/// Most requests of one measurement: what is noted of each is kept until its end.
inline constexpr int64_t kMaxLoadRequests = 1'000'000;

/// Uniform in [0, 1), the same on every platform; std::uniform_real_distribution is not.
inline double UniformDraw(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

/// Where a series of arrivals ends: before `seconds`, and after `requests` of them.
struct ArrivalLimits {
  double seconds = 0;
  int64_t requests = kMaxLoadRequests;
};

/// Seconds from the start, ascending, of a Poisson process of `rate` arrivals per second: intervals are
/// independent and exponential. REQUIRES: rate > 0. The same state of `random` gives the same times.
std::vector<double> PoissonArrivals(double rate, const ArrivalLimits& limits, std::mt19937_64& random);

/// The same with equal intervals; the first at 0.
std::vector<double> FixedArrivals(double rate, const ArrivalLimits& limits);

/// One number per line: seconds from the start, ascending; empty lines and lines that begin with # are left
/// out. kInvalidArgument, naming the line, for anything else, and for more than kMaxLoadRequests.
absl::StatusOr<std::vector<double>> ParseArrivalTrace(const std::string& text);

}  // namespace kvblend::server::cli
