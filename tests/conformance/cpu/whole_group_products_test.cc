// Products of a prompt's rows in asymmetric codes of whole groups, on every instruction set that has kernels
// for them, against double, with the largest codes and zeros out of reach among them; and how rows are
// rounded.
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

constexpr int64_t kWholeGroup = AsymmetricWholeGroup::kInputs;

// A tile of rows; code by row and input, zero point by row and group.
struct WholeGroupTile {
  template <typename Code, typename ZeroPoint>
  WholeGroupTile(int64_t count, int64_t cols, Code code, ZeroPoint zero_point)
      : codes(count * cols / kWholeGroup),
        steps(codes.size(), 1.0f),
        sums(codes.size()),
        values(count * cols),
        rows{codes.data(), steps.data(), sums.data(), cols, kWholeGroup, count} {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t g = c / kWholeGroup;
        AsymmetricWholeGroup& group = codes[g * count + r];
        const int zero = zero_point(r, g);
        group.codes[c % kWholeGroup / 8 * 8 + kPlaces[c % 8]] = static_cast<int8_t>(code(r, c));
        group.zeros[0] = static_cast<int16_t>(-zero);
        values[r * cols + c] = code(r, c) - zero;
        group.zeros[1] = static_cast<int16_t>(group.zeros[1] + values[r * cols + c]);
      }
    }
  }

  std::vector<AsymmetricWholeGroup> codes;
  std::vector<float> steps, sums;
  std::vector<int> values;
  const WholeGroupRows rows;
};

class WholeGroupProductsTest : public CodeKernelsTest {
 protected:
  void SetUp() override {
    CodeKernelsTest::SetUp();
    if (IsSkipped()) return;
    std::erase_if(kernels_,
                  [](const CodeKernels* kernels) { return kernels->whole_groups.multiply == nullptr; });
    if (kernels_.empty()) GTEST_SKIP() << "this processor has no VNNI, or KVBLEND_CPU leaves it out";
  }

  // Every product within what fractions of zeros round off, and coarser codes.
  static void ExpectProducts(const WholeGroupTile& tile, const RandomCodes& weights, int bits,
                             const std::vector<float>& out) {
    const double fraction = bits <= 4 ? 0x1p-6 : 0x1p-5, largest_zero = bits <= 4 ? 510 : 1022;
    for (int64_t r = 0; r < tile.rows.tile_rows; ++r) {
      for (int64_t o = 0; o < kPackedBlock; ++o) {
        double sum = 0, magnitude = 0, error = 0;
        for (int64_t g = 0; g < tile.rows.groups(); ++g) {
          const double step = tile.steps[g * tile.rows.tile_rows + r];
          double of_group = 0, all = 0;
          for (int64_t c = g * kWholeGroup; c < (g + 1) * kWholeGroup; ++c) {
            const double x = step * tile.values[r * tile.rows.cols + c];
            sum += x * weights.at(o, c);
            magnitude += std::abs(x) * weights.Magnitude(o, c);
            of_group += x;
            all += std::abs(x);
          }
          // A zero in reach is rounded to a fraction of a step; one that is not, with all codes, to steps
          // that are larger.
          const double own_step = weights.StepOf(o, g * kWholeGroup),
                       weight_step =
                           std::max(own_step, weights.LargestOfGroup(o, g * kWholeGroup) / largest_zero);
          error += weight_step * (std::abs(of_group) * fraction / 2 + step / 2);
          if (weight_step > own_step) error += all * weight_step / 2;
        }
        ASSERT_NEAR(out[r * kPackedBlock + o], sum, 1.001 * error + 16 * 0x1p-24 * magnitude)
            << r << ", " << o;
      }
    }
  }
};

bool HasWholeGroups(const QuantizedFormat& format) {
  return format.group == kWholeGroup && format.bits <= AsymmetricWholeGroup::kMostWeightBits;
}

