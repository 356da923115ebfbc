// Blending with chunks that come from a slower tier, and chunks that turn out to be damaged on the way.
#include <gmock/gmock.h>

#include "tests/unit/blend/lower_tier_fixture.h"

namespace kvblend {
namespace {

using LowerTierBlendTest = LowerTierBlendFixture;

TEST_P(LowerTierBlendTest, WhereChunksComeFromDoesNotMatter) {
  Restart();
  StoreAll(chunks_);
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kNone, Policy::kAll}) {
    SCOPED_TRACE(Name(policy));
    const PrefilledPrompt from_host = Prefill(layout_, With(policy, 0.3));
    Restart();
    const PrefilledPrompt from_disk = Prefill(layout_, With(policy, 0.3));
    EXPECT_EQ(from_disk.logits, from_host.logits);
    EXPECT_EQ(from_disk.recomputed, from_host.recomputed);
    for (const ChunkReport& chunk : from_host.report.chunks) EXPECT_EQ(chunk.tier, Tier::kHostMemory);
    EXPECT_EQ(chunk_store_->Stats().lower_hits, 4);  // the anchor too
  }
}

// The failure of any layer, in any policy, gives the answer that a miss gives.
TEST_P(LowerTierBlendTest, AChunkThatFailsAtAnyLayerIsAMiss) {
  const auto without = disk_;
  Restart();
  StoreAll({chunks_[0], chunks_[2]});
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kNone, Policy::kAll}) {
    SCOPED_TRACE(Name(policy));
    disk_ = without;
    Restart();
    const PrefilledPrompt expected = Prefill(layout_, With(policy, 0.3));
    ASSERT_EQ(expected.report.chunks[1].source, ChunkSource::kMiss);
    // Before its check layer, hkvd computes all tokens whose KV is inexact, and reads none of it.
    const int32_t first_read = policy == Policy::kHkvd ? BlendOptions().hkvd_layer : 0;
    for (int32_t bad_layer = first_read; bad_layer < runtime_->config.num_layers; ++bad_layer) {
      SCOPED_TRACE("layer " + std::to_string(bad_layer));
      disk_ = std::make_shared<test_support::MemoryDisk>();
      Restart();
      StoreAll(chunks_);
      Restart();
      int faults = 0;
      disk_->read_fault = [&](const ChunkKey& key, int32_t layer) {
        if (key.ToHex() != expected.report.chunks[1].key || layer != bad_layer) return absl::OkStatus();
        ++faults;
        return absl::DataLossError("checksum");
      };
      const PrefilledPrompt prompt = Prefill(layout_, With(policy, 0.3));
      EXPECT_EQ(faults, 1);
      EXPECT_EQ(prompt.logits, expected.logits);
      EXPECT_EQ(prompt.recomputed, expected.recomputed);
      EXPECT_EQ(prompt.report.chunks[1].source, ChunkSource::kMiss);
      EXPECT_EQ(prompt.report.chunks[2].source, expected.report.chunks[2].source);
      EXPECT_EQ(prompt.missing.size(), 1u);
    }
  }
}

TEST_P(LowerTierBlendTest, WhenEverythingIsDamagedThePromptIsComputed) {
  Restart();
  StoreAll(chunks_);
  const PrefilledPrompt full = FullPrefill(layout_);
  Restart();
  disk_->read_fault = [](const ChunkKey&, int32_t layer) {
    return layer == 2 ? absl::UnavailableError("the device is gone") : absl::OkStatus();
  };
  const PrefilledPrompt prompt = Prefill(layout_, With(Policy::kQuery));
  EXPECT_EQ(prompt.logits, full.logits);
  EXPECT_EQ(prompt.report.computed_tokens, prompt.report.prompt_tokens);
  EXPECT_EQ(prompt.missing.size(), 4u);
}

// A sound entry under the key of another chunk, as somebody who writes into the folder could leave it.
TEST_P(LowerTierBlendTest, AnEntryOfAnotherShapeIsAMiss) {
  const std::unique_ptr<store::LowerTier> tier = test_support::MakeMemoryLowerTier(disk_);
  for (const Tokens& chunk : chunks_) {
    store::ChunkAddress address = AddressOf(anchor_, chunk);
    address.num_tokens += 1;
    const auto kv = *store::ChunkKv::Allocate(address.format, address.num_tokens);
    ASSERT_TRUE(tier->Put(address, *kv, {}).ok());
  }
  Restart();
  const PrefilledPrompt full = FullPrefill(layout_);
  const PrefilledPrompt prompt = Prefill(layout_, With(Policy::kQuery));
  EXPECT_EQ(prompt.logits, full.logits);
  EXPECT_EQ(prompt.report.computed_tokens, prompt.report.prompt_tokens);
}

// What is stored already but can't be read is computed again.
TEST_P(LowerTierBlendTest, StoringReplacesWhatIsDamaged) {
  Restart();
  StoreAll(chunks_);
  Restart();
  disk_->read_fault = [](const ChunkKey&, int32_t layer) {
    return layer == 3 ? absl::DataLossError("checksum") : absl::OkStatus();
  };
  EXPECT_FALSE(runner_->EnsureStored("", anchor_, chunks_[0], {}, KeepRunning)->already_present);
  disk_->read_fault = nullptr;
  ASSERT_TRUE(chunk_store_->FlushWrites(absl::InfiniteFuture()).ok());
  Restart();
  EXPECT_TRUE(runner_->EnsureStored("", anchor_, chunks_[0], {}, KeepRunning)->already_present);
}

// A request that nobody waits for any more does not wait for a slow tier either.
TEST_P(LowerTierBlendTest, CancellationEndsWaitingForLayers) {
  Restart();
  StoreAll(chunks_);
  Restart();
  disk_->HoldReads(true);
  int asked = 0;
  const auto prompt = runner_->Prefill(layout_, With(Policy::kQuery), "", [&] {
    return ++asked < 4 ? absl::OkStatus() : absl::CancelledError("gone");
  });
  EXPECT_EQ(prompt.status().code(), absl::StatusCode::kCancelled);
}

INSTANTIATE_TEST_SUITE_P(Backends, LowerTierBlendTest, testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvblend
