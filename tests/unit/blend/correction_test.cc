// What learned corrections change of a blended prefill, and what they must not touch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/kv/learned_correction.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

class CorrectionTest : public BlendFixture {
 protected:
  /// The runtime's correction from now on: the same in every layer. `wild` ruins whatever it is applied to.
  void Learn(bool wild, Anchoring anchoring = Anchoring::kAnchored) {
    const store::KvFormat& format = runtime_->key_space.format;
    kv::LearnedCorrection correction{
        .anchoring = anchoring, .num_kv_heads = format.num_kv_heads, .head_dim = format.head_dim, .rank = 3};
    const int64_t channels = correction.channels();
    const float size = wild ? 1.0f : 0.0f;
    for (int32_t layer = 0; layer < format.num_layers; ++layer) {
      correction.layers.push_back(
          {.scale = std::vector<float>(channels, 1 + size),
           .offset = std::vector<float>(kernels::kNumKvCorrectionPlaces * channels, size),
           .down = std::vector<float>(3 * channels, size),
           .up = std::vector<float>(3 * channels, size)});
    }
    absl::StatusOr<std::unique_ptr<kv::LoadedCorrection>> loaded =
        kv::LoadedCorrection::Load(correction, "learned", *runtime_->backend);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    runtime_->correction = *std::move(loaded);
  }

  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(33), RandomTokens(50)};
  const Tokens question_ = RandomTokens(13);
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, question_);
};

TEST_P(CorrectionTest, ExactKvStaysBitForBitWhatItWas) {
  Store(anchor_, chunks_[0]);
  const prompt::PromptLayout first = MakeLayout(anchor_, {chunks_[0]}, question_);
  const PrefilledPrompt before = Prefill(first, With(Policy::kNone));
  Learn(/*wild=*/true);
  const PrefilledPrompt after = Prefill(first, With(Policy::kNone));
  EXPECT_EQ(after.logits, before.logits);
  EXPECT_EQ(after.report.correction, "");  // there was nothing to correct
}

TEST_P(CorrectionTest, RatioOneEqualsFullPrefillWhateverWasLearned) {
  for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  Learn(/*wild=*/true);
  const std::vector<float> full = FullPrefill(layout_).logits;
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kAll}) {
    EXPECT_LT(RelativeDistance(Prefill(layout_, With(policy, 1.0)).logits, full), kRounding) << Name(policy);
  }
}

TEST_P(CorrectionTest, IsAppliedToWhatIsReusedInexactlyAndReported) {
  for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  const std::vector<float> plain = Prefill(layout_, With(Policy::kNone)).logits;
  Learn(/*wild=*/false);
  const PrefilledPrompt same = Prefill(layout_, With(Policy::kNone));
  EXPECT_LT(RelativeDistance(same.logits, plain), kRounding);
  EXPECT_EQ(same.report.correction, "learned");
  Learn(/*wild=*/true);
  EXPECT_GT(RelativeDistance(Prefill(layout_, With(Policy::kNone)).logits, plain), 100 * kRounding);
  BlendOptions without = With(Policy::kNone);
  without.correction = false;
  const PrefilledPrompt off = Prefill(layout_, without);
  EXPECT_EQ(off.logits, plain);
  EXPECT_EQ(off.report.correction, "");
}

TEST_P(CorrectionTest, IsForOneKindOfAnchorOnly) {
  for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  const std::vector<float> plain = Prefill(layout_, With(Policy::kNone)).logits;
  Learn(/*wild=*/true, Anchoring::kIsolated);
  EXPECT_EQ(Prefill(layout_, With(Policy::kNone)).logits, plain);
}

TEST_P(CorrectionTest, DeviationIsMeasuredFromCorrectedKv) {
  for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  const std::vector<int32_t> plain = Prefill(layout_, With(Policy::kHkvd, 0.2)).recomputed;
  Learn(/*wild=*/false);
  EXPECT_EQ(Prefill(layout_, With(Policy::kHkvd, 0.2)).recomputed, plain);
  Learn(/*wild=*/true);
  EXPECT_NE(Prefill(layout_, With(Policy::kHkvd, 0.2)).recomputed, plain);
}

INSTANTIATE_TEST_SUITE_P(Backends, CorrectionTest, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace kvblend
