// Scans of a row of logits against the standard library's, at sizes around their blocks' and with the values
// that integers order differently.
#include "kernels/host/logit_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/normal_values.h"

namespace kvblend::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t FirstLargest(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

TEST(LogitScanTest, MostLikelyIsTheFirstOfTheLargest) {
  std::mt19937 random(1);
  constexpr float kValues[] = {0.0f,
                               -0.0f,
                               1.5f,
                               -1.5f,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::lowest(),
                               std::numeric_limits<float>::denorm_min(),
                               -std::numeric_limits<float>::denorm_min()};
  for (const int size : {1, 2, 7, 1023, 1024, 1025, 5000}) {
    for (int largest = 1; largest <= 8; ++largest) {  // few different values: many are equal
      std::vector<float> row(size);
      for (float& x : row) x = kValues[random() % largest];
      EXPECT_EQ(MostLikely(row), FirstLargest(row)) << size << " logits of " << largest << " values";
      for (float& x : row) x = -std::abs(x) - 1;
      EXPECT_EQ(MostLikely(row), FirstLargest(row)) << size << " negative logits";
    }
    NormalValues normal(-3, 5);
    std::vector<float> row(size);
    for (float& x : row) x = normal(random);
    EXPECT_EQ(MostLikely(row), FirstLargest(row)) << size << " normal logits";
  }
}

TEST(LogitScanTest, FindInvalidIsTheFirstThatIsNotFinite) {
  EXPECT_EQ(FindInvalid({}), -1);
  for (const int size : {1, 1024, 1025, 3000}) {
    const std::vector<float> finite(size, std::numeric_limits<float>::max());
    EXPECT_EQ(FindInvalid(finite), -1) << size;
    for (const int at : {0, size / 2, size - 1}) {
      for (const float value : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("")}) {
        std::vector<float> row = finite;
        row[at] = value;
        row.back() = at == size - 1 ? value : kInfinity;
        EXPECT_EQ(FindInvalid(row), at) << size << ", " << value;
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::kernels
