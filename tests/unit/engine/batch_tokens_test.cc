#include "engine/runtime/batch_tokens.h"

#include <gtest/gtest.h>

namespace kvblend {
namespace {

TEST(DefaultBatchTokensTest, IsFourContextsInMainMemory) {
  EXPECT_EQ(DefaultBatchTokens(std::nullopt, 100, 1000, 8, 1 << 20), 4000);
  EXPECT_EQ(DefaultBatchTokens(std::nullopt, 100, 1000, 8, 3500), 3500);
}

TEST(DefaultBatchTokensTest, IsWhatADevicesFreeMemoryHolds) {
  const auto with_free = [](int64_t bytes) {
    return DefaultBatchTokens(kernels::DeviceMemory{.used_bytes = 5000, .total_bytes = 5000 + bytes}, 100,
                              1000, 8, 1 << 20);
  };
  EXPECT_EQ(with_free(int64_t{1} << 40), 8000) << "no more than the answers can need";
  EXPECT_EQ(with_free(1'125'000), 8000);  // 0.8 x that is 900,000 bytes: 9,000 tokens
  EXPECT_EQ(with_free(500'000), 3000);
  EXPECT_EQ(with_free(0), 1000) << "what does not fit is refused when it is allocated";
}

}  // namespace
}  // namespace kvblend
