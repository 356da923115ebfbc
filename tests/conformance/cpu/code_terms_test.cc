// Few rows of activations in 16 bits, in two terms of 8 each or as pairs, on every instruction set that this
// processor has: the largest terms, whose sums would be cut off if they did not fit, against integers; and
// bit for bit what pairs of many rows give.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/linear/code_products.h"
#include "kernels/host/float_convert.h"
#include "tests/conformance/cpu/code_fixture.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {
namespace {

class CodeTermsTest : public CodeKernelsTest {};

// Both terms of an activation in 16 bits as large as they can be, with equal signs, with opposite ones, and
// one of them alone, so that floats hold its sums and show every unit that was cut off.
TEST_F(CodeTermsTest, TheLargestTermsAreNotCutOff) {
  constexpr int64_t kCols = 32, kNumRows = 8, kWords = kCols / kCodesPerWord;
  for (const CodeKernels* kernels : kernels_) {
    for (const QuantizedFormat& format : kFormats) {
      const int top = (1 << format.bits) - 1;
      for (int pattern = 0; pattern < 4; ++pattern) {
        SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits
                                        << " bits, groups of " << format.group << ", weights " << pattern);
        const Codes source(format, kCols, [&](int64_t row, int64_t col) {
          return pattern == 0 || (pattern == 2 && (row + col) % 2 == 0) || (pattern == 3 && col / 4 % 2 == 0)
                     ? top
                     : 0;
        });
        const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, kCols, source).value();
        ASSERT_NE(matrix, nullptr);
        for (const auto& [high, low] : {std::pair{127, 127}, {127, -127}, {0, 127}, {127, 0}}) {
          std::vector<CodeTerms> words(kNumRows * kWords);
          std::vector<int> codes(kNumRows * kCols);
          std::vector<float> steps(kNumRows * kCols / format.group, 1.0f), sums(steps.size());
          for (int64_t r = 0; r < kNumRows; ++r) {
            for (int64_t c = 0; c < kCols; ++c) {
              const int signs[kNumRows] = {1,
                                           -1,
                                           c % 2 == 0 ? 1 : -1,
                                           c % 4 < 2 ? 1 : -1,
                                           c % 8 < 4 ? 1 : -1,
                                           c < 17 ? -1 : 1,
                                           0,
                                           c % 3 == 0 ? -1 : 1};
              const int64_t place = c / 8 * 8 + kPlaces[c % 8];
              CodeTerms& word = words[r * kWords + place / kCodesPerWord];
              word.high[place % kCodesPerWord] = static_cast<int8_t>(high * signs[r]);
              word.low[place % kCodesPerWord] = static_cast<int8_t>(low * signs[r]);
              codes[r * kCols + c] = (kTermBase * high + low) * signs[r];
              sums[(r * kCols + c) / format.group] += static_cast<float>(codes[r * kCols + c]);
            }
          }
          const RowTerms rows{words.data(), steps.data(), sums.data(), kCols, format.group};
          const FewRowTiles tiles(rows, kNumRows, kernels->few_term_rows.tile_rows);
          std::vector<float> out(kNumRows * kColumnOutputs, 1.0f);
          std::vector<float*> targets;
          for (int64_t r = 0; r < kNumRows; ++r) targets.push_back(out.data() + r * kColumnOutputs);
          for (int64_t c = 0; c < matrix->num_columns(); ++c) {
            kernels->few_term_rows.multiply(matrix->column(c), tiles.rows, kNumRows, /*accumulate=*/false,
                                            targets.data());
            for (int64_t r = 0; r < kNumRows; ++r) {
              for (int64_t o = 0; o < kColumnOutputs; ++o) {
                int64_t sum = 0, magnitude = 0;
                for (int64_t i = 0; i < kCols; ++i) {
                  const int64_t code = codes[r * kCols + i];
                  sum += code * source.at(c * kColumnOutputs + o, i);
                  magnitude += std::abs(code) * (top + format.zero_point);
                }
                ASSERT_NEAR(targets[r][o], static_cast<double>(sum), 0x1p-22 * static_cast<double>(magnitude))
                    << high << ", " << low << ": row " << r << ", output " << o;
              }
            }
          }
        }
      }
    }
  }
}

