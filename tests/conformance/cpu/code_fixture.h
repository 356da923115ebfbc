// What the tests of products of codes share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
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
