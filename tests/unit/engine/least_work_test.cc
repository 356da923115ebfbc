#include "engine/serve/admission/least_work.h"

#include "gtest/gtest.h"

namespace kvblend {
namespace {

using prompt::PromptLayout;
using prompt::SpanKind;

/// 10 tokens of system text, 5 of history if wanted, three chunks of 100, a question of 20.
PromptLayout Layout(bool history = false) {
  PromptLayout layout;
  const auto add = [&](SpanKind kind, int32_t chunk, int32_t size) {
    const auto begin = static_cast<int32_t>(layout.token_ids.size());
    layout.spans.push_back({kind, chunk, begin, begin + size});
    layout.token_ids.resize(begin + size);
  };
  add(SpanKind::kSystem, -1, 10);
  add(SpanKind::kHistory, -1, history ? 5 : 0);
  add(SpanKind::kLeadIn, -1, 0);
  for (int32_t i = 0; i < 3; ++i) add(SpanKind::kChunk, i, 100);
  add(SpanKind::kQuestion, -1, 20);
  return layout;
}

TEST(LeastWorkTest, IsWhatNoStoreCanSpare) {
  const RatioOptions defaults{.ratio = 0.15};
  const auto least = [&](const BlendOptions& blend) {
    return LeastComputedTokens(Layout(), blend, defaults, /*finds_pages=*/false);
  };
  EXPECT_EQ(least({.reuse = Reuse::kNothing}), 330);
  EXPECT_EQ(least({.reuse = Reuse::kPrefix}), 20 + 200);  // the first chunk is part of the prefix
  EXPECT_EQ(least({.ratio = 0.15}), 20 + 30);
  EXPECT_EQ(least({.ratio = 0.5}), 20 + 100);
  EXPECT_EQ(least({.policy = Policy::kNone}), 20);
  EXPECT_EQ(least({.policy = Policy::kAll}), 20 + 200);
  EXPECT_EQ(least({.policy = Policy::kLink, .link_tokens = 32}), 20 + 64);
  EXPECT_EQ(least({.policy = Policy::kLink, .link_tokens = 500}), 20 + 200);
}

TEST(LeastWorkTest, AutomaticRatiosCountWithTheirLeast) {
  const RatioOptions defaults{
      .mode = RatioMode::kAuto, .ratio = 0.4, .min = 0.1, .max = 0.5, .min_tokens = 0};
  EXPECT_EQ(LeastComputedTokens(Layout(), {}, defaults, /*finds_pages=*/false), 20 + 20);
}

TEST(LeastWorkTest, FewTokensAreAsManyAsTheServerRecomputesAtLeast) {
  const auto least = [](const BlendOptions& blend, const RatioOptions& defaults) {
    return LeastComputedTokens(Layout(), blend, defaults, /*finds_pages=*/true);
  };
  const RatioOptions automatic{.mode = RatioMode::kAuto, .min = 0.1, .min_tokens = 64};
  EXPECT_EQ(least({}, {.ratio = 0.15, .min_tokens = 64}), 20 + 64);
  EXPECT_EQ(least({}, automatic), 20 + 64);
  EXPECT_EQ(least({}, {.ratio = 0.15, .min_tokens = 500}), 20 + 200);
  EXPECT_EQ(least({}, {.ratio = 0.5, .min_tokens = 64}), 20 + 100);
  EXPECT_EQ(least({}, {.ratio = 0, .min_tokens = 64}), 20);
  EXPECT_EQ(least({.ratio = 0.15}, {.min_tokens = 64}), 20 + 30);
  EXPECT_EQ(least({.ratio_min = 0.1}, automatic), 20 + 20);
  EXPECT_EQ(least({.policy = Policy::kNone}, {.min_tokens = 64}), 20);
}

// What others have of the prompt, exact, is neither loaded nor computed: where everything is recomputed all
// before the question.
TEST(LeastWorkTest, PagesOfOthersMayHaveWhatIsExact) {
  const auto least = [](const BlendOptions& blend) {
    return LeastComputedTokens(Layout(), blend, {.min_tokens = 0}, /*finds_pages=*/true);
  };
  EXPECT_EQ(least({.policy = Policy::kAll}), 20);
  EXPECT_EQ(least({.ratio = 1}), 20);
  EXPECT_EQ(least({.reuse = Reuse::kPrefix}), 20);
  EXPECT_EQ(least({.reuse = Reuse::kNothing}), 330);
  EXPECT_EQ(least({.policy = Policy::kAll, .share_prefix = false}), 20 + 200);
  EXPECT_EQ(least({.ratio = 0.5}), 20 + 100);
}

TEST(LeastWorkTest, AConversationMayHaveBeenKeptUpToTheQuestion) {
  EXPECT_EQ(LeastComputedTokens(Layout(/*history=*/true), {}, {}, /*finds_pages=*/false), 20);
  EXPECT_EQ(
      LeastComputedTokens(Layout(/*history=*/true), {.reuse = Reuse::kNothing}, {}, /*finds_pages=*/true),
      335);
}

}  // namespace
}  // namespace kvblend
