// kvb1: a stored chunk as bytes, the same in a file and on a network. docs/store-format.md is its definition.
//
//     header    one or more pages of 4 KiB: who the entry is, how its sections lie, checksums of all of it
//     layer 0   K section, V section, as in ChunkKv: each starts at a multiple of 4 KiB
//     layer 1   ...
//
// A reader accepts only what it understands: an unknown version, encoding or flag is refused by name. Nothing
// that was read is used before its checksum was compared. All functions are thread-safe.
//
// Left to callers: an entry's keys can't be computed again from the entry, which does not hold the token ids,
// so compare address.key with the key that was asked for; and compare total_bytes() with what is there before
// memory is taken for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"

namespace kvblend::store {

/// XXH3-64 of a layer's sections, each with its padding.
struct LayerChecksums {
  uint64_t k = 0;
  uint64_t v = 0;
};

/// What an entry says of itself before its sections.
struct EntryHeader {
  ChunkAddress address;
  std::string label;  // at most 256 bytes
  double compute_cost_seconds = 0;
  absl::Time created;                  // written in whole microseconds, rounded down
  std::vector<LayerChecksums> layers;  // [address.format.num_layers]

  // These REQUIRE a valid format and num_tokens >= 0, which every decoded header has.
  int64_t header_bytes() const;  // from the first byte to layer 0, a multiple of 4 KiB
  int64_t layer_bytes() const;   // as ChunkKv::layer_bytes()
  int64_t k_section_bytes() const;
  int64_t total_bytes() const;
};

/// The bytes that every header begins with; enough for EntryHeaderBytes.
inline constexpr int64_t kEntryPageBytes = 4096;

/// Whether `kv` may be stored under `address` with that cost. kInvalidArgument, beginning with `where`:
/// `kv` is not of the address's shape, or the cost is negative or not finite.
absl::Status CheckStorable(absl::string_view where, const ChunkAddress& address, const ChunkKv& kv,
                           double compute_cost_seconds);

/// Checksums of all layers. Reads all of `kv`.
std::vector<LayerChecksums> ChecksumsOf(const ChunkKv& kv);

/// The header's bytes, header.header_bytes() of them. kInvalidArgument naming the field: label or namespace
/// too long, a cost that is negative or not finite, a bad KV format or number of tokens, a time that 64 bits
/// of microseconds can't hold, or not as many checksums as layers.
absl::StatusOr<std::string> EncodeEntryHeader(const EntryHeader& header);

/// How long the header is, read from its first kEntryPageBytes bytes (fewer are a truncated entry): a
/// multiple of kEntryPageBytes, at most 16 MiB, whichever version wrote it. Not yet compared with any
/// checksum. kDataLoss: no kvb1 entry, or damaged.
absl::StatusOr<int64_t> EntryHeaderBytes(absl::Span<const std::byte> first_page);

/// Reads a header from its EntryHeaderBytes bytes; more may follow. Checks everything that can be checked
/// without the sections, the header's checksum first.
/// kDataLoss: damaged or inconsistent. kUnimplemented: sound, but written by a newer version, or with a flag,
/// an encoding or a KV format version that this build does not know.
absl::StatusOr<EntryHeader> DecodeEntryHeader(absl::Span<const std::byte> bytes);

/// Compares one layer's bytes, layer_bytes() of them, with the header. kDataLoss naming layer and section.
/// kInvalidArgument: no such layer.
absl::Status VerifyLayer(const EntryHeader& header, int32_t layer, absl::Span<const std::byte> bytes);

}  // namespace kvblend::store
