// Prompts whose chunks lie below host memory.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {

class LowerTierBlendFixture : public BlendFixture {
 protected:
  void SetUp() override {
    BlendFixture::SetUp();
    for (const int32_t size : {23, 40, 17}) chunks_.push_back(RandomTokens(size));
    layout_ = MakeLayout(anchor_, chunks_, RandomTokens(9));
  }

  /// Nothing in host memory, everything of `disk` below it.
  void Restart(std::shared_ptr<test_support::MemoryDisk> disk, PromptRunner::Options options = {},
               int64_t byte_budget = int64_t{256} << 20) {
    runner_.reset();
    chunk_store_ = *store::ChunkStore::Create(
        {.byte_budget = byte_budget}, store::Only(test_support::MakeMemoryLowerTier(std::move(disk))));
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_, options);
  }
  void StoreAll(const std::vector<Tokens>& chunks) {
    for (const Tokens& chunk : chunks) Store(anchor_, chunk);
    ASSERT_TRUE(chunk_store_->FlushWrites(absl::InfiniteFuture()).ok());
  }

  /// Of the prompt's chunks behind its anchor.
  std::vector<store::ChunkAddress> Addresses() const {
    std::vector<store::ChunkAddress> addresses;
    for (const Tokens& chunk : chunks_) {
      addresses.push_back(store::AddressOf({.model_fingerprint = runtime_->key_space.model_fingerprint,
                                            .format = runtime_->key_space.format,
                                            .tenant_namespace = "",
                                            .anchor_hash = store::HashTokens(anchor_),
                                            .token_ids = chunk}));
    }
    return addresses;
  }

  const Tokens anchor_ = RandomTokens(11);
  std::vector<Tokens> chunks_;
  prompt::PromptLayout layout_;
};

}  // namespace kvblend
