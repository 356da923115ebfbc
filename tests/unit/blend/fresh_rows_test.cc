// What prompts keep of the KV of chunks that the store lacks.
#include "engine/blend/fresh_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/kv/section_rows.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

using blend::FreshRowBudget;
using testing::ElementsAre;
using testing::SizeIs;

TEST(SampleRowsTest, TakesTheFirstOnesAndSpreadsTheOthers) {
  EXPECT_THAT(blend::SampleRows(3, 64), ElementsAre(0, 1, 2));
  EXPECT_THAT(blend::SampleRows(12, 8), ElementsAre(0, 1, 2, 3, 4, 6, 8, 10));
  EXPECT_THAT(blend::SampleRows(9, 1), ElementsAre(0));
  for (const int32_t tokens : {1, 5, 63, 64, 65, 100, 1000, 100'000}) {
    const std::vector<int32_t> rows = blend::SampleRows(tokens, 64);
    EXPECT_THAT(rows, SizeIs(std::min(tokens, 64)));
    EXPECT_TRUE(std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end()) << tokens;
    EXPECT_LT(rows.back(), tokens);
    EXPECT_GE(rows.back(), tokens - 1 - tokens / 60);
  }
}

TEST(SampleRowsTest, EachStandsForTheTokensAroundIt) {
  EXPECT_THAT(blend::RowWeights(3, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(blend::RowWeights(12, 8),
              ElementsAre(2 / 3.f, 2 / 3.f, 2 / 3.f, 2 / 3.f, 4 / 3.f, 4 / 3.f, 4 / 3.f, 4 / 3.f));
  const std::vector<float> weights = blend::RowWeights(1000, 64);
  EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 64, 1e-4);
  EXPECT_FLOAT_EQ(weights[0], 0.064f);
}

class FreshRowsTest : public BlendFixture {
 protected:
  void SetUp() override {
    BlendFixture::SetUp();
    Keep(int64_t{1} << 30);
  }

  /// A runner whose prompts may keep so many bytes.
  void Keep(int64_t bytes) {
    budget_ = std::make_shared<FreshRowBudget>(bytes);
    runner_ = std::make_unique<PromptRunner>(
        *runtime_, *chunk_store_, PromptRunner::Options{.fresh_rows = {budget_, Anchoring::kAnchored}});
  }

  /// The rows kept of a chunk; null: none.
  static std::shared_ptr<const blend::FreshRows> Of(const PrefilledPrompt& prompt, const Tokens& chunk) {
    for (const blend::MissingEntry& entry : prompt.missing) {
      if (entry.token_ids == chunk) return entry.fresh;
    }
    ADD_FAILURE() << "the chunk is not missing";
    return nullptr;
  }

  /// They are those of the same tokens right behind all that stands before them.
  void ExpectFullPrefill(const blend::FreshRows* fresh, const Tokens& before, const Tokens& chunk) {
    ASSERT_NE(fresh, nullptr);
    const absl::StatusOr<StoredChunk> stored = runner_->EnsureStored("", before, chunk, {}, KeepRunning);
    ASSERT_TRUE(stored.ok()) << stored.status();
    std::vector<float> expected;
    for (int32_t layer = 0; layer < runtime_->config.num_layers; ++layer) {
      const absl::StatusOr<store::LayerKv> kv = stored->entry->AcquireLayer(layer);
      ASSERT_TRUE(kv.ok()) << kv.status();
      std::vector<float> rows(fresh->rows.size() * 2 * kv->k.cols);
      kv::DecodeRows(kv->k, kv->v, fresh->rows, absl::MakeSpan(rows));
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    EXPECT_LT(RelativeDistance({fresh->values().begin(), fresh->values().end()}, expected), kRounding);
  }

  static Tokens Joined(std::initializer_list<Tokens> parts) {
    Tokens joined;
    for (const Tokens& part : parts) joined.insert(joined.end(), part.begin(), part.end());
    return joined;
  }

  std::shared_ptr<FreshRowBudget> budget_;
  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(300), RandomTokens(50)};
  const Tokens question_ = RandomTokens(13);
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, question_);
};

TEST_P(FreshRowsTest, AreThoseOfFullPrefillWhateverThePolicy) {
  for (const Policy policy : {Policy::kNone, Policy::kQuery, Policy::kHkvd, Policy::kAll}) {
    SCOPED_TRACE(Name(policy));
    const PrefilledPrompt prompt = Prefill(layout_, With(policy));
    EXPECT_EQ(Of(prompt, chunks_[0]), nullptr);  // it stands where the store will compute it
    EXPECT_THAT(Of(prompt, chunks_[1])->rows, SizeIs(256));
    EXPECT_EQ(Of(prompt, chunks_[2])->weight, 1);
    ExpectFullPrefill(Of(prompt, chunks_[1]).get(), Joined({anchor_, chunks_[0]}), chunks_[1]);
    ExpectFullPrefill(Of(prompt, chunks_[2]).get(), Joined({anchor_, chunks_[0], chunks_[1]}), chunks_[2]);
    chunk_store_->Clear("");
  }
}

TEST_P(FreshRowsTest, CountByTheAttentionThatTheyGet) {
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd}) {
    const PrefilledPrompt prompt = Prefill(layout_, With(policy));
    const auto fresh = Of(prompt, chunks_[1]);
    const auto num_layers = static_cast<size_t>(runtime_->config.num_layers);
    ASSERT_THAT(fresh->row_weights, SizeIs(num_layers * fresh->rows.size()));
    const auto layer = [&](size_t index) {
      const size_t rows = fresh->rows.size();
      return std::vector<float>(fresh->row_weights.begin() + index * rows,
                                fresh->row_weights.begin() + (index + 1) * rows);
    };
    EXPECT_THAT(fresh->row_weights, testing::Each(testing::Gt(0)));
    EXPECT_THAT(layer(0), testing::Not(testing::Each(layer(0)[0])));
    EXPECT_NE(layer(0), layer(num_layers - 2));
    EXPECT_EQ(layer(num_layers - 2), layer(num_layers - 1));  // there only the last row attends
    chunk_store_->Clear("");
  }
}