// Rows in 16 bits, straight from a column, are what pairs give from the block, for any number of rows.
TEST_F(CodeTermsTest, FewRowsAreBitForBitAsPairsOfMany) {
  constexpr int64_t kNumRows = 8;
  Rng rng(20261124);
  for (const QuantizedFormat& format : AllCodeFormats()) {
    const int64_t cols = format.nested ? 512 : 160;
    const RandomCodes source(rng, kPackedBlock, cols, [&](int64_t) { return format; });
    const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, cols, source).value();
    ASSERT_NE(matrix, nullptr);
    for (int64_t group = 16; group <= format.group; group += 16) {
      std::uniform_int_distribution<int> draw(-kLargestRowCode<int16_t>, kLargestRowCode<int16_t>);
      std::vector<int16_t> codes(kNumRows * cols);
      std::vector<CodeTerms> terms(codes.size() / kCodesPerWord);
      std::vector<float> steps(codes.size() / group), sums(steps.size());
      for (size_t i = 0; i < codes.size(); ++i) {
        const int code = draw(rng), high = static_cast<int>(std::lround(code / double{kTermBase}));
        codes[i] = static_cast<int16_t>(code);
        const size_t place = i / 8 * 8 + static_cast<size_t>(kPlaces[i % 8]);
        terms[place / kCodesPerWord].high[place % kCodesPerWord] = static_cast<int8_t>(high);
        terms[place / kCodesPerWord].low[place % kCodesPerWord] =
            static_cast<int8_t>(code - kTermBase * high);
        steps[i / group] = 0x1p-9f * static_cast<float>(1 + i / group % 7);
        sums[i / group] += static_cast<float>(code) * steps[i / group];
      }
      const RowPairs pairs{codes.data(), steps.data(), sums.data(), cols, group};
      const RowTerms rows{terms.data(), steps.data(), sums.data(), cols, group};
      for (const CodeKernels* kernels : kernels_) {
        SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits
                                        << " bits, groups of " << group << " of " << format.group);
        const ExpandedBlock block(*matrix, cols, group, RowPairs::kPerWord, format.bits,
                                  kernels->pairs.expand);
        std::vector<float> many(kNumRows * kPackedBlock);
        for (const int64_t first : {int64_t{0}, kNumRows - kernels->pairs.rows}) {
          const RowTile tile(pairs, first, kernels->pairs.rows);
          kernels->pairs.multiply(tile.rows, block.codes, 0, cols / group, /*accumulate=*/false,
                                  many.data() + first * kPackedBlock, kPackedBlock);
        }
        ExpectFewRowsAsMany(*matrix, rows, kNumRows, kernels->few_term_rows, many);
        if (kernels->few_pair_rows.multiply != nullptr) {
          ExpectFewRowsAsMany(*matrix, pairs, kNumRows, kernels->few_pair_rows, many);
        }
      }
    }
  }
}

// Of any size, in groups of 16 and of 32, with a part of a group behind them, as f32 and as bf16: both terms
// together are the codes that pairs have.
TEST_F(CodeTermsTest, ActivationsHaveTheCodesOfPairs) {
  Rng rng(20261128);
  std::normal_distribution<float> normal;
  for (int exponent = -149; exponent <= 120; exponent += 2) {
    for (const int64_t group : {16, 32}) {
      for (const int64_t count : {96, 75}) {
        SCOPED_TRACE(testing::Message() << "2^" << exponent << ", " << count << " in groups of " << group);
        constexpr int64_t kCols = 96;
        std::vector<float> x(count);
        std::vector<uint16_t> halves(count);
        for (int64_t i = 0; i < count; ++i) {
          const float value = std::ldexp(std::clamp(normal(rng), -4.0f, 4.0f), exponent);
          halves[i] = F32ToBf16(i / group == 1 ? 0.0f : value);
          x[i] = Bf16ToF32(halves[i]);
        }
        std::vector<int16_t> codes(kCols);
        std::vector<float> steps(kCols / group), sums(steps.size());
        simd::QuantizeActivations(x.data(), kF32, count,
                                  RowPairs{codes.data(), steps.data(), sums.data(), kCols, group});
        for (const bool of_halves : {false, true}) {
          std::vector<CodeTerms> terms(kCols / kCodesPerWord);
          std::vector<float> term_steps(steps.size()), term_sums(steps.size());
          const void* row = of_halves ? static_cast<const void*>(halves.data()) : x.data();
          kernels_.front()->few_term_rows.quantize(
              row, of_halves ? DataType::kBF16 : kF32, count,
              RowTerms{terms.data(), term_steps.data(), term_sums.data(), kCols, group});
          for (int64_t i = 0; i < kCols; ++i) {
            const int64_t place = i / 8 * 8 + kPlaces[i % 8];
            const CodeTerms& word = terms[place / kCodesPerWord];
            const int high = word.high[place % kCodesPerWord], low = word.low[place % kCodesPerWord];
            ASSERT_LE(std::max(std::abs(high), std::abs(low)), 127) << i;
            ASSERT_EQ(kTermBase * high + low, codes[i]) << i;
          }
          EXPECT_EQ(term_steps, steps);
          EXPECT_EQ(term_sums, sums);
        }
      }
    }
  }
}

TEST_F(CodeTermsTest, WhatIsNotFiniteShowsInItsGroup) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (int64_t place = 0; place < 64; place += 5) {
      std::vector<float> x(64, 1.0f), steps(2), sums(2);
      x[place] = bad;
      std::vector<CodeTerms> terms(16);
      kernels_.front()->few_term_rows.quantize(x.data(), kF32, 64,
                                               RowTerms{terms.data(), steps.data(), sums.data(), 64, 32});
      EXPECT_TRUE(std::isnan(steps[place / 32])) << bad << " at " << place;
      EXPECT_EQ(steps[1 - place / 32], 1.0f / kLargestRowCode<CodeTerms>);
    }
  }
}

}  // namespace
}  // namespace kvblend::kernels
