// Prompts whose chunks lie below host memory.
#pragma once

#include <memory>
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

  /// Nothing in host memory, everything of `disk_` below it.
  void Restart(PromptRunner::Options options = {}, int64_t byte_budget = int64_t{256} << 20) {
    runner_.reset();
    chunk_store_ = *store::ChunkStore::Create({.byte_budget = byte_budget},
                                              store::Only(test_support::MakeMemoryLowerTier(disk_)));
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_, options);
  }
  void StoreAll(const std::vector<Tokens>& chunks) {
    for (const Tokens& chunk : chunks) Store(anchor_, chunk);
    ASSERT_TRUE(chunk_store_->FlushWrites(absl::InfiniteFuture()).ok());
  }

  std::shared_ptr<test_support::MemoryDisk> disk_ = std::make_shared<test_support::MemoryDisk>();
  const Tokens anchor_ = RandomTokens(11);
  std::vector<Tokens> chunks_;
  prompt::PromptLayout layout_;
};

}  // namespace kvblend
