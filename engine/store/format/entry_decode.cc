// The reader of kvb1 headers. Whatever it accepts, EncodeEntryHeader writes again byte for byte: there is one
// way to say a thing, and bytes without a meaning are zero.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "engine/store/format/entry_checks.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/format/entry_layout.h"

namespace kvblend::store {
namespace {

using namespace entry_layout;  // NOLINT: names of this format only

template <typename... Parts>
absl::Status Damaged(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat("entry header: ", parts...));
}

template <typename... Parts>
absl::Status NotKnown(const Parts&... parts) {
  return absl::UnimplementedError(absl::StrCat("entry header: ", parts...));
}

/// Reads the fields of one header, all of which lie inside of `bytes`.
class HeaderReader {
 public:
  /// REQUIRES: bytes are a whole header whose checksum was compared.
  explicit HeaderReader(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  absl::StatusOr<EntryHeader> Read() {
    KVBLEND_RETURN_IF_ERROR(ReadVersions());
    KVBLEND_RETURN_IF_ERROR(ReadFormat());
    KVBLEND_RETURN_IF_ERROR(ReadDescription());
    // The writer checks the same rules, but here breaking them means a damaged header.
    if (const absl::Status s = CheckHeaderFields(header_); !s.ok()) return Damaged(s.message());
    KVBLEND_RETURN_IF_ERROR(ReadTable());
    return std::move(header_);
  }

 private:
  uint32_t U32(int64_t at) const { return Load<uint32_t>(&bytes_[static_cast<size_t>(at)]); }
  uint64_t U64(int64_t at) const { return Load<uint64_t>(&bytes_[static_cast<size_t>(at)]); }

  Digest DigestAt(int64_t at) const {
    Digest digest;
    std::memcpy(digest.data(), &bytes_[static_cast<size_t>(at)], digest.size());
    return digest;
  }

  /// Reads a count that the engine keeps in 32 bits with a sign.
  absl::Status ReadCount(absl::string_view field, int64_t at, int32_t& value) const {
    const uint32_t read = U32(at);
    if (read > std::numeric_limits<int32_t>::max()) {
      return Damaged(field, " is ", read, "; allowed: at most ", std::numeric_limits<int32_t>::max());
    }
    value = static_cast<int32_t>(read);
    return absl::OkStatus();
  }

  absl::Status ReadString(absl::string_view field, int64_t length_at, int64_t at, int64_t capacity,
                          std::string& value) const {
    const uint32_t length = U32(length_at);
    if (length > capacity) return Damaged(field, " has ", length, " bytes; allowed: at most ", capacity);
    value.assign(reinterpret_cast<const char*>(&bytes_[static_cast<size_t>(at)]), length);
    return CheckZero(absl::StrCat("behind the ", field), at + length, at + capacity);
  }

  absl::Status CheckZero(absl::string_view where, int64_t begin, int64_t end) const {
    const auto first = bytes_.begin() + begin;
    const auto last = bytes_.begin() + end;
    const auto found = std::find_if(first, last, [](std::byte b) { return b != std::byte{0}; });
    if (found == last) return absl::OkStatus();
    return Damaged("reserved byte ", found - bytes_.begin(), " (", where, ") is ", static_cast<int>(*found),
                   "; allowed: 0");
  }

  absl::Status ReadVersions() const {
    const uint32_t version = U32(kVersionAt);
    if (version > kVersion) {
      return NotKnown("version is ", version, ", written by a newer kvblend; this one reads ", kVersion);
    }
    if (version < kVersion) return Damaged("version is ", version, "; allowed: ", kVersion);
    if (const uint32_t flags = U32(kFlagsAt); flags != 0) {
      return NotKnown("flags are 0x", absl::Hex(flags), "; version ", kVersion, " knows none");
    }
    return CheckZero("in the preamble", kPreambleReservedAt, kKeyAt);
  }

  absl::Status ReadFormat() {
    KvFormat& format = header_.address.format;
    const uint32_t encoding = U32(kEncodingAt);
    if (encoding > std::numeric_limits<uint8_t>::max() ||
        kernels::Name(static_cast<kernels::KvEncoding>(encoding)) == "?") {
      return NotKnown("encoding is ", encoding,
                      "; known: 0 (f32), 1 (bf16), 2 (f16), 3 (int8), 4 (int4), 5 (fp8)");
    }
    format.encoding = static_cast<kernels::KvEncoding>(encoding);
    if (const uint32_t version = U32(kFormatVersionAt); version != 1) {
      return NotKnown("the KV format's version is ", version, "; known: 1");
    }
    format.version = 1;
    KVBLEND_RETURN_IF_ERROR(ReadCount("num_layers", kNumLayersAt, format.num_layers));
    KVBLEND_RETURN_IF_ERROR(ReadCount("num_kv_heads", kNumKvHeadsAt, format.num_kv_heads));
    KVBLEND_RETURN_IF_ERROR(ReadCount("head_dim", kHeadDimAt, format.head_dim));
    return ReadCount("num_tokens", kNumTokensAt, header_.address.num_tokens);
  }

  absl::Status ReadDescription() {
    ChunkAddress& address = header_.address;
    address.key = ChunkKey(DigestAt(kKeyAt));
    address.content_key = ContentKey(DigestAt(kContentKeyAt));
    address.anchor_hash = DigestAt(kAnchorHashAt);
    address.model_fingerprint = DigestAt(kModelFingerprintAt);
    header_.compute_cost_seconds = std::bit_cast<double>(U64(kComputeCostAt));
    header_.created = absl::FromUnixMicros(static_cast<int64_t>(U64(kCreatedAt)));
    KVBLEND_RETURN_IF_ERROR(CheckZero("before the tenant_namespace", kReservedAt, kNamespaceAt));
    KVBLEND_RETURN_IF_ERROR(ReadString("tenant_namespace", kNamespaceBytesAt, kNamespaceAt,
                                       kMaxNamespaceBytes, address.tenant_namespace));
    return ReadString("label", kLabelBytesAt, kLabelAt, kMaxLabelBytes, header_.label);
  }

  /// The table says again what follows from the KV format, so that a writer with other ideas of it is found
  /// out.
  absl::Status ReadTable() {
    const int32_t num_layers = header_.address.format.num_layers;
    const int64_t header_bytes = header_.header_bytes();
    if (bytes_.size() != static_cast<size_t>(header_bytes)) {
      return Damaged("header_bytes is ", bytes_.size(), "; expected with ", num_layers,
                     " layers: ", header_bytes);
    }
    const int64_t k_bytes = header_.k_section_bytes();
    const int64_t v_bytes = header_.layer_bytes() - k_bytes;
    header_.layers.resize(static_cast<size_t>(num_layers));
    int64_t row = kTableAt;
    int64_t offset = header_bytes;
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      LayerChecksums& checksums = header_.layers[static_cast<size_t>(layer)];
      for (const bool is_k : {true, false}) {
        const int64_t size = is_k ? k_bytes : v_bytes;
        for (const auto& [field, at, expected] :
             {std::tuple("offset", kSectionOffsetAt, offset), std::tuple("size", kSectionSizeAt, size)}) {
          if (const uint64_t found = U64(row + at); found != static_cast<uint64_t>(expected)) {
            return Damaged("layer ", layer, ": the ", is_k ? "K" : "V", " section's ", field, " is ", found,
                           "; expected ", expected);
          }
        }
        (is_k ? checksums.k : checksums.v) = U64(row + kSectionChecksumAt);
        row += kSectionRowBytes;
        offset += size;
      }
    }
    return CheckZero("behind the section table", row, header_bytes);
  }

