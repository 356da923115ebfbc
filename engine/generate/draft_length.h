// How many guessed tokens a step of decoding should check: as many as are worth their time, by how often
// guesses were right so far and by how long steps of so many rows took on this machine.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace kvblend::generate {

/// How long steps of decoding take, by their number of rows. Not thread-safe.
class StepCost {
 public:
  void Add(int32_t rows, double seconds);
  /// 0 until a step was measured. For a number of rows that was not measured, the time of the nearest one
  /// that was.
  double Seconds(int32_t rows) const;

 private:
  std::vector<double> seconds_;  // [rows]; 0: not measured
};

/// Learns from all sequences together. Not thread-safe.
class DraftLength {
 public:
  /// Checking must promise so much more tokens per second.
  static constexpr double kLeastGain = 1.05;
  /// After so many refusals one token is checked all the same, so that a bad stretch does not switch guessing
  /// off for ever.
  static constexpr int32_t kProbe = 128;

  /// How many tokens of a guess with this match to check in a step that has `rows` rows besides; 0 to
  /// `available`.
  int32_t Choose(int32_t match, int32_t available, int32_t rows, const StepCost& cost);
  /// Records that `checked` tokens of a guess with this match were checked, and that the first `right` of
  /// them were right.
  void Observe(int32_t match, int32_t checked, int32_t right);

 private:
  struct Record {
    double right = 0, wrong = 0;
    int32_t refused = 0;
  };
  Record& RecordOf(int32_t match);

  std::array<Record, 4> records_ = {};  // by the length of the match
};

}  // namespace kvblend::generate
