// Attention in codes of 16 bits where its sums are the largest that there can be, and where values are not
// finite.
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/simd/simd.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

// With VNNI's instructions, where the processor has them, and without.
class Int16AttentionTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    ASSERT_OK(CreateCpuBackend({.num_threads = 1}).status());  // applies KVBLEND_CPU
    const Tiles* tiles = GetParam() ? simd::GetInt16Tiles() : simd::GetInt16TilesWithoutVnni();
    if (tiles == nullptr) GTEST_SKIP() << "this processor has no tiles of 16-bit codes";
    if (GetParam() && tiles == simd::GetInt16TilesWithoutVnni()) GTEST_SKIP() << "this processor has no VNNI";
    backend_ =
        CreateCpuBackendWithTiles({.num_threads = 2, .gemm = CpuBackendOptions::Gemm::kF32}, *tiles).value();
    ASSERT_TRUE(AttendsInCodes(*backend_));
  }

  std::unique_ptr<Backend> backend_;
  Rng rng_{20261123};
};

// Equal channels are all coded as the limit, so that products of 32 bits are the largest in every lane; equal
// scores give equal weights, whose sums with equal values are the largest too, most of all where they fill a
// block of keys.
TEST_P(Int16AttentionTest, TheLargestSumsDoNotOverflow) {
  for (const int32_t num_keys : {130, 600}) {
    for (const int32_t head_dim : {1, 2, 33, 64, 65, 96, 128, 129, 256, 500, 512}) {
      for (const float sign : {1.0f, -1.0f}) {
        SCOPED_TRACE(testing::Message() << num_keys << " keys, head_dim " << head_dim << ", sign " << sign);
        const BatchCase batch{.sequences = {{num_keys, Range(num_keys - 20, num_keys)}}};
        PagedBatch kv(*backend_, batch, 1, head_dim, kBF16, rng_);
        Tensor q(*backend_, kF32, 20, head_dim);
        q.Fill([](int64_t row, int64_t) { return row % 2 == 0 ? 3.0f : -3.0f; });
        // One key has scores of the other sign, so the softmax shows whether they were right.
        const int64_t other = kv.SlotRow(0, 7, 0);
        kv.k_tensor().Fill([&](int64_t row, int64_t) { return row == other ? -sign : sign; });
        kv.v_tensor().Fill([&](int64_t row, int64_t) { return row == other ? 5.0f : -1.0f; });
        const float scale = 1.0f / static_cast<float>(head_dim);
        Tensor out = Attend(kv, q, 1, scale);
        out.Download();
        for (int64_t row = 0; row < 20; ++row) {
          const double score = (row % 2 == 0 ? 3.0 : -3.0) * sign;
          const double keys = num_keys - 20 + static_cast<double>(row);  // beside the other one
          const double weight = std::exp(-score) / (std::exp(-score) + keys * std::exp(score));
          for (int64_t d = 0; d < head_dim; ++d) {
            // Three roundings to twelve or more bits, of a score of 3 and of weights and values of up to 5.
            ASSERT_NEAR(out.at(row, d), 5 * weight - (1 - weight), 6 * 6 * 0x1p-11) << row << ", " << d;
          }
        }
      }
    }
  }
}

// A value that is not finite shows in the rows that see it and in no other, though they are in one tile.
TEST_P(Int16AttentionTest, ValuesThatAreNotFiniteShowWhereTheyAreSeen) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    constexpr int32_t kKeys = 100, kBad = 90;
    const BatchCase batch{.sequences = {{kKeys, Range(70, kKeys)}}};
    PagedBatch kv(*backend_, batch, 1, 64, kBF16, rng_);
    const int64_t row_of_bad = kv.SlotRow(0, kBad, 0);
    kv.v_tensor().Fill([&](int64_t row, int64_t d) { return row == row_of_bad && d == 3 ? bad : 1.0f; });
    Tensor q(*backend_, kF32, 30, 64);
    q.Randomize(rng_);
    Tensor out = Attend(kv, q, 1, 0.125f);
    out.Download();
    for (int64_t row = 0; row < 30; ++row) {
      if (70 + row >= kBad) {
        ASSERT_TRUE(std::isnan(out.at(row, 3))) << row;
      } else {
        ASSERT_NEAR(out.at(row, 3), 1, 0x1p-9) << row;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiles, Int16AttentionTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Vnni" : "Plain"; });

}  // namespace
}  // namespace kvblend::kernels
