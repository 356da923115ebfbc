// What the tests of products of codes share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/machine/weight_arena.h"
#include "kernels/weight_source.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {

/// Where of every eight inputs the codes of a row lie.
inline constexpr int64_t kPlaces[8] = {0, 2, 4, 6, 1, 3, 5, 7};

/// A matrix whose values are codes less the zero point.
class Codes final : public WeightSource {
 public:
  Codes(QuantizedFormat format, int64_t cols, std::function<int(int64_t, int64_t)> code_of)
      : format_(format), cols_(cols), code_of_(std::move(code_of)) {}
  absl::Status ReadRow(int64_t, absl::Span<float>) const override {
    return absl::UnimplementedError("these weights are codes");
  }
  std::optional<QuantizedFormat> FormatOf(int64_t) const override { return format_; }
  absl::Status ReadCodes(int64_t row, const QuantizedRow& out) const override {
    for (int64_t c = 0; c < cols_; ++c) out.codes[c] = static_cast<uint8_t>(code_of_(row, c));
    std::fill(out.scales.begin(), out.scales.end(), 1.0f);
    std::fill(out.minimums.begin(), out.minimums.end(), 0.0f);
    return absl::OkStatus();
  }
  int at(int64_t row, int64_t col) const { return code_of_(row, col) - format_.zero_point; }

 private:
  const QuantizedFormat format_;
  const int64_t cols_;
  const std::function<int(int64_t, int64_t)> code_of_;
};

inline std::vector<QuantizedFormat> AllCodeFormats() {
  std::vector<QuantizedFormat> formats(std::begin(kFormats), std::end(kFormats));
  formats.insert(formats.end(), std::begin(kNestedFormats), std::end(kNestedFormats));
  return formats;
}

/// A block of weights as kernels for many rows want it: expanded from the matrix's columns by one of theirs.
/// codes_per_word: of the expanded form.
struct ExpandedBlock {
  template <typename Expand>
  ExpandedBlock(const QuantizedMatrix& matrix, int64_t cols, int64_t group, int64_t codes_per_word, int bits,
                Expand expand)
      : words(cols / codes_per_word * kPackedBlock),
        steps(cols / group * kPackedBlock),
        minimums(steps.size()),
        codes{.codes = words.data(),
              .steps = steps.data(),
              .minimums = minimums.data(),
              .words = cols / codes_per_word,
              .bits = bits} {
    for (int64_t c = 0; c < matrix.num_columns(); ++c) {
      expand(matrix.column(c), group, codes.Output(c * kColumnOutputs));
    }
  }
  ExpandedBlock(const ExpandedBlock&) = delete;
  ExpandedBlock& operator=(const ExpandedBlock&) = delete;

  std::vector<uint32_t> words;
  std::vector<float> steps, minimums;
  const BlockCodes codes;
};

/// What asymmetric kernels make of a tile of rows and a matrix of one block, [rows, kPackedBlock], in two
/// calls. rows: of at least two groups
template <class Code>
std::vector<float> ProductsOfBlock(const BlockKernels<Code>& kernels, const QuantizedMatrix& matrix,
                                   const CodedRows<Code>& rows) {
  const int64_t words = CodedRows<Code>::BlockWords(rows.cols);
  std::vector<uint32_t> codes(words * kPackedBlock);
  std::vector<float> steps(rows.groups() * kPackedBlock), minimums(steps.size());
  const BlockCodes block{.codes = codes.data(),
                         .steps = steps.data(),
                         .minimums = minimums.data(),
                         .words = words,
                         .width = kernels.width,
                         .bits = matrix.largest_bits()};
  for (int64_t c = 0; c < matrix.num_columns(); ++c) {
    kernels.expand(matrix.column(c), rows.group, block.Output(c * kColumnOutputs));
  }
  std::vector<float> out(kernels.rows * kPackedBlock, 7.0f);
  kernels.multiply(rows, block, 0, 1, /*accumulate=*/false, out.data(), kPackedBlock);
  kernels.multiply(rows, block, 1, rows.groups() - 1, /*accumulate=*/true, out.data(), kPackedBlock);
  return out;
}

