#include "engine/generate/log_softmax.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/host/deterministic_exp.h"
#include "kernels/sampled_token.h"

namespace kvblend::generate {
namespace {

using ::kvblend::kernels::DeterministicExp;
using ::testing::HasSubstr;

std::vector<float> RandomLogits(uint64_t seed, int count, float scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TEST(DeterministicExpTest, AgreesWithTheLibraryWithinTwoUnitsInTheLastPlace) {
  EXPECT_EQ(DeterministicExp(0), 1.0);
  EXPECT_EQ(DeterministicExp(-0.0), 1.0);
  std::mt19937_64 random(7);
  double worst = 0, worst_at = 0;
  for (int i = 0; i < 200000; ++i) {
    const double scale = i % 2 == 0 ? 708.0 : 1.0;
    const double x = -scale * static_cast<double>(random() >> 11) * 0x1p-53;
    const double expected = std::exp(x);
    const double unit = std::nextafter(expected, 2) - expected;
    const double error = std::abs(DeterministicExp(x) - expected) / unit;
    if (error > worst) worst = error, worst_at = x;
  }
  EXPECT_LE(worst, 2.0) << "at " << worst_at;
}

TEST(DeterministicExpTest, SmallestArguments) {
  EXPECT_GT(DeterministicExp(-708.0), 0.0);
  EXPECT_EQ(DeterministicExp(-708.1), 0.0);
  EXPECT_EQ(DeterministicExp(-std::numeric_limits<double>::infinity()), 0.0);
}

TEST(LogSoftmaxTest, MatchesLongDoubleSums) {
  for (int count : {1, 2, 17, 49152}) {
    const std::vector<float> logits = RandomLogits(count, count, 6);
    long double sum = 0;
    for (float logit : logits) sum += std::exp(static_cast<long double>(logit));
    const double expected = static_cast<double>(std::log(sum));
    // Each weight is rounded to half a unit, and their sum is at least 1.
    const double bound = std::ldexp(count, -kernels::WeightBits(count) - 1) + 1e-14;
    EXPECT_NEAR(LogSumExp(logits).value(), expected, bound) << count;
    const std::vector<float> logprobs = LogSoftmax(logits).value();
    double total = 0;
    for (int i = 0; i < count; ++i) {
      EXPECT_FLOAT_EQ(logprobs[i], static_cast<float>(logits[i] - expected));
      total += std::exp(static_cast<double>(logprobs[i]));
    }
    EXPECT_NEAR(total, 1, 1e-5) << count;
  }
}

TEST(LogSoftmaxTest, LargeLogitsNeitherOverflowNorVanish) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_NEAR(LogSumExp({1000.0f, 1000.0f}).value(), 1000 + std::log(2.0), 1e-12);
  EXPECT_NEAR(LogSumExp({-1000.0f, -1000.0f}).value(), -1000 + std::log(2.0), 1e-12);
  EXPECT_EQ(LogSumExp({largest, -largest}).value(), static_cast<double>(largest));
}

TEST(LogSoftmaxTest, NonFiniteLogitsAreRefusedByToken) {
  for (float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    const absl::Status status = LogSumExp({0.0f, 1.0f, bad}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr("token 2"));
    EXPECT_EQ(LogSoftmax({bad}).status().code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(LogSumExp({}).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace kvblend::generate
