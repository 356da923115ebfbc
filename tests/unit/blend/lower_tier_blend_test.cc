// Blending with chunks that come from a slower tier, and chunks that turn out to be damaged on the way.
#include <gmock/gmock.h>

#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

class LowerTierBlendTest : public BlendFixture {
 protected:
  void SetUp() override {
    BlendFixture::SetUp();
    for (const int32_t size : {23, 40, 17}) chunks_.push_back(RandomTokens(size));
    layout_ = MakeLayout(anchor_, chunks_, RandomTokens(9));
  }

  /// Nothing in host memory, everything of `disk` below it.
  void Restart(std::shared_ptr<test_support::MemoryDisk> disk) {
    runner_.reset();
    chunk_store_ = *store::ChunkStore::Create(
        {.byte_budget = int64_t{256} << 20}, store::Only(test_support::MakeMemoryLowerTier(std::move(disk))));
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_);
  }
  void StoreAll(const std::vector<Tokens>& chunks) {
    for (const Tokens& chunk : chunks) Store(anchor_, chunk);
    ASSERT_TRUE(chunk_store_->FlushWrites(absl::InfiniteFuture()).ok());
  }

  /// Of the prompt's chunks behind its anchor.
  std::vector<store::ChunkAddress> AddressesOf(const prompt::PromptLayout& layout) const {
    std::vector<store::ChunkAddress> addresses;
    for (const Tokens& chunk : chunks_) {
      addresses.push_back(store::AddressOf({.model_fingerprint = runtime_->key_space.model_fingerprint,
                                            .format = runtime_->key_space.format,
                                            .tenant_namespace = "",
                                            .anchor_hash = store::HashTokens(layout.anchor_ids),
                                            .token_ids = chunk}));
    }
    return addresses;
  }

  const Tokens anchor_ = RandomTokens(11);
  std::vector<Tokens> chunks_;
  prompt::PromptLayout layout_;
};

TEST_P(LowerTierBlendTest, WhereChunksComeFromDoesNotMatter) {
  const auto disk = std::make_shared<test_support::MemoryDisk>();
  Restart(disk);
  StoreAll(chunks_);
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kLink, Policy::kNone, Policy::kAll}) {
    SCOPED_TRACE(Name(policy));
    const PrefilledPrompt from_host = Prefill(layout_, With(policy, 0.3));
    Restart(disk);
    const PrefilledPrompt from_disk = Prefill(layout_, With(policy, 0.3));
    EXPECT_EQ(from_disk.logits, from_host.logits);
    EXPECT_EQ(from_disk.recomputed, from_host.recomputed);
    for (const ChunkReport& chunk : from_host.report.chunks) EXPECT_EQ(chunk.tier, Tier::kHostMemory);
    EXPECT_EQ(chunk_store_->Stats().lower_hits, 4);  // the anchor too
  }
}

// The failure of any layer, in any policy, gives the answer that a miss gives.
TEST_P(LowerTierBlendTest, AChunkThatFailsAtAnyLayerIsAMiss) {
  const auto without = std::make_shared<test_support::MemoryDisk>();
  Restart(without);
  StoreAll({chunks_[0], chunks_[2]});
  for (const Policy policy : {Policy::kQuery, Policy::kHkvd, Policy::kNone, Policy::kAll}) {
    SCOPED_TRACE(Name(policy));
    Restart(without);
    const PrefilledPrompt expected = Prefill(layout_, With(policy, 0.3));
    ASSERT_EQ(expected.report.chunks[1].source, ChunkSource::kMiss);
    for (int32_t bad_layer = 0; bad_layer < runtime_->config.num_layers; ++bad_layer) {
      SCOPED_TRACE("layer " + std::to_string(bad_layer));
      const auto disk = std::make_shared<test_support::MemoryDisk>();
      Restart(disk);
      StoreAll(chunks_);
      Restart(disk);
      int faults = 0;
      disk->read_fault = [&](const ChunkKey& key, int32_t layer) {
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
  const auto disk = std::make_shared<test_support::MemoryDisk>();
  Restart(disk);
  StoreAll(chunks_);
  const PrefilledPrompt full = FullPrefill(layout_);
  Restart(disk);
  disk->read_fault = [](const ChunkKey&, int32_t layer) {
    return layer == 2 ? absl::UnavailableError("the device is gone") : absl::OkStatus();
  };
  const PrefilledPrompt prompt = Prefill(layout_, With(Policy::kQuery));
  EXPECT_EQ(prompt.logits, full.logits);
  EXPECT_EQ(prompt.report.computed_tokens, prompt.report.prompt_tokens);
  EXPECT_EQ(prompt.missing.size(), 4u);
}

// A sound entry under the key of another chunk, as somebody who writes into the folder could leave it.
TEST_P(LowerTierBlendTest, AnEntryOfAnotherShapeIsAMiss) {
  const auto disk = std::make_shared<test_support::MemoryDisk>();
  const std::unique_ptr<store::LowerTier> tier = test_support::MakeMemoryLowerTier(disk);
  for (store::ChunkAddress address : AddressesOf(layout_)) {
    address.num_tokens += 1;
    const auto kv = *store::ChunkKv::Allocate(address.format, address.num_tokens);
    ASSERT_TRUE(tier->Put(address, *kv, {}).ok());
  }
  Restart(disk);
  const PrefilledPrompt full = FullPrefill(layout_);
  const PrefilledPrompt prompt = Prefill(layout_, With(Policy::kQuery));
  EXPECT_EQ(prompt.logits, full.logits);
  EXPECT_EQ(prompt.report.computed_tokens, prompt.report.prompt_tokens);
}

// What is stored already but can't be read is computed again.
TEST_P(LowerTierBlendTest, StoringReplacesWhatIsDamaged) {
  const auto disk = std::make_shared<test_support::MemoryDisk>();
  Restart(disk);
  StoreAll(chunks_);
  Restart(disk);
  disk->read_fault = [](const ChunkKey&, int32_t layer) {
    return layer == 3 ? absl::DataLossError("checksum") : absl::OkStatus();
  };
  EXPECT_FALSE(runner_->EnsureStored("", anchor_, chunks_[0], {}, KeepRunning)->already_present);
  disk->read_fault = nullptr;
  ASSERT_TRUE(chunk_store_->FlushWrites(absl::InfiniteFuture()).ok());
  Restart(disk);
  EXPECT_TRUE(runner_->EnsureStored("", anchor_, chunks_[0], {}, KeepRunning)->already_present);
}

// A request that nobody waits for any more does not wait for a slow tier either.
TEST_P(LowerTierBlendTest, CancellationEndsWaitingForLayers) {
  const auto disk = std::make_shared<test_support::MemoryDisk>();
  Restart(disk);
  StoreAll(chunks_);
  Restart(disk);
  disk->HoldReads(true);
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
