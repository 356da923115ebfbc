#include "engine/store/format/entry_format.h"

#include <xxhash.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "engine/store/format/entry_checks.h"
#include "engine/store/format/entry_layout.h"

namespace kvblend::store {
namespace {

using namespace entry_layout;  // NOLINT: names of this format only

constexpr int64_t PaddedToPages(int64_t bytes) {
  return (bytes + kEntryPageBytes - 1) / kEntryPageBytes * kEntryPageBytes;
}
static_assert(kEntryPageBytes == ChunkKv::kSectionAlignment);

int64_t SectionBytes(const ChunkAddress& address, kernels::KvPart part) {
  return PaddedToPages(address.format.Section(part, address.num_tokens).size_bytes);
}

uint64_t Checksum(absl::Span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

absl::Status CheckLength(absl::string_view field, size_t bytes, int64_t max) {
  if (bytes <= static_cast<size_t>(max)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("entry: ", field, " has ", bytes, " bytes; allowed: at most ", max));
}

}  // namespace

int64_t EntryHeader::header_bytes() const {
  return PaddedToPages(kTableAt + 2 * kSectionRowBytes * address.format.num_layers);
}
int64_t EntryHeader::k_section_bytes() const { return SectionBytes(address, kernels::KvPart::kKey); }
int64_t EntryHeader::layer_bytes() const {
  return k_section_bytes() + SectionBytes(address, kernels::KvPart::kValue);
}
int64_t EntryHeader::total_bytes() const {
  return header_bytes() + address.format.num_layers * layer_bytes();
}

absl::Status CheckStorable(absl::string_view where, const ChunkAddress& address, const ChunkKv& kv,
                           double compute_cost_seconds) {
  if (kv.format() != address.format || kv.num_tokens() != address.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": KV of ", kv.num_tokens(),
                                                   " tokens is not of the shape that its address names (",
                                                   address.num_tokens, " tokens), or of another format"));
  }
  if (!std::isfinite(compute_cost_seconds) || compute_cost_seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": compute_cost_seconds is ", compute_cost_seconds,
                                                   "; allowed: finite and >= 0"));
  }
  return absl::OkStatus();
}

std::vector<LayerChecksums> ChecksumsOf(const ChunkKv& kv) {
  std::vector<LayerChecksums> checksums(static_cast<size_t>(kv.format().num_layers));
  for (int32_t layer = 0; layer < kv.format().num_layers; ++layer) {
    const absl::Span<const std::byte> bytes = kv.LayerBytes(layer);
    const auto k_bytes = static_cast<size_t>(kv.k_section_bytes());
    checksums[static_cast<size_t>(layer)] = {.k = Checksum(bytes.subspan(0, k_bytes)),
                                             .v = Checksum(bytes.subspan(k_bytes))};
  }
  return checksums;
}

uint64_t HeaderChecksum(absl::Span<const std::byte> header) {
  constexpr uint64_t kZero = 0;
  constexpr size_t kAfter = kHeaderChecksumAt + sizeof(kZero);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), header.data(), kHeaderChecksumAt);
  XXH3_64bits_update(state.get(), &kZero, sizeof(kZero));
  XXH3_64bits_update(state.get(), header.data() + kAfter, header.size() - kAfter);
  return XXH3_64bits_digest(state.get());
}

