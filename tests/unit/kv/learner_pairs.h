// Pairs of stored and fresh KV that follow a law.
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "engine/kv/correction_learner.h"

namespace kvblend::kv {

/// Chunks of a model with so many layers whose fresh KV is a scale, an offset and a map of rank 1 of the
/// stored one, and noise. The first layer's is what is stored.
class PairMaker {
 public:
  PairMaker(int32_t num_layers, int64_t channels, uint32_t seed = 7)
      : num_layers_(num_layers), channels_(channels), random_(seed) {
    offset_ = Random(channels, 0.5f);
    down_ = Random(channels, 0.3f);
    up_ = Random(channels, 0.3f);
  }

  struct Chunk {
    std::vector<int32_t> tokens;
    std::vector<float> stored, fresh, weights;
    ChunkPairs pairs;
  };

  /// `sign`: -1 turns the law round.
  Chunk Make(int64_t rows, bool kept_back, double weight = 1, float sign = 1, float noise = 0.1f) {
    Chunk chunk{.tokens = std::vector<int32_t>(rows),
                .stored = Random(num_layers_ * rows * channels_, 1),
                .fresh = {},
                .weights = {},
                .pairs = {}};
    std::iota(chunk.tokens.begin(), chunk.tokens.end(), 0);
    chunk.fresh = chunk.stored;
    for (int64_t row = rows; row < num_layers_ * rows; ++row) {  // of the second layer and those behind it
      const float* x = chunk.stored.data() + row * channels_;
      float* y = chunk.fresh.data() + row * channels_;
      float inner = 0;
      for (int64_t c = 0; c < channels_; ++c) inner += x[c] * down_[c];
      const std::vector<float> other = Random(channels_, noise);
      for (int64_t c = 0; c < channels_; ++c) {
        y[c] += sign * (0.2f * x[c] + offset_[c] + inner * up_[c]) + other[c];
      }
    }
    chunk.weights.assign(num_layers_ * rows, static_cast<float>(weight));
    chunk.pairs.kept_back = kept_back;
    return chunk;
  }

  void Teach(CorrectionLearner& learner, int64_t rows, bool kept_back, double weight = 1, float sign = 1) {
    Chunk chunk = Make(rows, kept_back, weight, sign);
    Teach(learner, chunk);
  }

  static void Teach(CorrectionLearner& learner, Chunk& chunk) {
    chunk.pairs.tokens = chunk.tokens;
    chunk.pairs.weights = chunk.weights;
    chunk.pairs.stored = chunk.stored;
    chunk.pairs.fresh = chunk.fresh;
    learner.Add(chunk.pairs);
  }

  std::vector<float> Random(int64_t count, float size) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

 private:
  const int32_t num_layers_;
  const int64_t channels_;
  std::mt19937 random_;
  std::vector<float> offset_, down_, up_;
};

inline LearnerOptions SmallLearner() {
  LearnerOptions options{
      .num_layers = 3, .num_kv_heads = 1, .head_dim = 6, .fit = {.rank = 3, .ridge = 0.01}};
  options.model_fingerprint.fill(0xAB);
  return options;
}

}  // namespace kvblend::kv
