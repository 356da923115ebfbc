// The kernels of products of codes, on every instruction set that this processor has: sums of the largest
// codes, which would be cut off if they did not fit, against integers; and few rows against many, bit for
// bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/linear/code_products.h"
#include "tests/conformance/cpu/code_fixture.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {
namespace {

// Rows of codes whose steps are powers of two.
struct Rows {
  Rows(int64_t count, int64_t num_cols, int64_t group_size,
       const std::function<int(int64_t, int64_t)>& code_of)
      : cols(num_cols),
        group(group_size),
        codes(count * num_cols),
        steps(count * cols / group),
        sums(steps.size()) {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int code = code_of(r, c);
        codes[r * cols + c / 8 * 8 + kPlaces[c % 8]] = static_cast<int8_t>(code);
        values.push_back(code);
        steps[(r * cols + c) / group] = 1.0f;
        sums[(r * cols + c) / group] += static_cast<float>(code);
      }
    }
  }
  RowCodes view() { return {codes.data(), steps.data(), sums.data(), cols, group}; }
  int at(int64_t row, int64_t col) const { return values[row * cols + col]; }

  const int64_t cols, group;
  std::vector<int8_t> codes;
  std::vector<float> steps, sums;
  std::vector<int> values;
};

// Every way of filling the lanes whose sums are the largest, or the smallest, that there are.
TEST_F(CodeKernelsTest, TheLargestCodesAreSummedExactly) {
  constexpr int64_t kCols = 96, kNumRows = 8;
  for (const CodeKernels* kernels : kernels_) {
    for (const QuantizedFormat& format : kFormats) {
      const int top = (1 << format.bits) - 1;
      const std::function<int(int64_t, int64_t)> weights[] = {
          [&](int64_t, int64_t) { return top; },
          [&](int64_t, int64_t) { return 0; },
          [&](int64_t row, int64_t col) { return (row + col) % 2 == 0 ? top : 0; },
          [&](int64_t row, int64_t col) { return (row + col / 4) % 3 == 0 ? top : top / 2 + 1; },
      };
      for (size_t w = 0; w < std::size(weights); ++w) {
        SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits
                                        << " bits, groups of " << format.group << ", weights " << w);
        const Codes source(format, kCols, weights[w]);
        const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, kCols, source).value();
        ASSERT_NE(matrix, nullptr);
        Rows rows(kNumRows, kCols, format.group, [](int64_t row, int64_t col) {
          const int signs[kNumRows] = {1,
                                       -1,
                                       col % 2 == 0 ? 1 : -1,
                                       col % 4 < 2 ? 1 : -1,
                                       col % 8 < 4 ? 1 : -1,
                                       col < 33 ? -1 : 1,
                                       0,
                                       col % 3 == 0 ? -1 : 1};
          return 127 * signs[row];
        });
        const auto expected = [&](int64_t row, int64_t output) {
          int64_t sum = 0;
          for (int64_t c = 0; c < kCols; ++c) sum += int64_t{rows.at(row, c)} * source.at(output, c);
          return static_cast<float>(sum);
        };
        // Sums stay below 2^24, so that floats hold them.
        const FewRowTiles tiles(rows.view(), kNumRows, kernels->few_rows.tile_rows);
        std::vector<float> out(kNumRows * kPackedBlock);
        for (int64_t c = 0; c < matrix->num_columns(); ++c) {
          std::vector<float*> targets;
          for (int64_t r = 0; r < kNumRows; ++r) {
            targets.push_back(out.data() + r * kPackedBlock + c * kColumnOutputs);
          }
          kernels->few_rows.multiply(matrix->column(c), tiles.rows, kNumRows, /*accumulate=*/false,
                                     targets.data());
        }
        for (int64_t r = 0; r < kNumRows; ++r) {
          for (int64_t o = 0; o < kPackedBlock; ++o) ASSERT_EQ(out[r * kPackedBlock + o], expected(r, o));
        }
        const int64_t groups = kCols / format.group;
        const ExpandedBlock block(*matrix, kCols, format.group, kCodesPerWord, format.bits,
                                  kernels->bytes.expand);
        for (int64_t first = 0; first + kernels->bytes.rows <= kNumRows; ++first) {
          std::fill(out.begin(), out.end(), 1.0f);
          const RowTile tile(rows.view(), first, kernels->bytes.rows);
          kernels->bytes.multiply(tile.rows, block.codes, 0, groups, /*accumulate=*/true, out.data(),
                                  kPackedBlock);
          for (int64_t r = 0; r < kernels->bytes.rows; ++r) {
            for (int64_t o = 0; o < kPackedBlock; ++o) {
              ASSERT_EQ(out[r * kPackedBlock + o], expected(first + r, o) + 1);
            }
          }
        }
      }
    }
  }
}

