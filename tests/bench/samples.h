// Times, and repeated measurements of one figure.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <vector>

#include "nlohmann/json.hpp"

namespace kvblend {

/// Seconds of a clock that only goes forwards.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of this process, all its threads together, in seconds.
inline double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class Samples {
 public:
  void Add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  double Median() const {
    if (values_.empty()) return 0;
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }
  double Min() const { return values_.empty() ? 0 : *std::min_element(values_.begin(), values_.end()); }
  double Max() const { return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }
  nlohmann::ordered_json ToJson() const {
    return {{"median", Median()}, {"min", Min()}, {"max", Max()}, {"all", values_}};
  }

 private:
  std::vector<double> values_;
};

}  // namespace kvblend
