// Improves a layer's correction by gradients of what attention makes of it
// (engine/kv/tuning/attention_match.h), from the least-squares fit on: scale, offsets and `up` of the map;
// `down` stays, so that they are linear in what is known of a token. Steps are Adam's (D. Kingma, J. Ba:
// "Adam: a method for stochastic optimization", 2015), in units in which each parameter moves K or V by as
// much as stored KV deviates there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/kv/learned_correction.h"
#include "engine/kv/pair_moments.h"

namespace kvblend::kv {

/// One layer's. Not thread-safe.
class LayerTuner {
 public:
  /// `pairs`: what `start` was fitted on. REQUIRES: `start` is not empty; pairs are kFull, or the rank is 0.
  LayerTuner(LayerCorrection start, int32_t rank, const PairMoments& pairs);

  /// stored, out: [tokens.size(), channels], K's channels and then V's; tokens: which of their chunk.
  void Apply(absl::Span<const float> stored, absl::Span<const int32_t> tokens, absl::Span<float> out) const;
  /// `gradient`: by what Apply gave. Adds up until the next Step.
  void AddGradient(absl::Span<const float> stored, absl::Span<const int32_t> tokens,
                   absl::Span<const float> gradient);
  void Step(double rate);

  /// The correction with the mean of the parameters over the last steps, which is steadier than the last
  /// step's.
  LayerCorrection Mean() const;

  /// What the steps so far have left, little-endian, for a tuner that is made in the same way.
  void AppendTo(std::string& bytes) const;
  /// Takes that from the front. kInvalidArgument: too few bytes, or a value that is no number; then it is of
  /// no use.
  absl::Status TakeFrom(std::string_view& bytes);

 private:
  /// Groups of parameters, one behind the other.
  struct Parameters {
    std::vector<float> offset;  // [kNumKvCorrectionPlaces, channels]
    std::vector<float> scale;   // [channels]
    std::vector<float> up;      // [rank, channels]
  };
  static constexpr std::vector<float> Parameters::*kGroups[] = {&Parameters::offset, &Parameters::scale,
                                                                &Parameters::up};
  Parameters Zeros() const;
  LayerCorrection With(const Parameters& parameters) const;

  const LayerCorrection start_;
  const int64_t rank_, channels_;
  std::vector<float> deviation_;         // [channels], root of the mean square
  std::vector<float> mean_x_, reach_x_;  // [channels]; reach: 1 / standard deviation, 0 where there is none
  std::vector<float> mean_down_, reach_down_;  // [rank]: of x down
  Parameters parameters_, gradient_, momentum_, power_, mean_;
  LayerCorrection now_;
  int64_t steps_ = 0;
};

}  // namespace kvblend::kv
