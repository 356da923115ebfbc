// How long an answer may be expected to become, from those that have ended.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvblend {

/// Mean and mean deviation of the last answers, estimated as TCP estimates round trips (RFC 6298). Not
/// thread-safe.
class AnswerLengths {
 public:
  /// What is expected before any answer has ended: more than most have. The most that a request allows would
  /// keep all others out for the whole time of the first answers.
  static constexpr int32_t kBeforeAny = 512;

  void Add(int32_t tokens) {
    if (mean_ < 0) {
      mean_ = tokens;
      deviation_ = mean_ / 2;
      return;
    }
    deviation_ += (std::abs(tokens - mean_) - deviation_) / 4;
    mean_ += (tokens - mean_) / 8;
  }

  /// Few answers become longer.
  int32_t Expected() const {
    if (mean_ < 0) return kBeforeAny;
    return static_cast<int32_t>(std::ceil(mean_ + 2 * deviation_));
  }

 private:
  double mean_ = -1;  // nothing known yet
  double deviation_ = 0;
};

}  // namespace kvblend