absl::Status CheckHeaderFields(const EntryHeader& header) {
  const ChunkAddress& address = header.address;
  const absl::StatusOr<int64_t> kv_bytes = ChunkKv::SizeBytes(address.format, address.num_tokens);
  if (!kv_bytes.ok()) return kv_bytes.status();
  if (*kv_bytes > std::numeric_limits<int64_t>::max() - header.header_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("entry: KV of ", *kv_bytes, " bytes and their header are more than can be addressed"));
  }
  KVBLEND_RETURN_IF_ERROR(
      CheckLength("tenant_namespace", address.tenant_namespace.size(), kMaxNamespaceBytes));
  KVBLEND_RETURN_IF_ERROR(CheckLength("label", header.label.size(), kMaxLabelBytes));
  if (!std::isfinite(header.compute_cost_seconds) || header.compute_cost_seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat("entry: compute_cost_seconds is ",
                                                   header.compute_cost_seconds, "; allowed: finite, >= 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EncodeEntryHeader(const EntryHeader& header) {
  KVBLEND_RETURN_IF_ERROR(CheckHeaderFields(header));
  const ChunkAddress& address = header.address;
  const KvFormat& format = address.format;
  if (header.layers.size() != static_cast<size_t>(format.num_layers)) {
    return absl::InvalidArgumentError(absl::StrCat("entry: checksums of ", header.layers.size(),
                                                   " layers; the KV format has ", format.num_layers));
  }
  const int64_t created = absl::ToUnixMicros(header.created);  // rounds down
  if (header.created - absl::FromUnixMicros(created) >= absl::Microseconds(1) ||
      header.created < absl::FromUnixMicros(created)) {
    return absl::InvalidArgumentError(absl::StrCat("entry: created is ", absl::FormatTime(header.created),
                                                   "; allowed: 64 bits of microseconds from 1970"));
  }

  std::string bytes(static_cast<size_t>(header.header_bytes()), '\0');
  const auto u32 = [&](int64_t at, auto value) { Store(static_cast<uint32_t>(value), &bytes[at]); };
  const auto u64 = [&](int64_t at, auto value) { Store(static_cast<uint64_t>(value), &bytes[at]); };
  const auto raw = [&](int64_t at, const auto& value) {
    if (value.size() > 0) std::memcpy(&bytes[at], value.data(), value.size());
  };
  raw(0, kMagic);
  u32(kVersionAt, kVersion);
  u32(kHeaderBytesAt, header.header_bytes());
  raw(kKeyAt, address.key.digest());
  raw(kContentKeyAt, address.content_key.digest());
  raw(kAnchorHashAt, address.anchor_hash);
  raw(kModelFingerprintAt, address.model_fingerprint);
  u32(kEncodingAt, format.encoding);
  u32(kFormatVersionAt, format.version);
  u32(kNumLayersAt, format.num_layers);
  u32(kNumKvHeadsAt, format.num_kv_heads);
  u32(kHeadDimAt, format.head_dim);
  u32(kNumTokensAt, address.num_tokens);
  u64(kComputeCostAt, std::bit_cast<uint64_t>(header.compute_cost_seconds));
  u64(kCreatedAt, created);
  u32(kNamespaceBytesAt, address.tenant_namespace.size());
  u32(kLabelBytesAt, header.label.size());
  raw(kNamespaceAt, address.tenant_namespace);
  raw(kLabelAt, header.label);

  const int64_t k_bytes = header.k_section_bytes();
  const int64_t v_bytes = header.layer_bytes() - k_bytes;
  int64_t row = kTableAt;
  int64_t offset = header.header_bytes();
  const auto section = [&](int64_t size, uint64_t checksum) {
    u64(row + kSectionOffsetAt, offset);
    u64(row + kSectionSizeAt, size);
    u64(row + kSectionChecksumAt, checksum);
    row += kSectionRowBytes;
    offset += size;
  };
  for (const LayerChecksums& checksums : header.layers) {
    section(k_bytes, checksums.k);
    section(v_bytes, checksums.v);
  }
  u64(kHeaderChecksumAt,
      HeaderChecksum(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size())));
  return bytes;
}

absl::Status VerifyLayer(const EntryHeader& header, int32_t layer, absl::Span<const std::byte> bytes) {
  if (layer < 0 || static_cast<size_t>(layer) >= header.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("entry: layer is ", layer, "; allowed: 0 to ",
                                                   static_cast<int64_t>(header.layers.size()) - 1));
  }
  const int64_t expected_bytes = header.layer_bytes();
  if (bytes.size() != static_cast<size_t>(expected_bytes)) {
    return absl::DataLossError(
        absl::StrCat("entry: layer ", layer, " has ", bytes.size(), " bytes; expected ", expected_bytes));
  }
  const auto k_bytes = static_cast<size_t>(header.k_section_bytes());
  const LayerChecksums& expected = header.layers[static_cast<size_t>(layer)];
  const auto check = [layer](const char* section, uint64_t found, uint64_t wanted) {
    if (found == wanted) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("entry: layer ", layer, ": the ", section,
                                            " section's checksum is ", absl::Hex(found, absl::kZeroPad16),
                                            "; the header says ", absl::Hex(wanted, absl::kZeroPad16)));
  };
  KVBLEND_RETURN_IF_ERROR(check("K", Checksum(bytes.subspan(0, k_bytes)), expected.k));
  return check("V", Checksum(bytes.subspan(k_bytes)), expected.v);
}

}  // namespace kvblend::store