/// Copies a row to its place in a tile.
template <class Code>
void CopyRow(const CodedRows<Code>& from, const CodedRows<Code>& to) {
  for (int64_t g = 0; g < from.groups(); ++g) {
    std::copy_n(from.codes + g * from.group_stride(), from.group_codes(), to.codes + g * to.group_stride());
    to.steps[g * to.tile_rows] = from.steps[g * from.tile_rows];
    to.sums[g * to.tile_rows] = from.sums[g * from.tile_rows];
  }
}

/// Rows that lie one behind the other, from `first` on, as the tile of `count` rows that products of many
/// rows take.
template <class Code>
struct RowTile {
  RowTile(const CodedRows<Code>& source, int64_t first, int64_t count)
      : codes(count * source.cols / CodedRows<Code>::kInputs),
        steps(count * source.groups()),
        sums(steps.size()),
        rows{codes.data(), steps.data(), sums.data(), source.cols, source.group, count} {
    for (int64_t r = 0; r < count; ++r) CopyRow(source.Row(first + r), rows.Row(r));
  }
  RowTile(const RowTile&) = delete;
  RowTile& operator=(const RowTile&) = delete;

  std::vector<Code> codes;
  std::vector<float> steps, sums;
  const CodedRows<Code> rows;
};

/// The first `count` of rows that lie one behind the other, in the tiles that products of a few rows take.
/// The steps and sums of what a tile lacks are NaN, so that it shows where it is read.
template <class Code>
struct FewRowTiles {
  FewRowTiles(const CodedRows<Code>& source, int64_t count, int64_t tile_rows) {
    std::vector<TiledRow> places;
    AppendTiledRows(count, tile_rows, places, [](int64_t i) { return i; });
    codes.resize(places.size() * source.cols / CodedRows<Code>::kInputs);
    steps.assign(places.size() * source.groups(), std::numeric_limits<float>::quiet_NaN());
    sums = steps;
    rows = {codes.data(), steps.data(), sums.data(), source.cols, source.group};
    for (const TiledRow& place : places) {
      if (place.source < 0) continue;
      CopyRow(source.Row(place.source), rows.Tile(place.before, place.tile_rows).Row(place.index));
    }
  }
  FewRowTiles(const FewRowTiles&) = delete;
  FewRowTiles& operator=(const FewRowTiles&) = delete;

  std::vector<Code> codes;
  std::vector<float> steps, sums;
  CodedRows<Code> rows;
};

/// One to num_rows rows straight from the columns give bit for bit what `many`, [rows, kPackedBlock], says of
/// them, as far as it goes.
template <class Code>
void ExpectFewRowsAsMany(const QuantizedMatrix& matrix, const CodedRows<Code>& rows, int64_t num_rows,
                         const ColumnKernels<Code>& few_rows, const std::vector<float>& many) {
  const auto num_many = static_cast<int64_t>(many.size()) / kPackedBlock;
  for (int64_t count = 1; count <= num_rows; ++count) {
    const FewRowTiles tiles(rows, count, few_rows.tile_rows);
    for (int64_t c = 0; c < matrix.num_columns(); ++c) {
      std::vector<float> few(count * kColumnOutputs);
      std::vector<float*> targets;
      for (int64_t r = 0; r < count; ++r) targets.push_back(few.data() + r * kColumnOutputs);
      few_rows.multiply(matrix.column(c), tiles.rows, count, /*accumulate=*/false, targets.data());
      for (int64_t r = 0; r < std::min(count, num_many); ++r) {
        ASSERT_EQ(std::memcmp(targets[r], many.data() + r * kPackedBlock + c * kColumnOutputs,
                              kColumnOutputs * sizeof(float)),
                  0)
            << count << " rows, row " << r;
      }
    }
  }
}

/// The kernels of every instruction set that this processor has and KVBLEND_CPU allows.
class CodeKernelsTest : public testing::Test {
 protected:
  void SetUp() override {
    // Applies KVBLEND_CPU.
    ASSERT_OK(CreateCpuBackend({.num_threads = 1}).status());
    const CodeKernels* all[kMaxCodeKernels];
    const int count = AllCodeKernels(all);
    if (count == 0) GTEST_SKIP() << "this processor has none of the instruction sets";
    kernels_.assign(all, all + count);
    EXPECT_EQ(kernels_[0], BestCodeKernels());
  }

  std::vector<const CodeKernels*> kernels_;
  WeightArena arena_;
};

}  // namespace kvblend::kernels
