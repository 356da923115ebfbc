// The loading controller at work: what a prompt's ratio becomes with a slow tier and with a fast one, and
// chunks that are computed because loading them would take longer. Reading takes as long as the test says, by
// a clock of its own; computing as long as the controller was told.
#include <gmock/gmock.h>

#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

using testing::ElementsAre;

class AutoRatioTest : public BlendFixture {
 protected:
  static constexpr double kMin = 0.1, kMax = 0.8;

  void SetUp() override {
    BlendFixture::SetUp();
    for (const int32_t size : {23, 40, 33}) chunks_.push_back(RandomTokens(size));
    layout_ = MakeLayout(anchor_, chunks_, RandomTokens(9));
    Restart();
    for (const Tokens& chunk : chunks_) Store(anchor_, chunk);
    ASSERT_TRUE(chunk_store_->FlushWrites(absl::InfiniteFuture()).ok());
    disk_->read_fault = [this](const ChunkKey& key, int32_t) {
      read_keys_.push_back(key.ToHex());
      now_ += absl::Seconds(seconds_per_read_);
      return absl::OkStatus();
    };
  }
  void TearDown() override { runner_.reset(); }

  void Restart() {
    runner_.reset();
    chunk_store_ =
        *store::ChunkStore::Create({.byte_budget = int64_t{256} << 20, .now = [this] { return now_; }},
                                   store::Only(test_support::MakeMemoryLowerTier(disk_)));
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_);
    // A token takes a second per layer, says every measurement but those of the few passes of the test.
    blend::PrefillMeasurements measurements;
    for (double rows = 1; rows < 4000; rows *= 2) {
      for (double context = 16; context < 100000; context *= 4) {
        for (int i = 0; i < 4; ++i) {
          measurements.passes.push_back({.size = {rows, rows * context}, .layers = 1, .seconds = rows});
        }
      }
    }
    runner_->loading_controller().Observe(measurements);
    read_keys_.clear();
  }

  /// Brings chunks into host memory, at `seconds_per_read` for each of their layers.
  void Load(const std::vector<int>& chunks, double seconds_per_read) {
    seconds_per_read_ = seconds_per_read;
    for (const int chunk : chunks)
      EXPECT_TRUE(store::LookupOne(*chunk_store_, KeyOf(anchor_, chunks_[chunk])).has_value());
    EXPECT_TRUE(store::LookupOne(*chunk_store_, KeyOf({}, anchor_)).has_value());
    read_keys_.clear();
  }

  ChunkKey KeyOf(const Tokens& anchor, const Tokens& tokens) const { return AddressOf(anchor, tokens).key; }

  static BlendOptions Auto(Policy policy) {
    return {
        .policy = policy, .ratio_mode = RatioMode::kAuto, .ratio = 0.3, .ratio_min = kMin, .ratio_max = kMax};
  }

  static std::vector<ChunkSource> Sources(const PromptReport& report) {
    std::vector<ChunkSource> sources;
    for (const ChunkReport& chunk : report.chunks) sources.push_back(chunk.source);
    return sources;
  }

  absl::Time now_ = absl::UnixEpoch();
  double seconds_per_read_ = 1e-6;
  std::vector<std::string> read_keys_;
  const std::shared_ptr<test_support::MemoryDisk> disk_ = std::make_shared<test_support::MemoryDisk>();
  const Tokens anchor_ = RandomTokens(11);
  std::vector<Tokens> chunks_;
  prompt::PromptLayout layout_;
};

TEST_P(AutoRatioTest, UntilATierIsMeasuredTheFixedRatioHoldsWithinTheBounds) {
  Restart();
  const PromptReport report = Prefill(layout_, Auto(Policy::kHkvd)).report;
  EXPECT_EQ(report.loading.mode, RatioMode::kAuto);
  EXPECT_EQ(report.loading.ratio, 0.3);
  EXPECT_FALSE(report.loading.predicted);
  ASSERT_EQ(report.loading.reads.size(), 1u);
  EXPECT_EQ(report.loading.reads[0].bytes_per_second, 0);
}

TEST_P(AutoRatioTest, ASlowTierMakesRoomForMoreRecomputationThanAFastOne) {
  std::vector<double> ratios;
  for (const double seconds_per_read : {1e-6, 1e6}) {
    Restart();
    Load({0}, seconds_per_read);
    now_ += absl::Minutes(2);  // too long ago to bypass anything
    const PromptReport report = Prefill(layout_, Auto(Policy::kHkvd)).report;
    const LoadingReport& loading = report.loading;
    EXPECT_EQ(loading.mode, RatioMode::kAuto);
    EXPECT_EQ(loading.ratio_min, kMin);
    EXPECT_EQ(loading.ratio_max, kMax);
    EXPECT_EQ(loading.bypassed_chunks, 0);
    ASSERT_TRUE(loading.predicted);
    ASSERT_EQ(loading.reads.size(), 1u);
    EXPECT_EQ(loading.reads[0].tier, Tier::kDisk);
    const store::KvFormat& format = runtime_->key_space.format;
    EXPECT_EQ(loading.reads[0].bytes,
              *store::ChunkKv::SizeBytes(format, 40) + *store::ChunkKv::SizeBytes(format, 33));
    EXPECT_GE(loading.predicted_seconds, loading.predicted_load_seconds);
    EXPECT_GE(loading.predicted_seconds * (1 + 1e-9), loading.predicted_compute_seconds);
    EXPECT_NEAR(loading.compute_seconds_per_token, runtime_->config.num_layers, 0.5);
    EXPECT_EQ(report.recomputed_tokens, std::llround(loading.ratio * (40 + 33)));
    ratios.push_back(loading.ratio);
  }
  EXPECT_LT(ratios[0], kMin + 0.05);
  EXPECT_EQ(ratios[1], kMax);
}

