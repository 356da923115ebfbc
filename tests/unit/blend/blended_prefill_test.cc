// Properties of blended prefill that hold for every model: the oracle is full prefill.
#include "engine/blend/blended_prefill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

class BlendedPrefillTest : public BlendFixture {
 protected:
  void StoreAll() {
    for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  }

  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(33), RandomTokens(1), RandomTokens(50),
                                       RandomTokens(16)};
  const Tokens question_ = RandomTokens(13);
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, question_);
};

TEST_P(BlendedPrefillTest, AllEqualsFullPrefillForAnyOrderSubsetRepeatAndCacheState) {
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    std::vector<Tokens> placed;
    for (int i = 0; i < static_cast<int>(random_() % 6); ++i)
      placed.push_back(chunks_[random_() % chunks_.size()]);
    if (round % 3 == 0) placed.insert(placed.begin() + placed.size() / 2, Tokens());  // an empty chunk
    const Anchoring anchoring = round % 2 == 0 ? Anchoring::kAnchored : Anchoring::kIsolated;
    for (const Tokens& chunk : placed) {
      if (!chunk.empty() && random_() % 3 != 0)
        Store(anchoring == Anchoring::kAnchored ? anchor_ : Tokens(), chunk);
    }
    const prompt::PromptLayout layout = MakeLayout(anchor_, placed, question_);
    const std::vector<float> full = FullPrefill(layout).logits;
    EXPECT_LT(RelativeDistance(Prefill(layout, With(Policy::kAll, 0, anchoring)).logits, full), kRounding);
    for (Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kRandom}) {
      EXPECT_LT(RelativeDistance(Prefill(layout, With(policy, 1.0, anchoring)).logits, full), kRounding)
          << Name(policy) << " at ratio 1";
    }
  }
}

TEST_P(BlendedPrefillTest, ASingleChunkBehindTheAnchorIsExactWithNothingRecomputed) {
  Store(anchor_, chunks_[0]);
  const prompt::PromptLayout layout = MakeLayout(anchor_, {chunks_[0]}, question_);
  const PrefilledPrompt blended = Prefill(layout, With(Policy::kQuery));
  EXPECT_EQ(blended.report.computed_tokens, static_cast<int32_t>(question_.size()));
  EXPECT_EQ(blended.report.recomputed_tokens, 0);
  EXPECT_EQ(blended.report.chunks[0].source, ChunkSource::kExact);
  EXPECT_LT(RelativeDistance(blended.logits, FullPrefill(layout).logits), kRounding);
}

TEST_P(BlendedPrefillTest, ReuseWithoutRecomputationIsNotFullPrefill) {
  // Guards the tests above: were reuse exact in general, they would prove nothing.
  StoreAll();
  EXPECT_GT(RelativeDistance(Prefill(layout_, With(Policy::kNone)).logits, FullPrefill(layout_).logits),
            100 * kRounding);
}

TEST_P(BlendedPrefillTest, RecomputedTokensGrowWithTheRatioFromNoneToAll) {
  StoreAll();
  const int32_t inexact = static_cast<int32_t>(layout_.token_ids.size() - 21 - 40 - 13);
  for (Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kRandom}) {
    int32_t previous = -1;
    for (double ratio : {0.0, 0.01, 0.05, 0.15, 0.3, 0.5, 0.7, 0.99, 1.0}) {
      const PrefilledPrompt prompt = Prefill(layout_, With(policy, ratio));
      EXPECT_GE(prompt.report.recomputed_tokens, previous);
      EXPECT_EQ(prompt.report.recomputed_tokens + prompt.report.reused_tokens, inexact);
      previous = prompt.report.recomputed_tokens;
      if (ratio == 0.0) {
        EXPECT_EQ(prompt.report.recomputed_tokens, 0);
        EXPECT_LT(RelativeDistance(prompt.logits, Prefill(layout_, With(Policy::kNone)).logits), kRounding);
      }
    }
    EXPECT_EQ(previous, inexact);
  }
}

TEST_P(BlendedPrefillTest, QueryNeverCostsMoreThanComputingEverything) {
  // Two of three chunks missing: a query pass would compute them twice.
  Store(anchor_, chunks_[0]);
  Store(anchor_, chunks_[4]);
  const prompt::PromptLayout layout =
      MakeLayout(anchor_, {chunks_[0], chunks_[1], chunks_[3], chunks_[4]}, question_);
  const PrefilledPrompt prompt = Prefill(layout, With(Policy::kQuery, 0.5));
  EXPECT_EQ(prompt.report.policy, Policy::kAll);
  EXPECT_EQ(prompt.report.ratio, 1.0);
  EXPECT_LT(RelativeDistance(prompt.logits, FullPrefill(layout).logits), kRounding);
}

