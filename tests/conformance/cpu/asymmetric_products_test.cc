// Products of a prompt's rows in asymmetric codes of 8 bits, on every instruction set that has kernels for
// them: the largest codes, whose sums would be cut off if they did not fit, against integers; random ones
// against double; and how rows are rounded.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/host/float_convert.h"
#include "tests/conformance/cpu/code_fixture.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kGroup = AsymmetricGroup::kInputs, kHalf = AsymmetricGroup::kHalfInputs;

// Halves of a row are counted through: twice the group, and one more for its odd inputs.
int64_t HalfOf(int64_t input) { return input / kGroup * 2 + input % 2; }

// A tile of rows; code by row and input, multiple and zero point by row and half.
struct AsymmetricTile {
  template <typename Code, typename Multiple, typename ZeroPoint>
  AsymmetricTile(int64_t count, int64_t cols, Code code, Multiple multiple, ZeroPoint zero_point)
      : codes(count * cols / kGroup),
        steps(codes.size(), 1.0f),
        sums(codes.size()),
        values(count * cols),
        rows{codes.data(), steps.data(), sums.data(), cols, kGroup, count} {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t g = c / kGroup, place = c % kGroup / 8 * 8 + kPlaces[c % 8];
        AsymmetricGroup& group = codes[g * count + r];
        const int factor = multiple(r, HalfOf(c)), zero = zero_point(r, HalfOf(c));
        group.codes[place] = static_cast<int8_t>(code(r, c));
        group.multiples[c % 2] = static_cast<int16_t>(factor);
        group.zeros[c % 2] = static_cast<int16_t>(-factor * zero);
        values[r * cols + c] = factor * (code(r, c) - zero);
        sums[g * count + r] += static_cast<float>(values[r * cols + c]);
      }
    }
  }

  std::vector<AsymmetricGroup> codes;
  std::vector<float> steps, sums;
  std::vector<int> values;
  const AsymmetricRows rows;
};

class AsymmetricProductsTest : public CodeKernelsTest {
 protected:
  void SetUp() override {
    CodeKernelsTest::SetUp();
    if (IsSkipped()) return;
    std::erase_if(kernels_,
                  [](const CodeKernels* kernels) { return kernels->asymmetric.multiply == nullptr; });
    ASSERT_FALSE(kernels_.empty()) << "AVX2 has such kernels";
  }
};

bool Fits(const QuantizedFormat& format) {
  return format.group == kGroup && format.bits <= AsymmetricGroup::kMostWeightBits;
}

TEST_F(AsymmetricProductsTest, TheLargestCodesAreNotCutOff) {
  constexpr int64_t kCols = 96;
  for (const CodeKernels* kernels : kernels_) {
    for (const QuantizedFormat& format : kFormats) {
      if (!Fits(format)) continue;
      const int top = (1 << format.bits) - 1;
      for (int weights = 0; weights < 3; ++weights) {
        const Codes source(format, kCols, [&](int64_t row, int64_t col) {
          return weights == 0 || (weights == 1 ? (row + col) % 2 == 0 : (row + col / 4) % 3 == 0) ? top : 0;
        });
        const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, kCols, source).value();
        ASSERT_NE(matrix, nullptr);
        for (const int multiple : {1, AsymmetricGroup::kLargestMultiple}) {
          SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits
                                          << " bits, weights " << weights << ", multiple " << multiple);
          const AsymmetricTile tile(
              kernels->asymmetric.rows, kCols,
              [](int64_t row, int64_t col) {
                const bool high[] = {true, false, col % 2 == 0, col % 4 < 2, col % 32 < 16, col % 3 == 0};
                return high[row % 6] ? 127 : -128;
              },
              [&](int64_t, int64_t half) { return half % 2 == 0 ? multiple : 1; },
              [](int64_t row, int64_t half) {
                return (row + half) % 3 == 0 ? 127 : (row + half) % 3 == 1 ? -128 : 0;
              });
          const std::vector<float> out = ProductsOfBlock(kernels->asymmetric, *matrix, tile.rows);
          for (int64_t r = 0; r < kernels->asymmetric.rows; ++r) {
            for (int64_t o = 0; o < kPackedBlock; ++o) {
              int64_t sum = 0, magnitude = 0;
              for (int64_t c = 0; c < kCols; ++c) {
                const int64_t value = tile.values[r * kCols + c];
                sum += value * source.at(o, c);
                magnitude += std::abs(value) * (top + format.zero_point);
              }
              // Floats hold all sums of multiples of 1; of others they show a unit that was cut off.
              const double error = multiple == 1 ? 0 : 0x1p-22 * static_cast<double>(magnitude);
              ASSERT_LT(error, multiple);
              ASSERT_NEAR(out[r * kPackedBlock + o], static_cast<double>(sum), error) << r << ", " << o;
            }
          }
        }
      }
    }
  }
}

