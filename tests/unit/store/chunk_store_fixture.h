// A store for a few small chunks, with a clock that stands still unless moved.
#pragma once

#include <memory>

#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {

class ChunkStoreTest : public ::testing::Test {
 protected:
  /// A store for `num_chunks` small chunks.
  std::unique_ptr<ChunkStore> Create(int64_t num_chunks, int64_t num_pinned = -1) {
    return *ChunkStore::Create({.byte_budget = num_chunks * kChunkBytes,
                                .pinned_byte_limit = num_pinned < 0 ? -1 : num_pinned * kChunkBytes,
                                .now = [this] { return now_; }});
  }
  static absl::StatusOr<ChunkHandle> Put(ChunkStore& store, const ChunkAddress& address,
                                         InsertOptions options = {}) {
    return store.Insert(address, FilledKv(address), options);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
};

}  // namespace kvblend::store
