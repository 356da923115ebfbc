// Where the fields of a kvb1 header lie. docs/store-format.md says what they mean. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace kvblend::store::entry_layout {

// The first 32 bytes are the same in every version, so that any reader can tell a newer entry from a damaged
// one. The line ends in the magic change when a file was copied as text.
inline constexpr absl::string_view kMagic("kvb1\r\n\x1a\n", 8);
inline constexpr uint32_t kVersion = 1;
inline constexpr int64_t kVersionAt = 8;            // u32
inline constexpr int64_t kHeaderBytesAt = 12;       // u32
inline constexpr int64_t kHeaderChecksumAt = 16;    // u64
inline constexpr int64_t kFlagsAt = 24;             // u32
inline constexpr int64_t kPreambleReservedAt = 28;  // 4 bytes

inline constexpr int64_t kKeyAt = 32;  // 32 bytes, as the next three
inline constexpr int64_t kContentKeyAt = 64;
inline constexpr int64_t kAnchorHashAt = 96;
inline constexpr int64_t kModelFingerprintAt = 128;
inline constexpr int64_t kEncodingAt = 160;  // u32, as the next five
inline constexpr int64_t kFormatVersionAt = 164;
inline constexpr int64_t kNumLayersAt = 168;
inline constexpr int64_t kNumKvHeadsAt = 172;
inline constexpr int64_t kHeadDimAt = 176;
inline constexpr int64_t kNumTokensAt = 180;
inline constexpr int64_t kComputeCostAt = 184;     // f64
inline constexpr int64_t kCreatedAt = 192;         // i64
inline constexpr int64_t kNamespaceBytesAt = 200;  // u32
inline constexpr int64_t kLabelBytesAt = 204;      // u32
inline constexpr int64_t kReservedAt = 208;
inline constexpr int64_t kNamespaceAt = 256;
inline constexpr int64_t kLabelAt = 384;
inline constexpr int64_t kTableAt = 640;

inline constexpr int64_t kMaxNamespaceBytes = kLabelAt - kNamespaceAt;
inline constexpr int64_t kMaxLabelBytes = kTableAt - kLabelAt;

// The table has a row for each section: K of layer 0, V of layer 0, K of layer 1, ...
inline constexpr int64_t kSectionOffsetAt = 0;  // u64, as the next two
inline constexpr int64_t kSectionSizeAt = 8;
inline constexpr int64_t kSectionChecksumAt = 16;
inline constexpr int64_t kSectionRowBytes = 24;

// No version's header is longer; a reader whom a damaged length misleads reads no more than this for nothing.
inline constexpr int64_t kMaxHeaderBytes = 16 << 20;

// Little-endian at any address, on any machine; compilers make one instruction of it.
template <typename Unsigned>
Unsigned Load(const void* at) {
  const auto* bytes = static_cast<const uint8_t*>(at);
  Unsigned value = 0;
  for (size_t i = 0; i < sizeof(Unsigned); ++i) value |= static_cast<Unsigned>(bytes[i]) << (8 * i);
  return value;
}

template <typename Unsigned>
void Store(Unsigned value, void* at) {
  auto* bytes = static_cast<uint8_t*>(at);
  for (size_t i = 0; i < sizeof(Unsigned); ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
}

}  // namespace kvblend::store::entry_layout