TEST_F(AsymmetricProductsTest, RandomOnesAreAsInDouble) {
  Rng rng(20261127);
  std::uniform_int_distribution<int> code(-128, 127), multiple(1, AsymmetricGroup::kLargestMultiple);
  for (const CodeKernels* kernels : kernels_) {
    for (const QuantizedFormat& format : AllCodeFormats()) {
      if (!Fits(format)) continue;
      SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits << " bits");
      const int64_t cols = format.nested ? 512 : 160, rows = kernels->asymmetric.rows;
      const RandomCodes source(rng, kPackedBlock, cols, [&](int64_t) { return format; });
      const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, cols, source).value();
      ASSERT_NE(matrix, nullptr);
      std::vector<int> drawn(rows * cols), factors(rows * cols / kHalf), zeros(factors.size());
      std::generate(drawn.begin(), drawn.end(), [&] { return code(rng); });
      std::generate(factors.begin(), factors.end(), [&] { return multiple(rng); });
      std::generate(zeros.begin(), zeros.end(), [&] { return code(rng); });
      AsymmetricTile tile(
          rows, cols, [&](int64_t r, int64_t c) { return drawn[r * cols + c]; },
          [&](int64_t r, int64_t h) { return factors[r * cols / kHalf + h]; },
          [&](int64_t r, int64_t h) { return zeros[r * cols / kHalf + h]; });
      for (int64_t r = 0; r < rows; ++r) tile.steps[r] = 0x1p-7f * static_cast<float>(1 + r % 5);
      const std::vector<float> out = ProductsOfBlock(kernels->asymmetric, *matrix, tile.rows);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < kPackedBlock; ++o) {
          double sum = 0, magnitude = 0;
          for (int64_t c = 0; c < cols; ++c) {
            const double x = double{tile.steps[r]} * tile.values[r * cols + c];
            sum += x * source.at(o, c);
            magnitude += std::abs(x) * source.Magnitude(o, c);
          }
          ASSERT_NEAR(out[r * kPackedBlock + o], sum, 16 * 0x1p-24 * magnitude) << r << ", " << o;
        }
      }
    }
  }
}

// What the codes of a row stand for.
std::vector<double> ValuesOf(const AsymmetricRows& row) {
  std::vector<double> values;
  for (int64_t g = 0; g < row.groups(); ++g) {
    const AsymmetricGroup& group = row.codes[g];
    for (int64_t c = 0; c < kGroup; ++c) {
      values.push_back(
          double{row.steps[0]} *
          (group.multiples[c % 2] * group.codes[c / 8 * 8 + kPlaces[c % 8]] + group.zeros[c % 2]));
    }
  }
  return values;
}

class AsymmetricRowsTest : public AsymmetricProductsTest {
 protected:
  void Quantize(const void* x, DataType dtype, int64_t n, const AsymmetricRows& out) const {
    kernels_.front()->asymmetric.quantize(x, dtype, n, out);
  }
};

