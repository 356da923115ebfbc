#include "engine/kv/tuning/attention_match.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace kvblend::kv {
namespace {

struct Shape {
  std::string name;
  kernels::RopeLayout layout = kernels::RopeLayout::kInterleaved;
  int32_t num_heads = 4, num_kv_heads = 2;
  float soft_cap = 0;
  int32_t window = 0;
  bool sinks = false;
};

class AttentionMatchTest : public testing::TestWithParam<Shape> {
 protected:
  static constexpr int32_t kHeadDim = 8, kTokens = 23, kRows = 5, kWidth = 11;

  AttentionMatchTest() {
    const Shape& shape = GetParam();
    const std::vector<float> inv_freq = {1.0f, 0.3f, 0.05f, 0.0f};
    kernels::RopeSpec spec;
    spec.layout = shape.layout;
    spec.head_dim = kHeadDim;
    spec.max_position = kTokens;
    spec.inv_freq = inv_freq;
    spec.magnitude = 1.1f;
    rope_ = kernels::HostRopeTable::Create(spec).value();
    layer_.num_heads = shape.num_heads;
    layer_.num_kv_heads = shape.num_kv_heads;
    layer_.head_dim = kHeadDim;
    layer_.scale = 0.4f;
    layer_.logit_soft_cap = shape.soft_cap;
    layer_.sliding_window = shape.window;
    if (shape.sinks) layer_.sinks = Random(shape.num_heads);
    layer_.rope = rope_.get();
    fresh_ = Random(kTokens * 2 * shape.num_kv_heads * kHeadDim);
    queries_ = Random(kRows * shape.num_heads * kHeadDim);
    layer_.fresh = fresh_;
    layer_.queries = queries_;
    layer_.weights = weights_;
    output_ = Random(shape.num_heads * kHeadDim * kWidth);
    layer_.output = output_;
    corrected_ = fresh_;
    const std::vector<float> noise = Random(corrected_.size());
    for (size_t i = 0; i < noise.size(); ++i) corrected_[i] += 0.2f * noise[i];
    gradient_.resize(corrected_.size());
  }

  std::vector<float> Random(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }
  double Loss(const std::vector<float>& corrected, int32_t threads = 1) {
    std::vector<float> unused(corrected.size());
    return MatchAttention(layer_, corrected, threads, absl::MakeSpan(unused));
  }

  /// What the formulas say, by hand and in double.
  double PlainLoss() const {
    const std::vector<double> wanted = PlainAttention(fresh_), got = PlainAttention(corrected_);
    double missed = 0, all = 0;
    const int32_t inputs = layer_.num_heads * kHeadDim;
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t j = 0; j < kWidth; ++j) {
        double full = 0, other = 0;
        for (int32_t i = 0; i < inputs; ++i) {
          full += wanted[row * inputs + i] * output_[i * kWidth + j];
          other += got[row * inputs + i] * output_[i * kWidth + j];
        }
        missed += weights_[row] * (other - full) * (other - full);
        all += weights_[row] * full * full;
      }
    }
    return missed / all;
  }
  std::vector<double> PlainAttention(const std::vector<float>& kv) const {
    const int32_t channels = 2 * layer_.num_kv_heads * kHeadDim, half = kHeadDim / 2;
    std::vector<double> out(kRows * layer_.num_heads * kHeadDim);
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t head = 0; head < layer_.num_heads; ++head) {
        const int32_t kv_head = head / (layer_.num_heads / layer_.num_kv_heads);
        const int32_t position = kTokens - kRows + row;
        const int32_t first =
            layer_.sliding_window == 0 ? 0 : std::max(0, position + 1 - layer_.sliding_window);
        const float* query = queries_.data() + (row * layer_.num_heads + head) * kHeadDim;
        std::vector<double> weights;
        double sum = layer_.sinks.empty() ? 0 : std::exp(double{layer_.sinks[head]});
        for (int32_t token = first; token <= position; ++token) {
          const float* key = kv.data() + token * channels + kv_head * kHeadDim;
          double score = 0;
          for (int32_t i = 0; i < half; ++i) {
            const bool interleaved = rope_->layout() == kernels::RopeLayout::kInterleaved;
            const int32_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
            const double cos = rope_->cos(token)[i], sin = rope_->sin(token)[i];
            score += query[a] * (key[a] * cos - key[b] * sin) + query[b] * (key[a] * sin + key[b] * cos);
          }
          score *= layer_.scale;
          if (layer_.logit_soft_cap > 0)
            score = layer_.logit_soft_cap * std::tanh(score / layer_.logit_soft_cap);
          sum += weights.emplace_back(std::exp(score));
        }
        for (int32_t token = first; token <= position; ++token) {
          const float* value = kv.data() + token * channels + (layer_.num_kv_heads + kv_head) * kHeadDim;
          for (int32_t i = 0; i < kHeadDim; ++i) {
            out[(row * layer_.num_heads + head) * kHeadDim + i] += weights[token - first] / sum * value[i];
          }
        }
      }
    }
    return out;
  }

  std::mt19937 random_{7};
  std::unique_ptr<kernels::HostRopeTable> rope_;
  LayerAttention layer_;
  std::vector<float> fresh_, queries_, output_, corrected_, gradient_, weights_ = {0.3f, 0.3f, 0.3f, 1, 1};
};

TEST_P(AttentionMatchTest, LossIsThatOfTheFormula) {
  EXPECT_NEAR(Loss(corrected_), PlainLoss(), 1e-5 * PlainLoss());
  EXPECT_LT(Loss(fresh_), 1e-12);  // roundings
}

TEST_P(AttentionMatchTest, GradientIsTheSlopeOfTheLoss) {
  const double loss = MatchAttention(layer_, corrected_, 1, absl::MakeSpan(gradient_));
  ASSERT_GT(loss, 0);
  double largest = 0;
  for (const float slope : gradient_) largest = std::max(largest, std::abs(double{slope}));
  for (size_t i = 0; i < corrected_.size(); ++i) {
    constexpr float kStep = 1e-2f;
    std::vector<float> more = corrected_, less = corrected_;
    more[i] += kStep;
    less[i] -= kStep;
    EXPECT_NEAR(gradient_[i], (Loss(more) - Loss(less)) / (2 * kStep), 5e-3 * largest) << "element " << i;
  }
}

TEST_P(AttentionMatchTest, ThreadsChangeRoundingsOnly) {
  const double loss = MatchAttention(layer_, corrected_, 1, absl::MakeSpan(gradient_));
  for (const int32_t threads : {2, 3, 64}) {
    std::vector<float> gradient(gradient_.size());
    EXPECT_NEAR(MatchAttention(layer_, corrected_, threads, absl::MakeSpan(gradient)), loss, 1e-5 * loss);
    for (size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(gradient[i], gradient_[i], 1e-6) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionMatchTest,
    testing::Values(Shape{.name = "plain"},
                    Shape{.name = "split_halves", .layout = kernels::RopeLayout::kSplitHalf},
                    Shape{.name = "every_head_its_own_kv", .num_kv_heads = 4},
                    Shape{.name = "capped", .soft_cap = 1.5f}, Shape{.name = "window", .window = 6},
                    Shape{.name = "sinks", .sinks = true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvblend::kv
