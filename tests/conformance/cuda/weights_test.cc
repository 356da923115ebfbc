// Weights that reach the CUDA backend as codes are, bit for bit, those that reach it as values.
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

/// Codes, scales and minima that follow from the row and column, each value rounded as GGUF's are.
class CodedSource final : public WeightSource {
 public:
  CodedSource(int64_t cols, std::vector<QuantizedFormat> formats)
      : cols_(cols), formats_(std::move(formats)) {}

  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    const QuantizedFormat format = FormatOfRow(row);
    for (int64_t c = 0; c < cols_; ++c) {
      const float product =
          Scale(row, c / format.group) * static_cast<float>(Code(row, c) - format.zero_point);
      out[c] = product + Minimum(row, c / format.group);
    }
    return absl::OkStatus();
  }
  std::optional<QuantizedFormat> FormatOf(int64_t row) const override { return FormatOfRow(row); }
  absl::Status ReadCodes(int64_t row, const QuantizedRow& out) const override {
    const QuantizedFormat format = FormatOfRow(row);
    for (int64_t c = 0; c < cols_; ++c) out.codes[c] = static_cast<uint8_t>(Code(row, c));
    for (int64_t g = 0; g < cols_ / format.group; ++g) {
      out.scales[g] = Scale(row, g);
      out.minimums[g] = Minimum(row, g);
    }
    return absl::OkStatus();
  }

 private:
  // Runs of ten rows share a format.
  const QuantizedFormat& FormatOfRow(int64_t row) const { return formats_[row / 10 % formats_.size()]; }
  int Code(int64_t row, int64_t col) const {
    return static_cast<int>((row * 131 + col * 71 + col / 7) % (1 << FormatOfRow(row).bits));
  }
  float Scale(int64_t row, int64_t group) const {
    return static_cast<float>((row * 37 + group * 11) % 101 - 50) / 733.0f;
  }
  float Minimum(int64_t row, int64_t group) const {
    return FormatOfRow(row).has_minimum ? static_cast<float>((row + group * 5) % 17 - 8) / 13.0f : 0.0f;
  }

  const int64_t cols_;
  const std::vector<QuantizedFormat> formats_;
};

class CudaWeightsTest : public ConformanceTest {};

TEST_P(CudaWeightsTest, CodesBecomeTheValuesThatTheHostWouldHaveSent) {
  const std::vector<QuantizedFormat> formats = {
      {.bits = 4, .group = 32, .zero_point = 8, .has_minimum = false},
      {.bits = 4, .group = 32, .zero_point = 0, .has_minimum = true},
      {.bits = 5, .group = 32, .zero_point = 16, .has_minimum = false},
      {.bits = 6, .group = 16, .zero_point = 32, .has_minimum = false},
      {.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false},
  };
  const std::vector<int32_t> ids = Range(0, 77);
  for (const int64_t cols : {32, 96, 2080}) {
    SCOPED_TRACE(absl::StrCat(cols, " columns"));
    const CodedSource source(cols, formats);
    const auto coded = backend.PackWeights(77, cols, WeightUsage::kEmbedding, source);
    ASSERT_OK(coded.status());
    const test_support::RowFunction decoded(
        [&](int64_t row, absl::Span<float> out) { return source.ReadRow(row, out); });
    const auto values = backend.PackWeights(77, cols, WeightUsage::kEmbedding, decoded);
    ASSERT_OK(values.status());
    Tensor from_codes(backend, DataType::kF32, 77, cols), from_values(backend, DataType::kF32, 77, cols);
    ASSERT_OK(backend.Embed(stream, **coded, ids, from_codes.view()));
    ASSERT_OK(backend.Embed(stream, **values, ids, from_values.view()));
    EXPECT_EQ(from_codes.Bytes(), from_values.Bytes());
  }
}

INSTANTIATE_CONFORMANCE(CudaWeightsTest);

}  // namespace
}  // namespace kvblend::kernels