// Of any size, of one sign or of both, also where a row's halves are of very different size: within half a
// step of a half's own range, and what is 0 is exactly that.
TEST_F(AsymmetricRowsTest, ActivationsAreRoundedToTheNearestCode) {
  Rng rng(20261127);
  std::normal_distribution<float> normal;
  for (int exponent = -140; exponent <= 118; exponent += 3) {
    for (int shape = 0; shape < 6; ++shape) {
      SCOPED_TRACE(testing::Message() << "2^" << exponent << ", shape " << shape);
      constexpr int64_t kCols = 83;  // 13 zeros behind them
      std::vector<float> x(kCols);
      for (int64_t c = 0; c < kCols; ++c) {
        const float value = std::clamp(normal(rng), -4.0f, 4.0f);
        const float shaped = shape == 0   ? value
                             : shape == 1 ? std::abs(value)
                             : shape == 2 ? -5.0f - value
                             : shape == 3 ? (c % 7 == 0 ? 0.0f : value)
                             : shape == 4 ? std::ldexp(value, c % 2 == 0 ? 0 : -7)
                                          : std::ldexp(value, c / kGroup == 1 ? 0 : -20);
        x[c] = std::ldexp(shaped, exponent);
      }
      AsymmetricGroup groups[3];
      float steps[3], sums[3];
      const AsymmetricRows row{groups, steps, sums, 3 * kGroup, kGroup};
      Quantize(x.data(), kF32, kCols, row);
      x.resize(3 * kGroup);
      float least[6] = {}, most[6] = {};
      for (int64_t c = 0; c < 3 * kGroup; ++c) {
        least[HalfOf(c)] = std::min(least[HalfOf(c)], x[c]);
        most[HalfOf(c)] = std::max(most[HalfOf(c)], x[c]);
      }
      double wanted[6], largest = 0;
      for (int half = 0; half < 6; ++half) {
        wanted[half] = (double{most[half]} - least[half]) / 254;
        largest = std::max(largest, wanted[half]);
      }
      const std::vector<double> values = ValuesOf(row);
      double sum = 0;
      for (int64_t c = 0; c < 3 * kGroup; ++c) {
        // Steps are multiples of 1/255 of the largest one; nothing at all of numbers that nobody needs.
        const double step = wanted[HalfOf(c)] + largest / AsymmetricGroup::kLargestMultiple;
        ASSERT_NEAR(values[c], x[c], std::max(0.5001 * step, 0x1p-102)) << c;
        if (x[c] == 0) {
          ASSERT_EQ(values[c], 0) << c;
        }
        sum += values[c];
        if (c % kGroup < kGroup - 1) continue;
        EXPECT_EQ(steps[c / kGroup], steps[0]);
        ASSERT_NEAR(double{sums[c / kGroup]} * steps[0], sum, std::abs(sum) * 0x1p-23 + 0x1p-149);
        sum = 0;
      }
    }
  }
}

TEST_F(AsymmetricRowsTest, WhatIsNotFiniteShowsInItsRow) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (int64_t place = 0; place < 2 * kGroup; place += 9) {
      std::vector<float> x(2 * kGroup, 1.0f);
      x[place] = bad;
      AsymmetricGroup groups[2];
      float steps[2], sums[2];
      Quantize(x.data(), kF32, 2 * kGroup, AsymmetricRows{groups, steps, sums, 2 * kGroup, kGroup});
      EXPECT_TRUE(std::isnan(steps[0])) << bad << " at " << place;
    }
  }
}

TEST_F(AsymmetricRowsTest, RowsOfATileAndOfOtherTypesHaveTheSameCodes) {
  constexpr int64_t kCols = 70, kGroups = 3, kRows = 4;
  Rng rng(20261128);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> halves(kCols);
  std::vector<float> x(kCols);
  for (int64_t c = 0; c < kCols; ++c) {
    halves[c] = F32ToBf16(normal(rng));
    x[c] = Bf16ToF32(halves[c]);
  }
  AsymmetricGroup alone[kGroups], tile[kGroups * kRows];
  float steps[kGroups], sums[kGroups], tile_steps[kGroups * kRows], tile_sums[kGroups * kRows];
  Quantize(x.data(), kF32, kCols, {alone, steps, sums, kGroups * kGroup, kGroup});
  const AsymmetricRows rows{tile, tile_steps, tile_sums, kGroups * kGroup, kGroup, kRows};
  for (int64_t r = 0; r < kRows; ++r) Quantize(halves.data(), DataType::kBF16, kCols, rows.Row(r));
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(std::memcmp(&tile[g * kRows + r], &alone[g], sizeof(alone[g])), 0) << g << ", " << r;
      EXPECT_EQ(tile_steps[g * kRows + r], steps[g]);
      EXPECT_EQ(tile_sums[g * kRows + r], sums[g]);
    }
  }
}

}  // namespace
}  // namespace kvblend::kernels