TEST_F(WholeGroupProductsTest, RandomOnesAreAsInDouble) {
  Rng rng(20261127);
  std::uniform_int_distribution<int> code(-128, 127);
  for (const CodeKernels* kernels : kernels_) {
    for (const QuantizedFormat& format : AllCodeFormats()) {
      if (!HasWholeGroups(format)) continue;
      SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits << " bits");
      const int64_t cols = format.nested ? 512 : 160, rows = kernels->whole_groups.rows;
      const RandomCodes source(rng, kPackedBlock, cols, [&](int64_t) { return format; });
      const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, cols, source).value();
      ASSERT_NE(matrix, nullptr);
      for (const bool largest : {false, true}) {
        std::vector<int> drawn(rows * cols), zeros(rows * cols / kWholeGroup);
        std::generate(drawn.begin(), drawn.end(), [&] { return code(rng); });
        std::generate(zeros.begin(), zeros.end(), [&] { return code(rng); });
        WholeGroupTile tile(
            rows, cols,
            [&](int64_t r, int64_t c) {
              return !largest     ? drawn[r * cols + c]
                     : r % 3 == 2 ? (c % 2 == 0 ? 127 : -128)
                     : r % 3 == 0 ? 127
                                  : -128;
            },
            [&](int64_t r, int64_t g) {
              return !largest ? zeros[r * cols / kWholeGroup + g] : (r + g) % 2 == 0 ? -128 : 127;
            });
        for (size_t i = 0; i < tile.steps.size(); ++i)
          tile.steps[i] = 0x1p-7f * static_cast<float>(1 + i % 5);
        ExpectProducts(tile, source, format.bits, ProductsOfBlock(kernels->whole_groups, *matrix, tile.rows));
      }
    }
  }
}

// Columns of 4 and of 5 bits in one block.
TEST_F(WholeGroupProductsTest, ColumnsOfABlockMayHaveDifferentBits) {
  Rng rng(20261128);
  constexpr int64_t kCols = 96;
  std::uniform_int_distribution<int> code(-128, 127);
  for (const CodeKernels* kernels : kernels_) {
    const RandomCodes source(rng, kPackedBlock, kCols,
                             [&](int64_t row) { return kFormats[row / kColumnOutputs % 4]; });
    const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, kCols, source).value();
    ASSERT_NE(matrix, nullptr);
    const WholeGroupTile tile(
        kernels->whole_groups.rows, kCols,
        [&](int64_t r, int64_t c) { return (r * 37 + c * 11) % 256 - 128; },
        [](int64_t r, int64_t g) { return static_cast<int>(r * 13 + g * 7) - 40; });
    ExpectProducts(tile, source, 5, ProductsOfBlock(kernels->whole_groups, *matrix, tile.rows));
  }
}

// Weights that are all alike, or nearly: steps of 0 and steps far below what they are.
TEST_F(WholeGroupProductsTest, WeightsMayBeAlike) {
  Rng rng(20261129);
  constexpr int64_t kCols = 64;
  for (const CodeKernels* kernels : kernels_) {
    for (const int format : {1, 3}) {
      RandomCodes source(rng, kPackedBlock, kCols, [&](int64_t) { return kFormats[format]; });
      for (int64_t row = 0; row < kPackedBlock; ++row) {
        const float scales[] = {0.0f, 0x1p-14f, -0x1p-14f, 0x1p-24f, 0x1p-9f, -0x1p-9f, 0x1p-11f};
        source.set_scale(row, row % 2, scales[row % 7]);
      }
      const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, kCols, source).value();
      ASSERT_NE(matrix, nullptr);
      const WholeGroupTile tile(
          kernels->whole_groups.rows, kCols,
          [](int64_t r, int64_t c) { return static_cast<int>((r * 41 + c * 7) % 256) - 128; },
          [](int64_t r, int64_t) { return static_cast<int>(r * 17) - 60; });
      ExpectProducts(tile, source, kFormats[format].bits,
                     ProductsOfBlock(kernels->whole_groups, *matrix, tile.rows));
    }
  }
}

class WholeGroupRowsTest : public WholeGroupProductsTest {
 protected:
  void Quantize(const void* x, DataType dtype, int64_t n, const WholeGroupRows& out) const {
    kernels_.front()->whole_groups.quantize(x, dtype, n, out);
  }
};

