#include "server/cli/load/arrivals.h"

#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvblend::server::cli {

std::vector<double> PoissonArrivals(double rate, const ArrivalLimits& limits, std::mt19937_64& random) {
  std::vector<double> times;
  double time = 0;
  while (static_cast<int64_t>(times.size()) < limits.requests) {
    time -= std::log1p(-UniformDraw(random)) / rate;
    if (time >= limits.seconds) break;
    times.push_back(time);
  }
  return times;
}

std::vector<double> FixedArrivals(double rate, const ArrivalLimits& limits) {
  std::vector<double> times;
  for (int64_t i = 0; i < limits.requests; ++i) {
    const double time = static_cast<double>(i) / rate;
    if (time >= limits.seconds) break;
    times.push_back(time);
  }
  return times;
}

absl::StatusOr<std::vector<double>> ParseArrivalTrace(const std::string& text) {
  std::vector<double> times;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const auto wrong = [&](const std::string& allowed) {
      return absl::InvalidArgumentError(absl::StrCat("line ", line_number, " of the trace is '",
                                                     line.substr(0, 40), "'; allowed: ", allowed));
    };
    double time = 0;
    if (!absl::SimpleAtod(line, &time) || !std::isfinite(time) || time < 0) {
      return wrong("seconds from the start, 0 or more");
    }
    if (!times.empty() && time < times.back()) return wrong("times in ascending order");
    if (static_cast<int64_t>(times.size()) == kMaxLoadRequests) {
      return wrong(absl::StrCat("at most ", kMaxLoadRequests, " times"));
    }
    times.push_back(time);
  }
  if (times.empty()) return absl::InvalidArgumentError("the trace holds no times");
  return times;
}

}  // namespace kvblend::server::cli
