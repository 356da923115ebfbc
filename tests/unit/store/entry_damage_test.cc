// Entries that are not as they were written: every one is refused, by a reader that keeps to its memory.
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/store/format/entry_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store/entry_bytes.h"

namespace kvblend::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

KvFormat SmallEntryFormat(int32_t num_layers = 2) {
  return {.encoding = kernels::KvEncoding::kInt8, .num_layers = num_layers, .num_kv_heads = 3, .head_dim = 5};
}

/// What a reader of files does: the first page, then as many bytes as it says.
absl::StatusOr<EntryHeader> ReadAsAFile(const std::string& bytes) {
  const absl::StatusOr<int64_t> header_bytes = EntryHeaderBytes(AsBytes(bytes).subspan(0, 4096));
  if (!header_bytes.ok()) return header_bytes.status();
  return DecodeEntryHeader(AsBytes(bytes).subspan(0, static_cast<size_t>(*header_bytes)));
}

/// Flips every `step`-th bit, one at a time.
void ExpectFlippedBitsFound(std::string bytes, size_t step) {
  ASSERT_TRUE(ReadAsAFile(bytes).ok());
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += step) {
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    // Damage is never mistaken for a newer version, which would be left alone.
    ASSERT_EQ(ReadAsAFile(bytes).status().code(), absl::StatusCode::kDataLoss) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
}

TEST(EntryDamageTest, EveryFlippedBitOfAHeaderIsFound) {
  for (const auto& [num_layers, bytes, step] : {std::tuple(2, 4096, 1), std::tuple(100, 8192, 7)}) {
    const std::string header = *EncodeEntryHeader(SampleHeader(SmallEntryFormat(num_layers), 9));
    ASSERT_EQ(header.size(), static_cast<size_t>(bytes));
    ExpectFlippedBitsFound(header, static_cast<size_t>(step));
  }
}

TEST(EntryDamageTest, FlippedBitsOfSectionsAreFound) {
  std::mt19937_64 random(3);
  const auto kv = RandomKv(SmallEntryFormat(), 9, random);
  const EntryHeader header = SampleHeader(SmallEntryFormat(), 9, kv.get());
  for (int32_t layer = 0; layer < 2; ++layer) {
    const absl::Span<std::byte> bytes = kv->MutableLayerBytes(layer);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const std::byte flip{static_cast<uint8_t>(1 << random() % 8)};
      bytes[i] ^= flip;
      const absl::Status status = VerifyLayer(header, layer, bytes);
      ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << "byte " << i;
      ASSERT_THAT(status.message(), HasSubstr(i < 4096 ? "the K section" : "the V section"));
      bytes[i] ^= flip;
    }
    EXPECT_TRUE(VerifyLayer(header, layer, bytes).ok());
  }

  const KvFormat large = {
      .encoding = kernels::KvEncoding::kBF16, .num_layers = 1, .num_kv_heads = 8, .head_dim = 64};
  const auto large_kv = RandomKv(large, 256, random);
  const EntryHeader large_header = SampleHeader(large, 256, large_kv.get());
  const absl::Span<std::byte> bytes = large_kv->MutableLayerBytes(0);
  for (int round = 0; round < 300; ++round) {
    const size_t bit = random() % (8 * bytes.size());
    bytes[bit / 8] ^= std::byte{static_cast<uint8_t>(1 << bit % 8)};
    ASSERT_EQ(VerifyLayer(large_header, 0, bytes).code(), absl::StatusCode::kDataLoss) << "bit " << bit;
    bytes[bit / 8] ^= std::byte{static_cast<uint8_t>(1 << bit % 8)};
  }
}

TEST(EntryDamageTest, EveryTruncationIsFound) {
  const std::string whole = *EncodeEntryHeader(SampleHeader(SmallEntryFormat(200), 9));
  ASSERT_EQ(whole.size(), 3u * 4096);
  std::vector<size_t> lengths = {4095, 4096, 4097, 8191, 8192, 8193, whole.size() - 1};
  for (size_t length = 0; length < whole.size(); length += 97) lengths.push_back(length);
  for (const size_t length : lengths) {
    // A copy of its own, so that AddressSanitizer sees a read beyond the end.
    const std::vector<std::byte> cut(AsBytes(whole).begin(), AsBytes(whole).begin() + length);
    const auto read = DecodeEntryHeader(cut);
    ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << length;
    ASSERT_THAT(read.status().message(), HasSubstr("truncated: " + std::to_string(length)));
    ASSERT_EQ(EntryHeaderBytes(cut).ok(), length >= 4096) << length;
  }
  EXPECT_THAT(DecodeEntryHeader(AsBytes(whole).subspan(0, 8192)).status().message(),
              HasSubstr("header_bytes is 12288"));
}