TEST_P(FreshRowsTest, BehindReusedKvTheyWeighLess) {
  // The chunk in the middle is reused. Recomputed, it is what full prefill has; as it was stored, it is not.
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd}) {
    chunk_store_->Clear("");
    Store(anchor_, chunks_[1]);
    for (const double ratio : {0.0, 0.3}) {
      const PrefilledPrompt blended = Prefill(layout_, With(policy, ratio));
      EXPECT_EQ(blended.report.reused_tokens + blended.report.recomputed_tokens, 300);
      EXPECT_DOUBLE_EQ(Of(blended, chunks_[2])->weight, 1 - (300.0 - blended.report.recomputed_tokens) / 361);
    }
    const PrefilledPrompt recomputed = Prefill(layout_, With(policy, 1.0));
    EXPECT_EQ(Of(recomputed, chunks_[2])->weight, 1);
    ExpectFullPrefill(Of(recomputed, chunks_[2]).get(), Joined({anchor_, chunks_[0], chunks_[1]}),
                      chunks_[2]);
  }
}

TEST_P(FreshRowsTest, AreNotKeptWhereNobodyWantsThem) {
  const auto kept = [&](const BlendOptions& options) {
    const PrefilledPrompt prompt = Prefill(layout_, options);
    return std::any_of(prompt.missing.begin(), prompt.missing.end(),
                       [](const blend::MissingEntry& entry) { return entry.fresh != nullptr; });
  };
  BlendOptions options = With(Policy::kNone);
  EXPECT_TRUE(kept(options));
  EXPECT_FALSE(kept(With(Policy::kNone, 0.15, Anchoring::kIsolated)));  // learned is of the other kind
  options.store_misses = false;
  EXPECT_FALSE(kept(options));
  budget_->Open(false);
  EXPECT_FALSE(kept(With(Policy::kNone)));
}

TEST_P(FreshRowsTest, AreHeldWithinTheirBudget) {
  const int64_t all = budget_->left();
  {
    const PrefilledPrompt prompt = Prefill(layout_, With(Policy::kNone));
    EXPECT_LT(budget_->left(), all);
  }
  EXPECT_EQ(budget_->left(), all);
  const int64_t row_bytes = runtime_->config.num_layers * int64_t{2} * runtime_->config.num_kv_heads *
                            runtime_->config.head_dim * 4;
  Keep(262 * row_bytes);  // room for the second chunk, not for the third
  const PrefilledPrompt prompt = Prefill(layout_, With(Policy::kNone));
  EXPECT_NE(Of(prompt, chunks_[1]), nullptr);
  EXPECT_EQ(Of(prompt, chunks_[2]), nullptr);
  EXPECT_EQ(budget_->left(), 6 * row_bytes);
}

TEST_P(FreshRowsTest, KeepingThemChangesNothing) {
  const std::vector<float> kept = Prefill(layout_, With(Policy::kQuery)).logits;
  budget_->Open(false);
  EXPECT_EQ(Prefill(layout_, With(Policy::kQuery)).logits, kept);
}

INSTANTIATE_TEST_SUITE_P(Backends, FreshRowsTest, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace kvblend
