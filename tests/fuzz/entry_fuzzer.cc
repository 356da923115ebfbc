// Headers of stored chunks: whatever is read is written again byte for byte, and agrees with itself.
// Input: one byte that says how the rest is made a header, then the header's first bytes; what is left out at
// its end is zero, so that inputs stay small. Modes:
//   0  the bytes as they are
//   1  filled up to header_bytes, the checksum made right
//   2  header_bytes and the section table made right as well, from the shape that the bytes give
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/store/format/entry_format.h"
#include "tests/fuzz/check.h"
#include "tests/unit/store/entry_bytes.h"

namespace kvblend::store {
namespace {

constexpr uint64_t kMaxFilledBytes = 64 << 10;  // keeps runs quick

using test_support::Check;

/// Does nothing when the bytes give no shape.
void WriteTable(std::string& bytes) {
  const uint64_t num_layers = GetInteger(bytes, 168, 4);
  const uint64_t num_tokens = GetInteger(bytes, 180, 4);
  KvFormat format;
  format.encoding = static_cast<kernels::KvEncoding>(GetInteger(bytes, 160, 1));
  format.num_layers = static_cast<int32_t>(num_layers);
  format.num_kv_heads = static_cast<int32_t>(GetInteger(bytes, 172, 4));
  format.head_dim = static_cast<int32_t>(GetInteger(bytes, 176, 4));
  const uint64_t header_bytes = (640 + 48 * num_layers + 4095) / 4096 * 4096;
  if (header_bytes > kMaxFilledBytes || num_tokens > INT32_MAX ||
      !ChunkKv::SizeBytes(format, static_cast<int32_t>(num_tokens)).ok()) {
    return;
  }
  bytes.resize(header_bytes);
  PutInteger(bytes, 12, 4, header_bytes);
  uint64_t offset = header_bytes;
  for (uint64_t row = 0; row < 2 * num_layers; ++row) {
    const auto part = row % 2 == 0 ? kernels::KvPart::kKey : kernels::KvPart::kValue;
    const auto section_bytes =
        static_cast<uint64_t>(format.Section(part, static_cast<int32_t>(num_tokens)).size_bytes);
    const uint64_t size = (section_bytes + 4095) / 4096 * 4096;
    PutInteger(bytes, 640 + 24 * row, 8, offset);
    PutInteger(bytes, 648 + 24 * row, 8, size);
    offset += size;
  }
}

std::string HeaderOf(int mode, const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (mode == 0) return bytes;
  bytes.resize(std::max<size_t>(4096, (size + 4095) / 4096 * 4096));
  if (mode == 2) WriteTable(bytes);
  const uint64_t header_bytes = GetInteger(bytes, 12, 4);
  if (header_bytes >= 24 && header_bytes <= kMaxFilledBytes) {
    bytes.resize(std::max<size_t>(bytes.size(), header_bytes));
    FixChecksum(bytes, header_bytes);
  }
  return bytes;
}

void CheckHeader(const std::string& bytes) {
  // A copy without spare capacity, so that AddressSanitizer sees a read beyond the end.
  const std::vector<std::byte> input(AsBytes(bytes).begin(), AsBytes(bytes).end());
  const absl::StatusOr<int64_t> header_bytes = EntryHeaderBytes(input);
  const absl::StatusOr<EntryHeader> header = DecodeEntryHeader(input);
  if (!header.ok()) {
    Check(absl::IsDataLoss(header.status()) || absl::IsUnimplemented(header.status()), "the error's code");
    return;
  }
  Check(header_bytes.ok() && *header_bytes == header->header_bytes(), "both agree on the header's length");
  const absl::StatusOr<std::string> written = EncodeEntryHeader(*header);
  Check(written.ok(), "what is read can be written");
  Check(bytes.compare(0, static_cast<size_t>(*header_bytes), *written) == 0, "and is written the same");

  const int64_t num_layers = header->address.format.num_layers;
  Check(static_cast<int64_t>(header->layers.size()) == num_layers, "every layer has checksums");
  Check(header->k_section_bytes() >= 0 && header->k_section_bytes() <= header->layer_bytes(),
        "K lies in its layer");
  Check((header->total_bytes() - *header_bytes) / num_layers == header->layer_bytes(),
        "layers fill the entry");
  // The input is no layer: whatever its length, that is an answer and not a crash.
  const absl::Status verified = VerifyLayer(*header, static_cast<int32_t>(num_layers) - 1, input);
  Check(!verified.ok() || header->layer_bytes() == static_cast<int64_t>(input.size()),
        "layers have their size");
}

}  // namespace
}  // namespace kvblend::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  kvblend::store::CheckHeader(kvblend::store::HeaderOf(data[0] % 3, data + 1, size - 1));
  return 0;
}
