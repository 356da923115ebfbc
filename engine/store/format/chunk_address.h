// Content addresses: equal chunk, equal key, on every replica; and different in anything, different key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "engine/api/chunk_info.h"
#include "engine/api/chunk_key.h"
#include "engine/store/format/kv_format.h"
#include "engine/store/format/token_hash.h"

namespace kvblend::store {

/// Everything that the KV of a chunk depends on. `token_ids` is borrowed.
struct ChunkIdentity {
  Digest model_fingerprint{};
  KvFormat format;
  std::string_view tenant_namespace = {};
  Digest anchor_hash = IsolatedAnchorHash();  // HashTokens of the anchor's token ids
  absl::Span<const int32_t> token_ids = {};
};

/// What the store needs to know of a chunk: its names, and enough to check what is put under them.
///
/// The keys are SHA-256 over these bytes, the content key without the line marked *:
///     str("kvblend chunk")
///     u32(1)                      version of this serialisation
///     u8(kind)                    1: chunk key, 2: content key
///     model fingerprint           32 bytes
///     str(encoding name)          "f32", "bf16", "f16", "int8", "int4", "fp8"
///     u32(num_layers) u32(num_kv_heads) u32(head_dim) u32(format.version)
///     str(tenant namespace)
///   * anchor hash                 32 bytes
///     tokens(token_ids)
/// where u8, u32, u64 are little-endian; str(s) is u64(number of bytes), then the bytes; tokens(t) is
/// u64(number of tokens), then u32(id) for each. tests/unit/store/make_key_vectors.py is an independent
/// implementation.
struct ChunkAddress {
  Digest model_fingerprint{};
  ChunkKey key;
  ContentKey content_key;
  Digest anchor_hash{};
  KvFormat format;
  std::string tenant_namespace;
  int32_t num_tokens = 0;

  bool IsIn(NamespaceFilter filter) const { return !filter.has_value() || *filter == tenant_namespace; }
};

ChunkAddress AddressOf(const ChunkIdentity& identity);

/// One of the entries of a content key. Less is better: an anchored entry rather than an isolated one, and of
/// several the one with the smallest key, so that the same entries give the same choice, whatever happened
/// before.
struct ContentMatch {
  ChunkKey key;
  bool isolated = false;

  friend bool operator<(const ContentMatch& a, const ContentMatch& b) {
    return std::tie(a.isolated, a.key) < std::tie(b.isolated, b.key);
  }
};

inline ContentMatch MatchOf(const ChunkAddress& address) {
  return {.key = address.key, .isolated = address.anchor_hash == IsolatedAnchorHash()};
}

/// The order in which entries are listed: by namespace, then by key.
using ListPlace = std::pair<std::string, ChunkKey>;

}  // namespace kvblend::store