  const absl::Span<const std::byte> bytes_;
  EntryHeader header_;
};

}  // namespace

absl::StatusOr<int64_t> EntryHeaderBytes(absl::Span<const std::byte> first_page) {
  if (first_page.size() < static_cast<size_t>(kEntryPageBytes)) {
    return Damaged("truncated: ", first_page.size(), " bytes; a header has at least ", kEntryPageBytes);
  }
  const absl::string_view magic(reinterpret_cast<const char*>(first_page.data()), kMagic.size());
  if (magic != kMagic) {
    return Damaged("magic is ", absl::BytesToHexString(magic), "; a kvblend entry begins with ",
                   absl::BytesToHexString(kMagic));
  }
  const int64_t header_bytes = Load<uint32_t>(&first_page[kHeaderBytesAt]);
  if (header_bytes == 0 || header_bytes % kEntryPageBytes != 0 || header_bytes > kMaxHeaderBytes) {
    return Damaged("header_bytes is ", header_bytes, "; allowed: multiples of ", kEntryPageBytes, " up to ",
                   kMaxHeaderBytes);
  }
  return header_bytes;
}

absl::StatusOr<EntryHeader> DecodeEntryHeader(absl::Span<const std::byte> bytes) {
  KVBLEND_ASSIGN_OR_RETURN(const int64_t header_bytes, EntryHeaderBytes(bytes));
  if (bytes.size() < static_cast<size_t>(header_bytes)) {
    return Damaged("truncated: ", bytes.size(), " bytes; header_bytes is ", header_bytes);
  }
  const absl::Span<const std::byte> header = bytes.subspan(0, static_cast<size_t>(header_bytes));
  // Compared before the version is looked at, so that a damaged version does not pass for a newer one.
  const auto stored = Load<uint64_t>(&header[kHeaderChecksumAt]);
  if (const uint64_t found = HeaderChecksum(header); found != stored) {
    return Damaged("its checksum is ", absl::Hex(found, absl::kZeroPad16), "; it says ",
                   absl::Hex(stored, absl::kZeroPad16));
  }
  return HeaderReader(header).Read();
}

}  // namespace kvblend::store
