#include "engine/serve/admission/prompt_slice.h"

#include "gtest/gtest.h"

namespace kvblend {
namespace {

TEST(PromptSliceTest, IsFiveStepsWhereTokensStillComeFastEnough) {
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0, 0), 0);
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0.008, 0), 0.04);
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0.0125, 0), 0.0625);
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0.02, 0), 0.08);  // a token every 0.1 s
}

TEST(PromptSliceTest, IsShorterWhereTheyWouldNotAndNeverBelowOneAndAHalf) {
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0.03, 0), 0.07);
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0.2, 0), 0.3);
  for (double step = 0; step < 1; step += 0.001) {
    const double slice = PromptSliceSeconds(step, 0);
    EXPECT_GE(slice, 1.5 * step);
    EXPECT_LE(slice, 5 * step);
    EXPECT_TRUE(step + slice <= kUnnoticedSeconds + 1e-12 || slice == 1.5 * step) << step;
  }
}

TEST(PromptSliceTest, IsWhatATargetLeaves) {
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0.01, 0.05), 0.04);
  EXPECT_DOUBLE_EQ(PromptSliceSeconds(0.08, 0.05), 0);
}

}  // namespace
}  // namespace kvblend
