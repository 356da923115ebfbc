// Products of a prompt's rows in 16 bits with wide groups, on every instruction set that this processor has:
// the largest codes, whose sums would overflow if they did not fit, and random ones, against double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/conformance/cpu/code_fixture.h"
#include "tests/conformance/cpu/linear_properties.h"

namespace kvblend::kernels {
namespace {

class WideProductsTest : public CodeKernelsTest {
 protected:
  // [kernels.wide.rows, kPackedBlock]; activations: [kernels.wide.rows or more, cols]
  static std::vector<float> Multiply(const CodeKernels& kernels, const QuantizedMatrix& matrix, int64_t cols,
                                     const std::vector<float>& activations) {
    const int64_t group = WideGroup(cols), padded = RoundUp(cols, group), num_rows = kernels.wide.rows;
    std::vector<WideCode> codes(num_rows * padded);
    std::vector<float> steps(num_rows * padded / group), sums(steps.size());
    const WideRows rows{codes.data(), steps.data(), sums.data(), padded, group, num_rows};
    for (int64_t r = 0; r < num_rows; ++r) {
      simd::QuantizeActivations(activations.data() + r * cols, DataType::kF32, cols, rows.Row(r));
    }
    std::vector<uint32_t> words(padded / WideRows::kPerWord * kPackedBlock, 0xFFFFFFFFu);
    std::vector<float> weight_steps(padded / group * kPackedBlock), minimums(weight_steps.size());
    const BlockCodes block{.codes = words.data(),
                           .steps = weight_steps.data(),
                           .minimums = minimums.data(),
                           .words = padded / WideRows::kPerWord,
                           .width = kernels.wide.width};
    for (int64_t c = 0; c < matrix.num_columns(); ++c) {
      kernels.wide.expand(matrix.column(c), group, block.Output(c * kColumnOutputs));
    }
    // In two parts, of which the second adds to the first.
    std::vector<float> out(num_rows * kPackedBlock, 5.0f);
    kernels.wide.multiply(rows, block, 0, 1, /*accumulate=*/false, out.data(), kPackedBlock);
    kernels.wide.multiply(rows, block, 1, rows.groups() - 1, /*accumulate=*/true, out.data(), kPackedBlock);
    return out;
  }
};

TEST_F(WideProductsTest, GroupsAreFewAndOfEqualSize) {
  for (int64_t cols = 1; cols < 3000; ++cols) {
    const int64_t group = WideGroup(cols), groups = (cols + group - 1) / group;
    ASSERT_EQ(group % kChunkInputs, 0) << cols;
    ASSERT_LE(group, kMostWideInputs) << cols;
    ASSERT_EQ(groups, (cols + kMostWideInputs - 1) / kMostWideInputs) << cols;
  }
}

TEST_F(WideProductsTest, TheLargestCodesDoNotOverflow) {
  for (const CodeKernels* kernels : kernels_) {
    for (const QuantizedFormat& format : kFormats) {
      for (const int64_t cols : {32, 96, 512, 576}) {
        for (const int code : {0, (1 << format.bits) - 1}) {
          SCOPED_TRACE(testing::Message()
                       << std::string(kernels->name) << ", " << format.bits << " bits, groups of "
                       << format.group << ", all " << code << ", " << cols << " columns");
          const Codes source(format, cols, [&](int64_t, int64_t) { return code; });
          const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, cols, source).value();
          ASSERT_NE(matrix, nullptr);
          const int64_t num_rows = kernels->wide.rows;
          std::vector<float> activations;
          for (int64_t r = 0; r < num_rows; ++r) {
            for (int64_t c = 0; c < cols; ++c) {
              const float signs[] = {1, -1, c % 2 == 0 ? 1.0f : -1.0f, c % 4 < 2 ? -1.0f : 1.0f, 0, 1};
              activations.push_back(signs[r % 6]);
            }
          }
          const std::vector<float> out = Multiply(*kernels, *matrix, cols, activations);
          const int furthest =
              std::max(format.zero_point, (1 << format.bits) - 1 - format.zero_point);  // of any code
          for (int64_t r = 0; r < num_rows; ++r) {
            double sum = 0;
            for (int64_t c = 0; c < cols; ++c) sum += activations[r * cols + c] * source.at(0, c);
            for (int64_t o = 0; o < kPackedBlock; ++o) {
              ASSERT_NEAR(out[r * kPackedBlock + o], sum,
                          cols * furthest * (0.5 / kLargestWideWeight + 0x1p-20))
                  << r << ", " << o;
            }
          }
        }
      }
    }
  }
}

TEST_F(WideProductsTest, AreWithinHalfACodeOfBoth) {
  Rng rng(20261126);
  std::normal_distribution<float> normal;
  for (const QuantizedFormat& format : AllCodeFormats()) {
    for (const int64_t cols :
         format.nested ? std::vector<int64_t>{256, 768} : std::vector<int64_t>{64, 352, 544}) {
      const RandomCodes source(rng, kPackedBlock, cols, [&](int64_t) { return format; });
      const auto matrix = QuantizedMatrix::Create(arena_, kPackedBlock, cols, source).value();
      ASSERT_NE(matrix, nullptr);
      std::vector<float> activations(kMaxCodeRows * cols);
      for (float& value : activations) value = normal(rng);
      for (const CodeKernels* kernels : kernels_) {
        SCOPED_TRACE(testing::Message()
                     << std::string(kernels->name) << ", " << format.bits << " bits, groups of "
                     << format.group << (format.nested ? ", nested, " : ", ") << cols << " columns");
        const std::vector<float> out = Multiply(*kernels, *matrix, cols, activations);
        for (int64_t r = 0; r < kernels->wide.rows; ++r) {
          for (int64_t o = 0; o < kPackedBlock; ++o) {
            const Expected expected = WideProduct(
                cols, [&](int64_t c) { return activations[r * cols + c]; },
                [&](int64_t c) { return source.at(o, c); },
                [&](int64_t c) { return source.LargestOfGroup(o, c); });
            ASSERT_NEAR(out[r * kPackedBlock + o], expected.value, expected.bound) << r << ", " << o;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::kernels
