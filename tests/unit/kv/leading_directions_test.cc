#include "engine/kv/fits/leading_directions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"

namespace kvblend::kv {
namespace {

bool Always() { return true; }

double Dot(const double* a, const double* b, int64_t size) { return std::inner_product(a, a + size, b, 0.0); }

/// A symmetric matrix with these eigenvalues: a diagonal one, reflected many times.
std::vector<double> MatrixOf(const std::vector<double>& values, std::mt19937& random) {
  const auto size = static_cast<int64_t>(values.size());
  std::vector<double> matrix(size * size);
  for (int64_t i = 0; i < size; ++i) matrix[i * size + i] = values[i];
  std::normal_distribution<double> normal;
  for (int reflection = 0; reflection < 4; ++reflection) {
    std::vector<double> axis(size);
    for (double& value : axis) value = normal(random);
    const double squares = Dot(axis.data(), axis.data(), size);
    // (1 - 2 a a' / squares) M (1 - 2 a a' / squares), a side at a time.
    for (const bool rows : {true, false}) {
      for (int64_t line = 0; line < size; ++line) {
        const auto at = [&](int64_t i) -> double& {
          return matrix[rows ? line * size + i : i * size + line];
        };
        double along = 0;
        for (int64_t i = 0; i < size; ++i) along += at(i) * axis[i];
        for (int64_t i = 0; i < size; ++i) at(i) -= 2 * along / squares * axis[i];
      }
    }
  }
  return matrix;
}

/// The largest of `expected`, with vectors that belong to them.
void ExpectLeading(const std::vector<double>& matrix, std::vector<double> expected, int32_t count) {
  const auto size = static_cast<int64_t>(expected.size());
  std::sort(expected.begin(), expected.end(), std::greater<>());
  const auto leading = FindLeadingDirections(matrix, size, count, &Always);
  ASSERT_TRUE(leading.has_value());
  ASSERT_EQ(leading->values.size(), static_cast<size_t>(count));
  ASSERT_EQ(leading->vectors.size(), static_cast<size_t>(count * size));
  double norm = 0;
  for (const double value : expected) norm = std::max(norm, std::abs(value));
  // Roundings of a few n operations each.
  const double tolerance = 20 * static_cast<double>(size) * 2.3e-16;
  for (int32_t i = 0; i < count; ++i) {
    EXPECT_NEAR(leading->values[i], expected[i], tolerance * norm) << i;
    const double* vector = &leading->vectors[i * size];
    double residual = 0;
    for (int64_t row = 0; row < size; ++row) {
      const double left = Dot(&matrix[row * size], vector, size) - leading->values[i] * vector[row];
      residual += left * left;
    }
    EXPECT_LE(std::sqrt(residual), tolerance * norm) << i;
    for (int32_t j = 0; j <= i; ++j) {
      EXPECT_NEAR(Dot(vector, &leading->vectors[j * size], size), i == j ? 1 : 0, tolerance) << i << " " << j;
    }
  }
}

TEST(LeadingDirections, AreThoseOfTheLargestEigenvalues) {
  std::mt19937 random(11);
  for (const int64_t size : {1, 2, 3, 8, 50, 200}) {
    SCOPED_TRACE(size);
    std::vector<double> values(size);
    for (int64_t i = 0; i < size; ++i) values[i] = std::pow(0.9, static_cast<double>(i));
    const std::vector<double> matrix = MatrixOf(values, random);
    for (const int64_t count : {int64_t{1}, std::min<int64_t>(size, 16), std::min<int64_t>(size, 60)}) {
      ExpectLeading(matrix, values, static_cast<int32_t>(count));
    }
  }
}

TEST(LeadingDirections, EqualOnesAndNothingAreDirectionsToo) {
  std::mt19937 random(12);
  constexpr int64_t kSize = 60;
  const std::vector<double> zeros(kSize), ones(kSize, 1.0);
  std::vector<double> few = zeros, close = ones, steps = zeros, tiny = zeros, negative = ones;
  few[3] = few[9] = 2;  // as what two directions make
  for (int64_t i = 0; i < kSize; ++i) {
    close[i] += 1e-15 * static_cast<double>(i);
    steps[i] = static_cast<double>(i / 10);
    tiny[i] = 1e-200 * static_cast<double>(i);
    negative[i] = -static_cast<double>(i % 7);
  }
  for (const auto& values : {zeros, ones, few, close, steps, tiny, negative}) {
    for (const int32_t count : {1, 16, 60}) ExpectLeading(MatrixOf(values, random), values, count);
    // As it is, and in order.
    std::vector<double> diagonal(kSize * kSize);
    for (int64_t i = 0; i < kSize; ++i) diagonal[i * kSize + i] = values[i];
    ExpectLeading(diagonal, values, 16);
  }
}

TEST(LeadingDirections, WhatIsNotFiniteEndsAllTheSame) {
  for (const double bad : {std::nan(""), HUGE_VAL, 1e308}) {
    std::vector<double> matrix(20 * 20, 1.0);
    matrix[5 * 20 + 5] = bad;
    EXPECT_TRUE(FindLeadingDirections(matrix, 20, 4, &Always).has_value());
  }
}

TEST(LeadingDirections, EndsWithNothingBetweenItsSteps) {
  const std::vector<double> matrix = {2, 1, 1, 2};
  for (const int stop : {1, 2}) {
    int asked = 0;
    EXPECT_FALSE(FindLeadingDirections(matrix, 2, 1, [&] { return ++asked < stop; }).has_value());
    EXPECT_EQ(asked, stop);
  }
}

}  // namespace
}  // namespace kvblend::kv