TEST_P(AutoRatioTest, AChunkThatWouldLoadForTooLongIsComputedAsAMissWouldBe) {
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kNone}) {
    SCOPED_TRACE(Name(policy));
    // The second chunk is nowhere.
    Restart();
    Load({0, 2}, 1e6);
    EXPECT_TRUE(*chunk_store_->Erase("", KeyOf(anchor_, chunks_[1])));
    const PrefilledPrompt missing = Prefill(layout_, Auto(policy));
    ASSERT_EQ(missing.report.chunks[1].source, ChunkSource::kMiss);
    Store(anchor_, chunks_[1]);
    ASSERT_TRUE(chunk_store_->FlushWrites(absl::InfiniteFuture()).ok());
    // It is below host memory, and slow.
    Restart();
    Load({0, 2}, 1e6);
    const PrefilledPrompt bypassed = Prefill(layout_, Auto(policy));
    EXPECT_THAT(Sources(bypassed.report),
                ElementsAre(ChunkSource::kExact, ChunkSource::kBypassed, ChunkSource::kBlended));
    EXPECT_EQ(bypassed.report.chunks[1].tier, Tier::kDisk);
    EXPECT_EQ(bypassed.report.chunks[1].recomputed_tokens, 40);
    EXPECT_EQ(bypassed.report.loading.bypassed_chunks, 1);
    EXPECT_EQ(bypassed.report.computed_tokens, missing.report.computed_tokens);
    EXPECT_EQ(bypassed.report.loading.ratio, missing.report.loading.ratio);
    EXPECT_EQ(bypassed.logits, missing.logits);
    EXPECT_EQ(bypassed.recomputed, missing.recomputed);
    EXPECT_TRUE(bypassed.missing.empty());  // it is stored
    EXPECT_TRUE(read_keys_.empty());
    EXPECT_EQ(chunk_store_->Stat("", KeyOf(anchor_, chunks_[1]))->tier, Tier::kDisk);  // and takes no memory
  }
}

TEST_P(AutoRatioTest, WhatIsInHostMemoryIsNeverBypassed) {
  const PrefilledPrompt full = FullPrefill(layout_);
  Restart();
  Load({0}, 1e6);
  EXPECT_THAT(Sources(Prefill(layout_, Auto(Policy::kQuery)).report),
              ElementsAre(ChunkSource::kExact, ChunkSource::kBypassed, ChunkSource::kBypassed));
  EXPECT_LT(RelativeDistance(Prefill(layout_, Auto(Policy::kQuery)).logits, full.logits), kRounding);
}

TEST_P(AutoRatioTest, AFixedRatioLoadsWhateverItTakes) {
  Restart();
  Load({0, 2}, 1e6);
  const PromptReport report = Prefill(layout_, With(Policy::kQuery, 0.3)).report;
  EXPECT_EQ(report.chunks[1].source, ChunkSource::kBlended);
  EXPECT_EQ(report.loading.mode, RatioMode::kFixed);
  EXPECT_EQ(report.loading.ratio, 0.3);
  EXPECT_EQ(report.loading.bypassed_chunks, 0);
  EXPECT_TRUE(report.loading.predicted);
}

TEST_P(AutoRatioTest, ATierThatWasSlowIsTriedAgainAfterAMinute) {
  Restart();
  Load({0}, 1e6);
  EXPECT_EQ(Prefill(layout_, Auto(Policy::kNone)).report.loading.bypassed_chunks, 2);
  seconds_per_read_ = 1e-6;  // but nobody knows
  EXPECT_EQ(Prefill(layout_, Auto(Policy::kNone)).report.loading.bypassed_chunks, 2);
  now_ += absl::Seconds(61);
  EXPECT_EQ(Prefill(layout_, Auto(Policy::kNone)).report.loading.bypassed_chunks, 0);
  EXPECT_GT(chunk_store_->read_meter().Rates().at(Tier::kDisk).bytes_per_second, 1e6);
}

INSTANTIATE_TEST_SUITE_P(Backends, AutoRatioTest, testing::Values("reference"));

}  // namespace
}  // namespace kvblend
