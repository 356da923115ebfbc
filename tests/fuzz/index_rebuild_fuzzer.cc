// A disk tier's folder with one file that anybody may have written: opening it and reading all it says it has
// gives an entry's very bytes or none, and the same again when opened once more.
// Input: one byte that says how the rest is made a file. Modes:
//   0  the file's bytes, under the name that an entry has
//   1  the same, with the header's checksum made right, and named by the key in it
//   2  changes to a sound entry: 2 bytes of position and 1 to combine it with; what is left over cuts its end
//   3  a file's name in the folder of entries, or a folder's
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/store/disk/disk_tier.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/check.h"
#include "tests/support/memory_file_system.h"
#include "tests/unit/store/entry_bytes.h"
#include "tests/unit/store/entry_reading.h"

namespace kvblend::store {
namespace {

constexpr uint64_t kMaxFilledBytes = 64 << 10;  // keeps runs quick
constexpr int64_t kMaxLayerBytes = 16 << 20;

using test_support::Check;

ChunkAddress SoundAddress() {
  const std::vector<int32_t> token_ids = {1, 2, 3};
  return AddressOf({.format = {.num_layers = 2, .num_kv_heads = 1, .head_dim = 8}, .token_ids = token_ids});
}

std::string SoundEntry() {
  const ChunkAddress address = SoundAddress();
  const auto kv = *ChunkKv::Allocate(address.format, address.num_tokens);
  std::string sections;
  for (int32_t layer = 0; layer < address.format.num_layers; ++layer) {
    const absl::Span<std::byte> bytes = kv->MutableLayerBytes(layer);
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 31 + static_cast<size_t>(layer));
    sections.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  EntryHeader header{
      .address = address, .label = "sound", .created = absl::UnixEpoch(), .layers = ChecksumsOf(*kv)};
  return *EncodeEntryHeader(header) + sections;
}

std::vector<std::byte> Bytes(const std::string& text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string EntryPath(const std::string& hex) {
  return "/chunks/entries/" + hex.substr(0, 2) + "/" + hex.substr(2, 2) + "/" + hex + ".kvb1";
}

void MakeFile(int mode, const std::string& input, const std::string& sound, MemoryFileSystem& fs) {
  const std::string sound_path = EntryPath(SoundAddress().key.ToHex());
  switch (mode) {
    case 0:
      fs.SetContents(sound_path, Bytes(input));
      return;
    case 1: {
      std::string bytes = input;
      bytes.resize(std::max<size_t>(4096, bytes.size()));
      const uint64_t header_bytes = GetInteger(bytes, 12, 4);
      if (header_bytes >= 24 && header_bytes <= kMaxFilledBytes) {
        bytes.resize(std::max<size_t>(bytes.size(), header_bytes));
        FixChecksum(bytes, header_bytes);
      }
      // As long as it says it is, so that it is taken for sound until its layers are read.
      if (const auto header = DecodeEntryHeader(AsBytes(bytes));
          header.ok() && header->total_bytes() <= static_cast<int64_t>(kMaxFilledBytes)) {
        bytes.resize(static_cast<size_t>(header->total_bytes()));
      }
      Digest key;
      std::copy_n(bytes.begin() + 32, key.size(), key.begin());
      fs.SetContents(EntryPath(ToHex(key)), Bytes(bytes));
      return;
    }
    case 2: {
      std::string bytes = sound;
      size_t i = 0;
      for (; i + 3 <= input.size(); i += 3) {
        const size_t position = static_cast<uint8_t>(input[i]) * 256U + static_cast<uint8_t>(input[i + 1]);
        bytes[position % bytes.size()] = static_cast<char>(bytes[position % bytes.size()] ^ input[i + 2]);
      }
      if (i < input.size())
        bytes.resize(bytes.size() - std::min(bytes.size(), size_t{512} * (input.size() - i)));
      fs.SetContents(sound_path, Bytes(bytes));
      return;
    }
    default: {
      std::string path = "/chunks/entries/";
      for (const char c : input.substr(0, 200)) {
        if (c == '/' && path.back() == '/') continue;
        path += c == '\0' ? '0' : c;
      }
      if (path.back() == '/') path += "x";
      fs.SetContents(path, Bytes(sound));
    }
  }
}

/// Returns how many entries could be read as a whole.
int64_t OpenAndRead(MemoryFileSystem& fs, const std::string& sound) {
  auto tier = DiskTier::Open({.path = "/chunks",
                              .quota_bytes = int64_t{1} << 40,
                              .min_free_bytes = 0,
                              .num_scan_threads = 1,
                              .reads = {.num_threads = 1, .allow_io_uring = false},
                              .fs = &fs});
  Check(tier.ok(), "the tier opens, whatever is in its folder");
  int64_t num_whole = 0;
  for (const ChunkInfo& info : (*tier)->List(kAllNamespaces, std::nullopt, 1000)) {
    const auto entry = (*tier)->OpenEntries({info.key}, absl::InfiniteFuture()).front();
    Check(entry.ok(), "what the index has can be opened");
    const EntryHeader& header = (*entry)->header();
    Check(header.address.key == info.key && header.address.num_tokens == info.num_tokens,
          "the index is right");
    if (header.layer_bytes() > kMaxLayerBytes) continue;
    const PageBuffer buffer(header.layer_bytes());
    const absl::Span<std::byte> out = buffer.bytes();
    bool is_whole = true;
    for (int32_t layer = 0; is_whole && layer < header.address.format.num_layers; ++layer) {
      is_whole = ReadLayerNow(**entry, layer, out).ok();
      if (is_whole && info.key == SoundAddress().key) {
        const auto begin = static_cast<size_t>(header.header_bytes() + layer * header.layer_bytes());
        const std::string_view served(reinterpret_cast<const char*>(out.data()), out.size());
        Check(header.label != "sound" || served == std::string_view(sound).substr(begin, out.size()),
              "the bytes are the entry's");
      }
    }
    num_whole += is_whole;
    Check((*tier)->Contains(info.key) == is_whole, "damaged entries leave the index, sound ones stay");
  }
  return num_whole;
}

}  // namespace
}  // namespace kvblend::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvblend::store;
  if (size == 0) return 0;
  static const std::string& sound = *new std::string(SoundEntry());
  spdlog::set_level(spdlog::level::off);
  MemoryFileSystem fs;
  MakeFile(data[0] % 4, std::string(reinterpret_cast<const char*>(data) + 1, size - 1), sound, fs);
  const int64_t num_whole = OpenAndRead(fs, sound);
  Check(OpenAndRead(fs, sound) == num_whole, "opening it again finds the same");
  return 0;
}
