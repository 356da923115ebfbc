// Deviations of recomputed tokens are passed on where there is something to pass on, and nowhere else.
#include <gmock/gmock.h>

#include "kernels/backend.h"
#include "tests/support/backend_decorator.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;

using Spans = std::vector<std::pair<int32_t, int32_t>>;

/// Notes what is spread over which spans.
class NotesSpreads final : public test_support::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  std::vector<Spans> spreads;

 protected:
  absl::Status DoSpreadDeviation(Stream& stream, const Plan& plan, const kernels::RopeTable& rope,
                                 absl::Span<const kernels::ColumnRange> ranges,
                                 const kernels::DeviationSpread& keys, const kernels::DeviationSpread& values,
                                 View k, View v, kernels::KvPagesView pages) override {
    Spans& spans = spreads.emplace_back();
    for (const auto& [begin, end] : ranges) spans.emplace_back(begin, end);
    return BackendDecorator::DoSpreadDeviation(stream, plan, rope, ranges, keys, values, k, v, pages);
  }
};

class SpreadTest : public BlendFixture {
 protected:
  std::unique_ptr<kernels::Backend> MakeBackend() override {
    auto notes = std::make_unique<NotesSpreads>(*kernels::CreateBackend(GetParam(), /*num_threads=*/2));
    backend_ = notes.get();
    return notes;
  }
  void SetUp() override {
    BlendFixture::SetUp();
    for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
  }
  static BlendOptions Unspread(BlendOptions options) {
    options.spread_deviation = false;
    return options;
  }
  /// How far the logits are from those of full prefill, without and with it.
  std::pair<double, double> Distances(const BlendOptions& options) {
    const std::vector<float> full = FullPrefill(layout_).logits;
    return {RelativeDistance(Prefill(layout_, Unspread(options)).logits, full),
            RelativeDistance(Prefill(layout_, options).logits, full)};
  }

  // [0, 21) and the first chunk are exact; the others begin at 61, 94 and 144.
  const Tokens anchor_ = RandomTokens(21);
  const std::vector<Tokens> chunks_ = {RandomTokens(40), RandomTokens(33), RandomTokens(50),
                                       RandomTokens(16)};
  const prompt::PromptLayout layout_ = MakeLayout(anchor_, chunks_, RandomTokens(7));
  NotesSpreads* backend_ = nullptr;
};

TEST_P(SpreadTest, IsDoneInEveryLayerButTheFirstOverSpansThatAreNotExact) {
  Prefill(layout_, With(Policy::kQuery, 0.3));
  EXPECT_THAT(backend_->spreads, SizeIs(runtime_->config.num_layers - 1));
  EXPECT_THAT(backend_->spreads, Each(Spans{{61, 94}, {94, 144}, {144, 160}}));
}

TEST_P(SpreadTest, IsNotDoneWhereItIsSwitchedOff) {
  Prefill(layout_, Unspread(With(Policy::kQuery, 0.3)));
  FullPrefill(layout_);
  EXPECT_THAT(backend_->spreads, IsEmpty());
}

TEST_P(SpreadTest, BeginsBehindTheLayerThatChoosesByDeviation) {
  BlendOptions options = With(Policy::kHkvd, 0.3);
  options.hkvd_layer = 2;
  Prefill(layout_, options);
  EXPECT_THAT(backend_->spreads, SizeIs(1));  // layer 3 of 0 .. 3
}

TEST_P(SpreadTest, ChangesNothingWhereNothingOrEverythingIsRecomputed) {
  for (const Policy policy : {Policy::kNone, Policy::kAll}) {
    const BlendOptions options = With(policy);
    EXPECT_EQ(Prefill(layout_, options).logits, Prefill(layout_, Unspread(options)).logits) << Name(policy);
  }
}

TEST_P(SpreadTest, ChangesTheAnswerWhereSomethingIsRecomputed) {
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kRandom}) {
    const auto [without, with] = Distances(With(policy, 0.2));
    EXPECT_NE(without, with) << Name(policy);
    // Random weights deviate at random: there is nothing to gain, and not much to lose.
    EXPECT_LT(with, 1.5 * without) << Name(policy);
  }
}

// The first tokens of a chunk say little about the rest, least of all where it was computed by itself.
TEST_P(SpreadTest, IsNotDoneWhereTheBeginningsOfChunksWouldBeSpread) {
  BlendOptions link = With(Policy::kLink);
  link.link_tokens = 5;
  Prefill(layout_, link);
  for (const Tokens& chunk : chunks_) Store({}, chunk);
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kRandom}) {
    BlendOptions options = With(policy, 0.3);
    options.anchoring = Anchoring::kIsolated;
    Prefill(layout_, options);
  }
  Prefill(MakeLayout({}, chunks_, RandomTokens(7)), With(Policy::kQuery, 0.3));
  EXPECT_THAT(backend_->spreads, IsEmpty());
}

// Of a prompt whose chunks have an anchor too, where the store has one only as it is by itself.
TEST_P(SpreadTest, LeavesOutChunksThatWereComputedByThemselves) {
  const Tokens by_itself = RandomTokens(33);
  Store({}, by_itself);
  Prefill(MakeLayout(anchor_, {chunks_[0], by_itself, chunks_[2]}, RandomTokens(7)),
          With(Policy::kRandom, 0.3));
  ASSERT_THAT(backend_->spreads, SizeIs(3));
  EXPECT_THAT(backend_->spreads, Each(Spans{{94, 144}}));
}

// Layers whose windows hide a chunk from all rows neither have its KV nor move it.
TEST_P(SpreadTest, LeavesOutSpansThatALayerHasNotLoaded) {
  constexpr int32_t kWindow = 24;
  for (const int32_t layer : {1, 2, 3}) runtime_->config.layers[layer].sliding_window = kWindow;
  const std::vector<float> with = Prefill(layout_, With(Policy::kRandom, 0.3)).logits;
  ASSERT_THAT(backend_->spreads, SizeIs(3));
  // The first row of which any of these layers has use is at 121, and sees nothing before 98.
  EXPECT_THAT(backend_->spreads, Each(Spans{{94, 144}, {144, 160}}));
  for (const float logit : with) ASSERT_TRUE(std::isfinite(logit));
}

INSTANTIATE_TEST_SUITE_P(Backends, SpreadTest, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace kvblend