// The same with activations in 16 bits. Floats do not hold all sums, but show one that was cut off.
TEST_F(CodeKernelsTest, TheLargestPairsDoNotOverflow) {
  constexpr int64_t kCols = 96;
  for (const CodeKernels* kernels : kernels_) {
    for (const QuantizedFormat& format : kFormats) {
      for (const bool all : {true, false}) {
        SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits
                                        << " bits, groups of " << format.group << ", " << all);
        const int top = (1 << format.bits) - 1;
        const Codes source(format, kCols,
                           [&](int64_t row, int64_t col) { return all || (row + col) % 2 == 0 ? top : 0; });
        const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, kCols, source).value();
        ASSERT_NE(matrix, nullptr);
        const int64_t num_rows = kernels->pairs.rows, groups = kCols / format.group;
        std::vector<int16_t> codes;
        std::vector<float> steps(num_rows * groups, 1.0f), sums(num_rows * groups);
        for (int64_t r = 0; r < num_rows; ++r) {
          for (int64_t c = 0; c < kCols; ++c) {
            const int signs[] = {1, -1, c % 2 == 0 ? 1 : -1, c % 4 < 2 ? -1 : 1, 0, c % 3 == 0 ? -1 : 1};
            codes.push_back(static_cast<int16_t>(32767 * signs[r % 6]));
            sums[r * groups + c / format.group] += codes.back();
          }
        }
        const RowTile tile(RowPairs{codes.data(), steps.data(), sums.data(), kCols, format.group}, 0,
                           num_rows);
        const ExpandedBlock block(*matrix, kCols, format.group, RowPairs::kPerWord, format.bits,
                                  kernels->pairs.expand);
        std::vector<float> out(num_rows * kPackedBlock, 5.0f);
        kernels->pairs.multiply(tile.rows, block.codes, 0, 1, /*accumulate=*/false, out.data(), kPackedBlock);
        kernels->pairs.multiply(tile.rows, block.codes, 1, groups - 1, /*accumulate=*/true, out.data(),
                                kPackedBlock);
        for (int64_t r = 0; r < num_rows; ++r) {
          for (int64_t o = 0; o < kPackedBlock; ++o) {
            int64_t sum = 0;
            for (int64_t c = 0; c < kCols; ++c) sum += int64_t{codes[r * kCols + c]} * source.at(o, c);
            ASSERT_NEAR(out[r * kPackedBlock + o], static_cast<double>(sum), 0x1p-21 * 32767 * top * kCols)
                << r << ", " << o;
          }
        }
      }
    }
  }
}

// Random codes, scales and minima, with an activation of 16 inputs' steps: what a column gives for any number
// of rows is what the block gives, and no set differs from another by more than what their ways to write 8
// bits round differently.
TEST_F(CodeKernelsTest, FewRowsAreBitForBitAsMany) {
  constexpr int64_t kNumRows = 8;
  Rng rng(20261123);
  for (const QuantizedFormat& format : AllCodeFormats()) {
    const int64_t cols = format.nested ? 512 : 160;
    const RandomCodes source(rng, kPackedBlock, cols, [&](int64_t) { return format; });
    const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, cols, source).value();
    ASSERT_NE(matrix, nullptr);
    for (int64_t group = 16; group <= format.group; group += 16) {
      std::uniform_int_distribution<int> code(-127, 127);
      Rows rows(kNumRows, cols, group, [&](int64_t, int64_t) { return code(rng); });
      for (size_t i = 0; i < rows.steps.size(); ++i) {
        const float step = 0.01f * static_cast<float>(1 + i % 7);
        rows.steps[i] = step;
        rows.sums[i] *= step;
      }
      for (const CodeKernels* kernels : kernels_) {
        SCOPED_TRACE(testing::Message() << std::string(kernels->name) << ", " << format.bits
                                        << " bits, groups of " << group << " of " << format.group);
        const ExpandedBlock block(*matrix, cols, group, kCodesPerWord, format.bits, kernels->bytes.expand);
        std::vector<float> many(kernels->bytes.rows * kPackedBlock);
        const RowTile tile(rows.view(), 0, kernels->bytes.rows);
        kernels->bytes.multiply(tile.rows, block.codes, 0, 3, /*accumulate=*/false, many.data(),
                                kPackedBlock);
        kernels->bytes.multiply(tile.rows, block.codes, 3, cols / group - 3, /*accumulate=*/true, many.data(),
                                kPackedBlock);
        for (int64_t r = 0; r < kernels->bytes.rows; ++r) {
          for (int64_t o = 0; o < kPackedBlock; ++o) {
            double sum = 0, magnitude = 0;
            for (int64_t c = 0; c < cols; ++c) {
              const double x = double{rows.steps[(r * cols + c) / group]} * rows.at(r, c);
              sum += x * source.at(o, c);
              magnitude += std::abs(x) * source.Magnitude(o, c);
            }
            ASSERT_NEAR(many[r * kPackedBlock + o], sum, 16 * 0x1p-24 * magnitude) << r << ", " << o;
          }
        }
        ExpectFewRowsAsMany(*matrix, rows.view(), kNumRows, kernels->few_rows, many);
      }
    }
  }
}

