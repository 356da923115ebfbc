// Weights that reach the CUDA backend as codes are, bit for bit, those that reach it as values.
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

class CudaWeightsTest : public ConformanceTest {};

TEST_P(CudaWeightsTest, CodesBecomeTheValuesThatTheHostWouldHaveSent) {
  const std::vector<int32_t> ids = Range(0, 77);
  for (const int64_t cols : {32, 96, 2080}) {
    SCOPED_TRACE(absl::StrCat(cols, " columns"));
    const RandomCodes source(
        rng, 77, cols, [&](int64_t row) { return kFormats[row / 8 % std::size(kFormats)]; },
        /*any_scale=*/true);
    const auto coded = backend.PackWeights(77, cols, WeightUsage::kEmbedding, source);
    ASSERT_OK(coded.status());
    const test_support::RowFunction decoded(
        [&](int64_t row, absl::Span<float> out) { return source.ReadRow(row, out); });
    const auto values = backend.PackWeights(77, cols, WeightUsage::kEmbedding, decoded);
    ASSERT_OK(values.status());
    Tensor from_codes(backend, kF32, 77, cols), from_values(backend, kF32, 77, cols);
    ASSERT_OK(backend.Embed(stream, **coded, ids, 1.0f, from_codes.view()));
    ASSERT_OK(backend.Embed(stream, **values, ids, 1.0f, from_values.view()));
    EXPECT_EQ(from_codes.Bytes(), from_values.Bytes());
  }
}

INSTANTIATE_CONFORMANCE(CudaWeightsTest);

}  // namespace
}  // namespace kvblend::kernels