TEST(EntryDamageTest, OtherFilesAreNoEntries) {
  for (const std::string& bytes :
       {std::string(4096, '\0'), std::string(8192, '\xFF'), "GGUF" + std::string(5000, 'x')}) {
    EXPECT_EQ(EntryHeaderBytes(AsBytes(bytes)).status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(DecodeEntryHeader(AsBytes(bytes)).status().message(), HasSubstr("magic is "));
  }
}

/// A sound header of 4 KiB in which `spoil` changed what it likes before the checksum was made right again.
template <typename Spoil>
absl::Status StatusAfter(Spoil spoil) {
  std::string bytes = *EncodeEntryHeader(SampleHeader(SmallEntryFormat(), 9));
  spoil(bytes);
  FixChecksum(bytes, bytes.size());
  return DecodeEntryHeader(AsBytes(bytes)).status();
}

TEST(EntryDamageTest, WhatANewerVersionWroteIsRefusedByName) {
  struct Case {
    size_t at;
    uint32_t value;
    const char* message;
    const char* known;
  };
  for (const Case& c : {
           Case{8, 2, "version is 2", "this one reads 1"},
           Case{8, 0xFFFFFFFF, "version is 4294967295", "this one reads 1"},
           Case{24, 0x10, "flags are 0x10", "version 1 knows none"},
           Case{160, 6, "encoding is 6", "known: 0 (f32)"},
           Case{160, 0x103, "encoding is 259", "5 (fp8)"},
           Case{164, 2, "KV format's version is 2", "known: 1"},
           Case{164, 0, "KV format's version is 0", "known: 1"},
       }) {
    const absl::Status status = StatusAfter([&](std::string& bytes) { PutInteger(bytes, c.at, 4, c.value); });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(c.message), HasSubstr(c.known)));
  }
  // A newer version may be longer than this one, and is told from a damaged one all the same.
  std::string newer(5 * 4096, '\x5A');
  newer.replace(0, 8, "kvb1\r\n\x1a\n");
  PutInteger(newer, 8, 4, 7);
  PutInteger(newer, 12, 4, newer.size());
  FixChecksum(newer, newer.size());
  EXPECT_EQ(*EntryHeaderBytes(AsBytes(newer).subspan(0, 4096)), 5 * 4096);
  EXPECT_EQ(DecodeEntryHeader(AsBytes(newer)).status().code(), absl::StatusCode::kUnimplemented);
  newer.back() ^= 1;
  EXPECT_EQ(DecodeEntryHeader(AsBytes(newer)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(EntryDamageTest, AbsurdValuesBehindARightChecksumAreRefusedByName) {
  const auto bits_of = [](double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  };
  struct Case {
    size_t at;
    int num_bytes;
    uint64_t value;
    const char* message;
  };
  // Row r of the section table is at 640 + 24 r: offset, size, checksum. Sections have 4096 bytes each.
  for (const Case& c : {
           Case{8, 4, 0, "version is 0"},
           Case{12, 4, 0, "header_bytes is 0"},
           Case{12, 4, 4095, "header_bytes is 4095"},
           Case{12, 4, 0xFFFFF000, "header_bytes is 4294963200"},
           Case{12, 4, 1 << 20, "truncated: 4096 bytes; header_bytes is 1048576"},
           Case{28, 1, 1, "reserved byte 28 (in the preamble) is 1"},
           Case{31, 1, 0x80, "reserved byte 31 (in the preamble) is 128"},
           Case{168, 4, 0, "num_layers is 0"},
           Case{168, 4, 1, "reserved byte 689 (behind the section table) is 48"},
           Case{168, 4, 72, "layer 2: the K section's offset is 0"},
           Case{168, 4, 73, "header_bytes is 4096; expected with 73 layers: 8192"},
           Case{168, 4, 65536, "header_bytes is 4096; expected with 65536 layers: 3149824"},
           Case{168, 4, 65537, "num_layers is 65537; allowed: 1 to 65536"},
           Case{168, 4, 0x7FFFFFFF, "num_layers is 2147483647"},
           Case{168, 4, 0xFFFFFFFF, "num_layers is 4294967295"},
           Case{172, 4, 0, "num_kv_heads is 0"},
           Case{172, 4, 1 << 20, "layer 0: the K section's size is 4096"},
           Case{172, 4, 0x80000000, "num_kv_heads is 2147483648"},
           Case{176, 4, 0, "head_dim is 0"},
           Case{176, 4, 0xFFFFFFFF, "head_dim is 4294967295"},
           Case{180, 4, 0xFFFFFFFF, "num_tokens is 4294967295; allowed: at most 2147483647"},
           Case{180, 4, 0x7FFFFFFF, "layer 0: the K section's size is 4096"},
           Case{180, 4, 0, "layer 0: the K section's size is 4096; expected 0"},
           Case{184, 8, bits_of(-0.5), "compute_cost_seconds is -0.5"},
           Case{184, 8, bits_of(std::numeric_limits<double>::infinity()), "compute_cost_seconds is inf"},
           Case{184, 8, 0x7FF8000000000001, "compute_cost_seconds is nan"},
           Case{200, 4, 129, "tenant_namespace has 129 bytes; allowed: at most 128"},
           Case{200, 4, 0xFFFFFFFF, "tenant_namespace has 4294967295 bytes"},
           Case{200, 4, 7, "reserved byte 263 (behind the tenant_namespace) is 97"},
           Case{204, 4, 257, "label has 257 bytes; allowed: at most 256"},
           Case{204, 4, 0, "reserved byte 384 (behind the label) is 104"},
           Case{208, 1, 9, "reserved byte 208 (before the tenant_namespace) is 9"},
           Case{255, 1, 9, "reserved byte 255 (before the tenant_namespace) is 9"},
           Case{383, 1, 9, "reserved byte 383 (behind the tenant_namespace) is 9"},
           Case{639, 1, 9, "reserved byte 639 (behind the label) is 9"},
           Case{640, 8, 0, "layer 0: the K section's offset is 0; expected 4096"},
           Case{640, 8, 0xFFFFFFFFFFFFF000, "layer 0: the K section's offset is 18446744073709547520"},
           Case{664, 8, 4096, "layer 0: the V section's offset is 4096; expected 8192"},
           Case{672, 8, 8192, "layer 0: the V section's size is 8192; expected 4096"},
           Case{720, 8, 0x7FFFFFFFFFFFFFFF, "layer 1: the V section's size is 9223372036854775807"},
           Case{736, 1, 1, "reserved byte 736 (behind the section table) is 1"},
           Case{4095, 1, 1, "reserved byte 4095 (behind the section table) is 1"},
       }) {
    const absl::Status status =
        StatusAfter([&](std::string& bytes) { PutInteger(bytes, c.at, c.num_bytes, c.value); });
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
}

TEST(EntryDamageTest, SizesThatOverflowAreRefused) {
  const absl::Status status = StatusAfter([](std::string& bytes) {
    PutInteger(bytes, 172, 4, 1 << 20);
    PutInteger(bytes, 176, 4, 1 << 18);
    PutInteger(bytes, 180, 4, 0x7FFFFFFF);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("more than can be addressed"));
}

TEST(EntryDamageTest, WhateverIsReadIsWrittenBackTheSame) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<std::string> sound;
  for (const int32_t num_layers : {1, 2, 72, 73}) {
    for (const int32_t num_tokens : {0, 1, 40}) {
      sound.push_back(*EncodeEntryHeader(SampleHeader(SmallEntryFormat(num_layers), num_tokens)));
    }
  }
  int num_read = 0;
  constexpr int kRounds = 60000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = sound[random() % sound.size()];
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      // Where fields are, more often than not.
      const size_t at = random() % (random() % 4 == 0 ? bytes.size() : 660);
      constexpr uint8_t kValues[] = {0, 1, 2, 0x7F, 0x80, 0xFF};
      bytes[at] = static_cast<char>(random() % 2 == 0 ? random() : kValues[random() % 6]);
    }
    FixChecksum(bytes, bytes.size());
    const auto read = DecodeEntryHeader(AsBytes(bytes));
    if (!read.ok()) {
      ASSERT_TRUE(absl::IsDataLoss(read.status()) || absl::IsUnimplemented(read.status())) << read.status();
      continue;
    }
    ++num_read;
    const auto written = EncodeEntryHeader(*read);
    ASSERT_TRUE(written.ok()) << written.status();
    ASSERT_EQ(*written, bytes) << "round " << round;
  }
  // Keys, times and checksums may have any value, so many are read and many are not.
  EXPECT_GT(num_read, kRounds / 20);
  EXPECT_LT(num_read, kRounds * 19 / 20);
}

}  // namespace
}  // namespace kvblend::store