// Every row has one place, tiles lie one behind the other, and no more than one row is lacking in them.
TEST(FewRowTilesTest, RowsFillTheirTiles) {
  for (const int64_t most : {2, 4, 8}) {
    for (int64_t count = 1; count <= kMaxColumnRows; ++count) {
      SCOPED_TRACE(testing::Message() << count << " rows in tiles of at most " << most);
      std::vector<TiledRow> places;
      AppendTiledRows(count, most, places, [](int64_t i) { return 100 + i; });
      ASSERT_LE(places.size(), static_cast<size_t>(std::min(count + 1, kMaxColumnRows)));
      int64_t tile = 0;
      for (size_t i = 0; i < places.size(); ++i) {
        const auto place = static_cast<int64_t>(i);
        if (place == tile + places[tile].tile_rows) tile = place;
        EXPECT_LE(places[i].tile_rows, most);
        EXPECT_EQ(places[i].before, tile);
        EXPECT_EQ(places[i].index, place - tile);
        EXPECT_EQ(places[i].source, place < count ? 100 + place : -1);
      }
      EXPECT_EQ(tile + places[tile].tile_rows, static_cast<int64_t>(places.size()));
    }
  }
}

// What is not finite in a row stays in its row.
TEST_F(CodeKernelsTest, NaNStaysInItsRow) {
  constexpr int64_t kCols = 64;
  const Codes source(kFormats[1], kCols,
                     [](int64_t row, int64_t col) { return static_cast<int>((row + col) % 16); });
  const auto matrix = QuantizedMatrix::Create(arena_, 16, kCols, source).value();
  Rows rows(3, kCols, 32, [](int64_t row, int64_t) { return row == 1 ? 0 : 3; });
  rows.steps[2] = std::numeric_limits<float>::quiet_NaN();  // of row 1
  for (const CodeKernels* kernels : kernels_) {
    float out[3][kColumnOutputs];
    float* const targets[] = {out[0], out[1], out[2]};
    const FewRowTiles tiles(rows.view(), 3, kernels->few_rows.tile_rows);
    kernels->few_rows.multiply(matrix->column(0), tiles.rows, 3, /*accumulate=*/false, targets);
    for (int64_t o = 0; o < kColumnOutputs; ++o) {
      EXPECT_TRUE(std::isnan(out[1][o])) << std::string(kernels->name);
      EXPECT_TRUE(std::isfinite(out[0][o]) && out[0][o] == out[2][o]) << std::string(kernels->name);
    }
  }
}

// The sum of a row's codes, each of which must be within its limits.
template <typename Code>
int64_t SumOfCodes(const CodedRows<Code>& row) {
  int64_t sum = 0;
  for (int64_t i = 0; i < row.cols; ++i) {
    const auto code = static_cast<int64_t>(row.codes[i]);
    EXPECT_LE(std::abs(code), kLargestRowCode<Code>) << i;
    sum += code;
  }
  return sum;
}

template <typename Code>
void QuantizesNumbersOfAnySize() {
  constexpr int64_t kCols = 32;
  for (int exponent = -149; exponent <= 120; ++exponent) {
    SCOPED_TRACE(testing::Message() << "codes of " << sizeof(Code) << " bytes, 2^" << exponent);
    float x[kCols] = {};
    double total = 0;
    for (int64_t i = 0; i < kCols; i += 2) {
      total += x[i] = std::ldexp(i % 3 == 0 ? 1.0f : i % 3 == 1 ? -0.4f : 0.75f, exponent);
    }
    alignas(8) Code codes[kCols / CodedRows<Code>::kInputs];
    float step = -1, sum = -1;
    const CodedRows<Code> row{codes, &step, &sum, kCols, kCols};
    simd::QuantizeActivations(x, kF32, kCols, row);
    const auto of_codes = static_cast<double>(SumOfCodes(row));
    // Half a step each, and nothing at all of numbers that nobody needs.
    ASSERT_NEAR(of_codes * double{step}, total, kCols * std::max(0.51 * double{step}, 0x1p-110));
    ASSERT_NEAR(sum, of_codes * double{step}, std::abs(of_codes) * double{step} * 0x1p-23 + 0x1p-149);
  }
}

// Down to the smallest ones, whose steps have no inverse: codes stay what products have room for.
TEST_F(CodeKernelsTest, ActivationsOfAnySizeHaveCodes) {
  QuantizesNumbersOfAnySize<int8_t>();
  QuantizesNumbersOfAnySize<int16_t>();
  QuantizesNumbersOfAnySize<WideCode>();
}

}  // namespace
}  // namespace kvblend::kernels
