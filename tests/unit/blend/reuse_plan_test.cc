#include "engine/blend/reuse_plan.h"

#include <gtest/gtest.h>

#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

using blend::PlannedSpan;
using blend::ReusePlan;

class ReusePlanTest : public BlendFixture {
 protected:
  static std::vector<ChunkSource> Sources(const ReusePlan& plan) {
    std::vector<ChunkSource> sources;
    for (const PlannedSpan& span : plan.spans) {
      if (span.chunk_index >= 0) sources.push_back(span.source);
    }
    return sources;
  }

  const Tokens anchor_ = RandomTokens(20);
  const std::vector<Tokens> chunks_ = {RandomTokens(30), RandomTokens(17), RandomTokens(1)};
  const Tokens question_ = RandomTokens(9);
};

TEST_P(ReusePlanTest, AMissingChunkNeverSpoilsItsNeighbours) {
  Store(anchor_, chunks_[0]);
  Store(anchor_, chunks_[2]);
  const ReusePlan plan = Plan(MakeLayout(anchor_, chunks_, question_), With(Policy::kQuery));
  EXPECT_EQ(Sources(plan), (std::vector{ChunkSource::kExact, ChunkSource::kMiss, ChunkSource::kBlended}));
  EXPECT_EQ(plan.exact_tokens, 20 + 30);
  EXPECT_EQ(plan.candidates.num_tokens, 1);
  EXPECT_EQ(plan.computed.size(), 17 + 9);
  ASSERT_EQ(plan.missing.size(), 1);
  EXPECT_EQ(plan.missing[0].token_ids, chunks_[1]);
  EXPECT_EQ(plan.missing[0].anchor_ids, anchor_);
}

TEST_P(ReusePlanTest, OnlyTheFirstChunkBehindTheAnchorIsExactWhereverItIsFromAndWhateverTheOrder) {
  for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  for (int first = 0; first < 3; ++first) {
    const std::vector<Tokens> rotated = {chunks_[first], chunks_[(first + 1) % 3], chunks_[(first + 2) % 3]};
    EXPECT_EQ(Sources(Plan(MakeLayout(anchor_, rotated, question_), With(Policy::kQuery))),
              (std::vector{ChunkSource::kExact, ChunkSource::kBlended, ChunkSource::kBlended}));
  }
}

TEST_P(ReusePlanTest, AColdStoreNamesEveryEntryOnceAnchorFirst) {
  const std::vector<Tokens> repeated = {chunks_[0], chunks_[1], chunks_[0]};
  const ReusePlan plan = Plan(MakeLayout(anchor_, repeated, question_), With(Policy::kQuery));
  ASSERT_EQ(plan.missing.size(), 3);
  EXPECT_TRUE(plan.missing[0].anchor_ids.empty());
  EXPECT_EQ(plan.missing[0].token_ids, anchor_);
  EXPECT_EQ(plan.missing[1].token_ids, chunks_[0]);
  EXPECT_EQ(plan.missing[2].token_ids, chunks_[1]);
  EXPECT_TRUE(plan.missing[0].is_anchor);
  EXPECT_FALSE(plan.missing[1].is_anchor);
  EXPECT_EQ(plan.computed.size(), plan.prompt_tokens);
}

TEST_P(ReusePlanTest, AChunkBehindAnotherAnchorIsUsedMarkedAndWantedAnew) {
  Store(RandomTokens(11), chunks_[0]);
  const ReusePlan plan = Plan(MakeLayout(anchor_, {chunks_[0]}, question_), With(Policy::kQuery));
  EXPECT_EQ(Sources(plan), std::vector{ChunkSource::kOtherAnchor});
  ASSERT_EQ(plan.missing.size(), 2);  // the anchor and the chunk behind it
  EXPECT_EQ(plan.missing[1].anchor_ids, anchor_);
}

TEST_P(ReusePlanTest, PrefixReuseTakesNothingInexact) {
  for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  const ReusePlan plan = Plan(MakeLayout(anchor_, chunks_, question_), {.reuse = Reuse::kPrefix});
  EXPECT_EQ(Sources(plan), (std::vector{ChunkSource::kExact, ChunkSource::kMiss, ChunkSource::kMiss}));
  EXPECT_EQ(plan.candidates.num_tokens, 0);
}

TEST_P(ReusePlanTest, NothingIsReusedOrWantedWhenReuseIsOff) {
  for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  const ReusePlan plan = Plan(MakeLayout(anchor_, chunks_, question_), {.reuse = Reuse::kNothing});
  EXPECT_EQ(plan.computed.size(), plan.prompt_tokens);
  EXPECT_TRUE(plan.missing.empty());
}

TEST_P(ReusePlanTest, IsolatedChunksAreNeverExactBehindAnAnchor) {
  for (const Tokens& chunk : chunks_) Store({}, chunk);
  EXPECT_EQ(Sources(Plan(MakeLayout(anchor_, chunks_, question_),
                         With(Policy::kQuery, 0.15, Anchoring::kIsolated))),
            (std::vector{ChunkSource::kBlended, ChunkSource::kBlended, ChunkSource::kBlended}));
}

TEST_P(ReusePlanTest, HistoryMakesTheFirstChunkInexact) {
  Store(anchor_, chunks_[0]);
  prompt::PromptLayout layout = MakeLayout(anchor_, {chunks_[0]}, question_);
  // [system | history | lead-in | chunk | question], anchor = system + lead-in
  const Tokens history = RandomTokens(5);
  layout.token_ids.insert(layout.token_ids.begin() + 12, history.begin(), history.end());
  layout.spans = {{prompt::SpanKind::kSystem, -1, 0, 12},
                  {prompt::SpanKind::kHistory, -1, 12, 17},
                  {prompt::SpanKind::kLeadIn, -1, 17, 25},
                  {prompt::SpanKind::kChunk, 0, 25, 55},
                  {prompt::SpanKind::kQuestion, -1, 55, 64}};
  layout.anchor_is_prefix = false;
  const ReusePlan plan = Plan(layout, With(Policy::kQuery));
  EXPECT_EQ(Sources(plan), std::vector{ChunkSource::kBlended});
  EXPECT_EQ(plan.computed.size(), 25 + 9);
}

TEST_P(ReusePlanTest, TenantsDoNotSeeEachOthersChunks) {
  Store(anchor_, chunks_[0]);
  EXPECT_EQ(Sources(Plan(MakeLayout(anchor_, {chunks_[0]}, question_), With(Policy::kQuery), "other")),
            std::vector{ChunkSource::kMiss});
}

INSTANTIATE_TEST_SUITE_P(Backends, ReusePlanTest, testing::Values("reference"));

}  // namespace
}  // namespace kvblend