TEST_P(BlendedPrefillTest, FewerVotingLayersStillBlend) {
  StoreAll();
  BlendOptions options = With(Policy::kQuery, 0.2);
  options.query_layers = 1;
  const PrefilledPrompt one_layer = Prefill(layout_, options);
  options.query_layers = 4;
  const PrefilledPrompt all_layers = Prefill(layout_, options);
  EXPECT_EQ(one_layer.report.recomputed_tokens, all_layers.report.recomputed_tokens);
  options.query_layers = 0;
  EXPECT_EQ(Prefill(layout_, options).logits, all_layers.logits);  // 0 means all
}

TEST_P(BlendedPrefillTest, MissesAreStoredExactlyAsAPutWouldStoreThem) {
  PrefilledPrompt cold = Prefill(layout_, With(Policy::kQuery));
  EXPECT_EQ(cold.report.computed_tokens, cold.report.prompt_tokens);
  EXPECT_LT(RelativeDistance(cold.logits, FullPrefill(layout_).logits), kRounding);
  for (const blend::MissingEntry& entry : cold.missing) Store(entry.anchor_ids, entry.token_ids);
  const PrefilledPrompt warm = Prefill(layout_, With(Policy::kQuery));
  EXPECT_TRUE(warm.missing.empty());
  EXPECT_EQ(warm.report.computed_tokens, static_cast<int32_t>(question_.size()));
}

TEST_P(BlendedPrefillTest, EveryPolicyReportsWhatItRecomputedPerChunk) {
  StoreAll();
  for (Policy policy :
       {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kNone, Policy::kAll, Policy::kRandom}) {
    BlendOptions options = With(policy, 0.25);
    options.link_tokens = 4;
    const PrefilledPrompt prompt = Prefill(layout_, options);
    EXPECT_EQ(prompt.report.policy, policy);
    int32_t recomputed = 0;
    for (const ChunkReport& chunk : prompt.report.chunks) recomputed += chunk.recomputed_tokens;
    EXPECT_EQ(recomputed, prompt.report.recomputed_tokens);
    EXPECT_EQ(prompt.report.chunks.size(), chunks_.size());
  }
}

TEST_P(BlendedPrefillTest, HkvdByKeyAndByValueChooseAndBlend) {
  StoreAll();
  for (int32_t layer : {1, 2, 3}) {
    for (DeviationSource source : {DeviationSource::kKey, DeviationSource::kValue}) {
      BlendOptions options = With(Policy::kHkvd, 0.3);
      options.hkvd_layer = layer;
      options.hkvd_source = source;
      EXPECT_GT(Prefill(layout_, options).report.recomputed_tokens, 0);
    }
  }
}

TEST_P(BlendedPrefillTest, ExtendingABlendedPromptEqualsPrefillOfTheLongerOne) {
  StoreAll();
  const Tokens more = RandomTokens(7);
  Tokens longer = question_;
  longer.insert(longer.end(), more.begin(), more.end());
  PrefilledPrompt prompt = Prefill(layout_, With(Policy::kAll));
  const std::vector<float> logits = *runner_->Extend(prompt, more, KeepRunning);
  const size_t vocab_size = runtime_->config.vocab_size;
  const std::vector<float> last(logits.end() - vocab_size, logits.end());
  EXPECT_LT(RelativeDistance(last, FullPrefill(MakeLayout(anchor_, chunks_, longer)).logits), kRounding);
}

TEST_P(BlendedPrefillTest, GivesUpWhenToldToAndLeavesNothingBehind) {
  StoreAll();
  for (Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kAll}) {
    for (int allowed_looks = 0; allowed_looks < 8; ++allowed_looks) {
      int looks = 0;
      const absl::StatusOr<PrefilledPrompt> prompt = runner_->Prefill(layout_, With(policy, 0.2), "", [&] {
        return looks++ < allowed_looks ? absl::OkStatus() : absl::CancelledError("enough");
      });
      // `all` looks once per layer, the others more often; four layers.
      if (policy == Policy::kAll && allowed_looks >= 4) continue;
      if (policy == Policy::kHkvd && allowed_looks >= 4) continue;
      EXPECT_EQ(prompt.status().code(), absl::StatusCode::kCancelled);
      EXPECT_EQ(runtime_->page_pool->num_used(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BlendedPrefillTest, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace kvblend
