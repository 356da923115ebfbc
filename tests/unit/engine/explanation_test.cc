#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

class ExplanationTest : public EngineFixture {
 protected:
  void SetUp() override {
    EngineFixture::SetUp();
    ASSERT_TRUE(Put(chunks_)->status.ok());
  }

  PromptReport Ask(BlendOptions blend) {
    GenerateRequest request = Request(chunks_);
    request.blend = blend;
    request.blend.explain = true;
    request.sampling.max_tokens = 1;
    const auto recorder = Generate(std::move(request));
    EXPECT_TRUE(recorder->status.ok()) << recorder->status;
    return recorder->prompts.at(0);
  }

  // Characters of several bytes: a token of this vocabulary may end inside one.
  const std::vector<std::string> chunks_ = {"Paris is in France.\n",
                                            "Rome \xE2\x82\xAC \xF0\x9F\x98\x80 is in Italy.\n",
                                            "Oslo is in Norway, Bergen too.\n"};
};

TEST_F(ExplanationTest, NothingIsExplainedUnlessAsked) {
  EXPECT_TRUE(Generate(Request(chunks_))->prompts.at(0).explanation.empty());
}

TEST_F(ExplanationTest, EveryTokenOfEveryPart) {
  const PromptReport report = Ask({.policy = Policy::kQuery, .ratio = 0.25});
  size_t tokens = 0, recomputed = 0;
  std::vector<std::string> chunks;
  for (const ExplainedSpan& span : report.explanation) {
    tokens += span.texts.size();
    recomputed += span.recomputed.size();
    if (span.part != PromptPart::kChunk) {
      EXPECT_EQ(span.chunk_index, -1);
      EXPECT_TRUE(span.recomputed.empty());
      EXPECT_TRUE(span.scores.empty());
      continue;
    }
    EXPECT_EQ(span.chunk_index, static_cast<int32_t>(chunks.size()));
    chunks.push_back(absl::StrJoin(span.texts, ""));
    const ChunkReport& chunk = report.chunks.at(span.chunk_index);
    EXPECT_EQ(span.texts.size(), chunk.num_tokens);
    EXPECT_EQ(span.recomputed.size(), chunk.recomputed_tokens);
    EXPECT_EQ(span.scores.size(), chunk.source == ChunkSource::kBlended ? span.texts.size() : 0);
  }
  EXPECT_EQ(tokens, report.prompt_tokens);
  EXPECT_EQ(recomputed, report.recomputed_tokens);
  EXPECT_EQ(chunks, chunks_);
  EXPECT_EQ(report.explanation.front().part, PromptPart::kSystem);
  EXPECT_EQ(report.explanation.back().part, PromptPart::kQuestion);
  EXPECT_NE(absl::StrJoin(report.explanation.back().texts, "").find("Where is Paris?"), std::string::npos);
}

TEST_F(ExplanationTest, WhatIsRecomputedHasTheHighestScores) {
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd}) {
    const PromptReport report = Ask({.policy = policy, .ratio = 0.25});
    std::vector<float> chosen, left;
    for (const ExplainedSpan& span : report.explanation) {
      for (size_t place = 0; place < span.scores.size(); ++place) {
        const bool recomputed =
            std::binary_search(span.recomputed.begin(), span.recomputed.end(), static_cast<int32_t>(place));
        (recomputed ? chosen : left).push_back(span.scores[place]);
      }
    }
    ASSERT_FALSE(chosen.empty());
    ASSERT_FALSE(left.empty());
    EXPECT_GE(*std::min_element(chosen.begin(), chosen.end()), *std::max_element(left.begin(), left.end()));
    EXPECT_GT(*std::max_element(left.begin(), left.end()), 0);
  }
}

TEST_F(ExplanationTest, PoliciesThatMeasureNothingGiveNoScores) {
  for (const BlendOptions& blend :
       {BlendOptions{.policy = Policy::kLink, .link_tokens = 2}, BlendOptions{.policy = Policy::kNone},
        BlendOptions{.reuse = Reuse::kNothing}}) {
    const PromptReport report = Ask(blend);
    for (const ExplainedSpan& span : report.explanation) {
      EXPECT_TRUE(span.scores.empty());
      if (blend.policy == Policy::kLink && span.chunk_index > 0) {
        EXPECT_THAT(span.recomputed, testing::ElementsAre(0, 1));
      }
    }
  }
}

}  // namespace
}  // namespace kvblend
