// Small chunks with recognisable contents, for the store's tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/store/chunk_store.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "gtest/gtest.h"

namespace kvblend::store {

/// A section of 8 tokens is one page of 4 KiB.
inline KvFormat SmallFormat() {
  return {.encoding = kernels::KvEncoding::kF32, .num_layers = 2, .num_kv_heads = 2, .head_dim = 64};
}

/// What SmallAddress(token) counts in a store.
inline constexpr int64_t kChunkBytes = 2 * 2 * 4096 + ChunkStore::kEntryOverheadBytes;

/// The address of a chunk that is told from others by its namespace, anchor and first token.
inline ChunkAddress SmallAddress(int32_t first_token, int32_t num_tokens = 8,
                                 const std::vector<int32_t>& anchor = {0}, std::string_view tenant = "") {
  std::vector<int32_t> token_ids;
  for (int32_t i = 0; i < num_tokens; ++i) token_ids.push_back(first_token + i);
  return AddressOf({.model_fingerprint = {},
                    .format = SmallFormat(),
                    .tenant_namespace = tenant,
                    .anchor_hash = HashTokens(anchor),
                    .token_ids = token_ids});
}

/// A value that depends on everything that could be mixed up.
inline float Element(const ChunkKey& key, int32_t layer, bool is_value, int64_t index) {
  return static_cast<float>(key.digest()[static_cast<size_t>(index % 32)]) +
         256.0F * static_cast<float>(layer) + (is_value ? 0.5F : 0.0F);
}

inline std::unique_ptr<ChunkKv> FilledKv(const ChunkAddress& address) {
  auto kv = *ChunkKv::Allocate(address.format, address.num_tokens);
  const int64_t n = address.num_tokens * address.format.RowElements();
  for (int32_t layer = 0; layer < address.format.num_layers; ++layer) {
    const MutableLayerKv views = kv->MutableLayer(layer);
    for (int64_t i = 0; i < n; ++i) {
      static_cast<float*>(views.k.data)[i] = Element(address.key, layer, false, i);
      static_cast<float*>(views.v.data)[i] = Element(address.key, layer, true, i);
    }
  }
  return kv;
}

inline void ExpectFilled(const ChunkHandle& handle) {
  const int64_t n = handle.num_tokens() * handle.format().RowElements();
  for (int32_t layer = 0; layer < handle.format().num_layers; ++layer) {
    const absl::StatusOr<LayerKv> views = handle.AcquireLayer(layer);
    ASSERT_TRUE(views.ok()) << views.status();
    ASSERT_EQ(views->k.rows, handle.num_tokens());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(static_cast<const float*>(views->k.data)[i], Element(handle.key(), layer, false, i));
      ASSERT_EQ(static_cast<const float*>(views->v.data)[i], Element(handle.key(), layer, true, i));
    }
  }
}

}  // namespace kvblend::store
