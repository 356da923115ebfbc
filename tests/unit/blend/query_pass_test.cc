// The query pass loads the layers that vote; recomputation loads the rest.
#include <gmock/gmock.h>

#include "engine/blend/blended_prefill.h"
#include "kernels/backend.h"
#include "tests/support/backend_decorator.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

/// Chooses what it was told to, in one pass that loads every layer on its way.
class FixedChoice final : public blend::SelectionPolicy {
 public:
  explicit FixedChoice(std::vector<int32_t> positions) : positions_(std::move(positions)) {}
  Policy policy() const override { return Policy::kLink; }
  blend::Requirement requirement() const override { return {}; }
  int32_t Budget(const blend::Candidates&) const override { return static_cast<int32_t>(positions_.size()); }
  absl::StatusOr<std::vector<int32_t>> Select(const blend::Candidates&, blend::HighestScores) const override {
    return positions_;
  }

 private:
  const std::vector<int32_t> positions_;
};

class QueryPassTest : public BlendFixture {
 protected:
  void SetUp() override {
    BlendFixture::SetUp();
    for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  }

  /// The logits of one blended pass that recomputes `positions`.
  std::vector<float> RecomputeThese(const std::vector<int32_t>& positions) {
    const blend::ReusePlan plan = Plan(layout_, With(Policy::kLink));
    kv::SequencePages pages(*runtime_->page_pool);
    EXPECT_TRUE(pages.Grow(plan.prompt_tokens).ok());
    const blend::PagedSequence sequence(*runtime_->backend, *runtime_->page_pool, pages);
    blend::PrefillScratch scratch;
    const FixedChoice policy(positions);
    const auto prefill = blend::BlendedPrefill::Create({.transformer = *runtime_->transformer,
                                                        .stream = *runtime_->stream,
                                                        .scratch = scratch,
                                                        .layout = layout_,
                                                        .plan = plan,
                                                        .sequence = sequence,
                                                        .pipeline_depth = 2,
                                                        .spread_deviation = true},
                                                       policy);
    EXPECT_TRUE(prefill.ok()) << prefill.status();
    while (prefill.ok()) {
      const absl::StatusOr<bool> done = (*prefill)->Step(KeepRunning);
      EXPECT_TRUE(done.ok()) << done.status();
      if (!done.ok()) break;
      if (*done) return (*prefill)->result().logits;
    }
    return {};
  }

  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(33), RandomTokens(50)};
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, RandomTokens(7));
};

// Whenever a layer is loaded, the answer is that of loading every layer before it is computed with.
TEST_P(QueryPassTest, WhereTheQueryPassEndsChangesOnlyTheChoice) {
  for (int32_t query_layers = 0; query_layers <= runtime_->config.num_layers; ++query_layers) {
    SCOPED_TRACE(query_layers);
    BlendOptions options = With(Policy::kQuery, 0.3);
    options.query_layers = query_layers;
    const PrefilledPrompt prompt = Prefill(layout_, options);
    ASSERT_GT(prompt.recomputed.size(), 0u);
    EXPECT_EQ(prompt.logits, RecomputeThese(prompt.recomputed));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, QueryPassTest, testing::Values("reference", "cpu"));

/// Notes how many chunk layers had been loaded when attention was last measured.
class CountsLoads final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  int loads = 0;
  int loads_before_choice = 0;
  int measurements = 0;

 protected:
  absl::Status DoKvLoad(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                        kernels::KvSectionView k, kernels::KvSectionView v,
                        kernels::KvPagesView pages) override {
    ++loads;
    return BackendDecorator::DoKvLoad(stream, plan, rope, k, v, pages);
  }
  absl::Status DoAttentionMass(Stream& stream, const Plan& plan, View q, const kernels::AttentionSpec& spec,
                               kernels::KvPagesView pages, Out out) override {
    ++measurements;
    loads_before_choice = loads;
    return BackendDecorator::DoAttentionMass(stream, plan, q, spec, pages, out);
  }
};

class QueryPassLoadsTest : public QueryPassTest {
 protected:
  std::unique_ptr<kernels::Backend> MakeBackend() override {
    auto backend = std::make_unique<CountsLoads>(kernels::CreateReferenceBackend());
    backend_ = backend.get();
    return backend;
  }
  CountsLoads* backend_ = nullptr;
};

TEST_P(QueryPassLoadsTest, LayersWithoutAVoteAreLoadedAfterTheChoice) {
  const int32_t num_layers = runtime_->config.num_layers;
  for (int32_t query_layers = 1; query_layers <= num_layers; ++query_layers) {
    SCOPED_TRACE(query_layers);
    backend_->loads = backend_->measurements = 0;
    BlendOptions options = With(Policy::kQuery, 0.3);
    options.query_layers = query_layers;
    Prefill(layout_, options);
    constexpr int kEntries = 4;  // the anchor and three chunks
    EXPECT_EQ(backend_->measurements, query_layers);
    EXPECT_EQ(backend_->loads_before_choice, query_layers * kEntries);
    EXPECT_EQ(backend_->loads, num_layers * kEntries);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, QueryPassLoadsTest, testing::Values("reference"));

}  // namespace
}  // namespace kvblend