// Of any size, of one sign or of both: within half a step, and what is 0 is exactly that.
TEST_F(WholeGroupRowsTest, ActivationsAreRoundedToTheNearestCode) {
  Rng rng(20261127);
  std::normal_distribution<float> normal;
  for (int exponent = -140; exponent <= 120; exponent += 3) {
    for (int shape = 0; shape < 5; ++shape) {
      SCOPED_TRACE(testing::Message() << "2^" << exponent << ", shape " << shape);
      constexpr int64_t kCols = 83, kGroups = 3;  // 13 zeros behind them
      std::vector<float> x(kCols);
      for (int64_t c = 0; c < kCols; ++c) {
        const float value = std::clamp(normal(rng), -4.0f, 4.0f);
        const float shaped = shape == 0   ? value
                             : shape == 1 ? std::abs(value)
                             : shape == 2 ? -5.0f - value
                             : shape == 3 ? (c % 7 == 0 ? 0.0f : value)
                                          : std::ldexp(value, c / kWholeGroup == 1 ? 0 : -20);
        x[c] = std::ldexp(shaped, exponent);
      }
      AsymmetricWholeGroup groups[kGroups];
      float steps[kGroups], sums[kGroups];
      Quantize(x.data(), DataType::kF32, kCols, {groups, steps, sums, kGroups * kWholeGroup, kWholeGroup});
      x.resize(kGroups * kWholeGroup);
      for (int64_t g = 0; g < kGroups; ++g) {
        const auto [least, most] =
            std::minmax_element(x.begin() + g * kWholeGroup, x.begin() + (g + 1) * kWholeGroup);
        const double wanted = (std::max(0.0, double{*most}) - std::min(0.0, double{*least})) / 254;
        int sum = 0;
        for (int64_t c = 0; c < kWholeGroup; ++c) {
          const int code = groups[g].codes[c / 8 * 8 + kPlaces[c % 8]] + groups[g].zeros[0];
          const float value = x[g * kWholeGroup + c];
          ASSERT_NEAR(steps[g] * double{static_cast<float>(code)}, value, std::max(0.5001 * wanted, 0x1p-102))
              << c;
          if (value == 0) {
            ASSERT_EQ(code, 0) << c;
          }
          sum += code;
        }
        ASSERT_EQ(groups[g].zeros[1], sum);
      }
    }
  }
}

TEST_F(WholeGroupRowsTest, WhatIsNotFiniteShowsInItsGroup) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (int64_t place = 0; place < 2 * kWholeGroup; place += 9) {
      std::vector<float> x(2 * kWholeGroup, 1.0f);
      x[place] = bad;
      AsymmetricWholeGroup groups[2];
      float steps[2], sums[2];
      Quantize(x.data(), DataType::kF32, 2 * kWholeGroup,
               {groups, steps, sums, 2 * kWholeGroup, kWholeGroup});
      EXPECT_TRUE(std::isnan(steps[place / kWholeGroup])) << bad << " at " << place;
      EXPECT_TRUE(std::isfinite(steps[1 - place / kWholeGroup])) << bad << " at " << place;
    }
  }
}

TEST_F(WholeGroupRowsTest, RowsOfATileAndOfOtherTypesHaveTheSameCodes) {
  constexpr int64_t kCols = 70, kGroups = 3, kRows = 4;
  Rng rng(20261128);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> halves(kCols);
  std::vector<float> x(kCols);
  for (int64_t c = 0; c < kCols; ++c) {
    halves[c] = F32ToBf16(normal(rng));
    x[c] = Bf16ToF32(halves[c]);
  }
  AsymmetricWholeGroup alone[kGroups], tile[kGroups * kRows];
  float steps[kGroups], sums[kGroups], tile_steps[kGroups * kRows], tile_sums[kGroups * kRows];
  Quantize(x.data(), DataType::kF32, kCols, {alone, steps, sums, kGroups * kWholeGroup, kWholeGroup});
  const WholeGroupRows rows{tile, tile_steps, tile_sums, kGroups * kWholeGroup, kWholeGroup, kRows};
  for (int64_t r = 0; r < kRows; ++r) Quantize(halves.data(), DataType::kBF16, kCols, rows.Row(r));
  for (int64_t g = 0; g < kGroups; ++g) {
    for (int64_t r = 0; r < kRows; ++r) {
      EXPECT_EQ(std::memcmp(&tile[g * kRows + r], &alone[g], sizeof(alone[g])), 0) << g << ", " << r;
      EXPECT_EQ(tile_steps[g * kRows + r], steps[g]);
    }
  }
}

}  // namespace
}  // namespace kvblend::kernels
