// Entries as bytes, for the tests and the fuzzer of the entry format. Offsets are those of
// docs/store-format.md, written down a second time on purpose.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "absl/types/span.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/format/entry_format.h"

namespace kvblend::store {

inline absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

/// Little-endian, byte by byte.
inline void PutInteger(std::string& bytes, size_t at, int num_bytes, uint64_t value) {
  for (int i = 0; i < num_bytes; ++i)
    bytes.at(at + static_cast<size_t>(i)) = static_cast<char>(value >> (8 * i));
}

inline uint64_t GetInteger(const std::string& bytes, size_t at, int num_bytes) {
  uint64_t value = 0;
  for (int i = 0; i < num_bytes; ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes.at(at + static_cast<size_t>(i)))} << (8 * i);
  }
  return value;
}

/// Makes the checksum right for the first `header_bytes` bytes.
inline void FixChecksum(std::string& bytes, size_t header_bytes) {
  PutInteger(bytes, 16, 8, 0);
  PutInteger(bytes, 16, 8, XXH3_64bits(bytes.data(), header_bytes));
}

inline Digest DigestOf(int number) { return Sha256(std::to_string(number)); }

/// A header with something in every field; its checksums are those of `kv`, or without it made up.
inline EntryHeader SampleHeader(const KvFormat& format, int32_t num_tokens, const ChunkKv* kv = nullptr) {
  EntryHeader header;
  header.address = {.model_fingerprint = DigestOf(1),
                    .key = ChunkKey(DigestOf(2)),
                    .content_key = ContentKey(DigestOf(3)),
                    .anchor_hash = DigestOf(4),
                    .format = format,
                    .tenant_namespace = "tenant-a",
                    .num_tokens = num_tokens};
  header.label = "handbook";
  header.compute_cost_seconds = 0.8125;
  header.created = absl::FromUnixMicros(1795219200123456);
  if (kv != nullptr) {
    header.layers = ChecksumsOf(*kv);
  } else {
    for (int32_t layer = 0; layer < format.num_layers; ++layer) {
      header.layers.push_back({.k = uint64_t{0x0123456789ABCDEF} * (layer + 1), .v = ~uint64_t{0} - layer});
    }
  }
  return header;
}

/// Random bytes in all layers, padding included, as nothing looks into sections here.
inline std::unique_ptr<ChunkKv> RandomKv(const KvFormat& format, int32_t num_tokens,
                                         std::mt19937_64& random) {
  auto kv = *ChunkKv::Allocate(format, num_tokens);
  for (int32_t layer = 0; layer < format.num_layers; ++layer) {
    for (std::byte& byte : kv->MutableLayerBytes(layer)) byte = static_cast<std::byte>(random());
  }
  return kv;
}

}  // namespace kvblend::store
