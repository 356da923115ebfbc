// Damaged files: whatever happened to them, no wrong byte is served, and the next lookup is a miss.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using testing::HasSubstr;

class DiskTierDamageTest : public DiskTierTest {
 protected:
  void SetUp() override {
    auto tier = OpenTier();
    ASSERT_TRUE(Put(*tier, address_).ok());
    ASSERT_TRUE(tier->SetPinned(kAllNamespaces, address_.key, true).ok());
    whole_ = memory_.Contents(PathOf(address_.key));
    ASSERT_EQ(whole_.size(), kEntryFileBytes);
  }

  /// Puts `bytes` in the file's place, before the tier is opened or while it is open, and reads.
  void ExpectFound(const std::vector<std::byte>& bytes, bool while_open) {
    std::unique_ptr<DiskTier> tier;
    memory_.SetContents(PathOf(address_.key), whole_);
    if (while_open) tier = OpenTier();
    memory_.SetContents(PathOf(address_.key), bytes);
    if (!while_open) tier = OpenTier();
    ASSERT_NE(tier, nullptr);
    const absl::Status status = ReadAndCompare(*tier, address_);  // compares all bytes that are served
    EXPECT_FALSE(status.ok()) << "damage was not found";
    EXPECT_TRUE(absl::IsDataLoss(status) || (!while_open && absl::IsNotFound(status))) << status;
    EXPECT_FALSE(tier->Contains(address_.key));
    EXPECT_EQ(tier->Stats().entries, 0);
    EXPECT_EQ(tier->Stats().bytes, 0);
    EXPECT_EQ(tier->Stats().quarantined + tier->Stats().unsupported_entries, 1);
    if (tier->Stats().quarantined == 1) {
      EXPECT_FALSE(memory_.Exists(PathOf(address_.key)));
      EXPECT_FALSE(memory_.Exists(PathOf(address_.key, ".pin")));
      EXPECT_TRUE(memory_.Contents(QuarantinePathOf(address_.key)) == bytes);
    }
    ASSERT_TRUE(Put(*tier, address_).ok());
    EXPECT_TRUE(ReadAndCompare(*tier, address_).ok());
  }

  const ChunkAddress address_ = SmallAddress(1);
  std::vector<std::byte> whole_;
};

TEST_F(DiskTierDamageTest, EveryFlippedBitIsFound) {
  std::mt19937_64 random(20261121);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    std::vector<std::byte> bytes = whole_;
    // Half of them in the header, where most of what can be misunderstood is.
    const size_t position = random() % (i % 2 == 0 ? 4096 : bytes.size());
    const auto bit = static_cast<int>(random() % 8);
    SCOPED_TRACE(testing::Message() << "bit " << bit << " of byte " << position);
    bytes[position] ^= std::byte{1} << bit;
    ExpectFound(bytes, i % 4 < 2);
  }
}

TEST_F(DiskTierDamageTest, TruncationAndTrailingBytesAreFound) {
  for (size_t size = 0; size <= whole_.size() + 4096 && !HasFailure(); size += 4096) {
    for (const size_t bytes : {size, size + 1, size + 4095}) {
      if (bytes == whole_.size()) continue;
      SCOPED_TRACE(testing::Message() << bytes << " bytes");
      std::vector<std::byte> other = whole_;
      other.resize(bytes);
      ExpectFound(other, false);
      ExpectFound(other, true);
    }
  }
}

TEST_F(DiskTierDamageTest, AFileTruncatedWhileItIsOpenIsFound) {
  for (size_t size = 4096; size < whole_.size(); size += 4096) {
    memory_.SetContents(PathOf(address_.key), whole_);
    auto tier = OpenTier();
    const auto entry = *OpenNow(*tier, address_.key);
    std::vector<std::byte> shorter = whole_;
    shorter.resize(size);
    memory_.SetContents(PathOf(address_.key), shorter);
    const PageBuffer buffer(entry->header().layer_bytes());
    EXPECT_TRUE(absl::IsDataLoss(ReadLayerNow(*entry, 1, buffer.bytes())));
    EXPECT_FALSE(tier->Contains(address_.key));
    EXPECT_EQ(tier->Stats().quarantined, 1);
    EXPECT_EQ(tier->Stats().read_errors, 1);
  }
}

TEST_F(DiskTierDamageTest, AnotherChunksEntryIsFound) {
  const ChunkAddress other = SmallAddress(2);
  {
    auto tier = OpenTier();
    ASSERT_TRUE(Put(*tier, other).ok());
  }
  const std::vector<std::byte> foreign = memory_.Contents(PathOf(other.key));
  ASSERT_TRUE(memory_.Unlink(PathOf(other.key)).ok());
  ExpectFound(foreign, false);
  ExpectFound(foreign, true);
}

TEST_F(DiskTierDamageTest, OldAndNewHalvesAreFound) {
  // What a file system leaves that writes a file's pages in any order.
  for (size_t page = 0; page < whole_.size(); page += 4096) {
    for (const std::byte fill : {std::byte{0}, std::byte{0xff}, std::byte{0x5a}}) {
      std::vector<std::byte> bytes = whole_;
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(page), 4096, fill);
      SCOPED_TRACE(testing::Message() << "page at " << page);
      if (bytes != whole_) ExpectFound(bytes, page % 8192 == 0);
    }
  }
}

TEST_F(DiskTierDamageTest, LayersSwappedAreFound) {
  std::vector<std::byte> bytes = whole_;
  std::swap_ranges(bytes.begin() + 4096, bytes.begin() + 4096 + 8192, bytes.begin() + 4096 + 8192);
  ASSERT_NE(bytes, whole_);
  ExpectFound(bytes, false);
}

TEST_F(DiskTierDamageTest, ANewerReplacementIsNotTakenForTheDamagedFile) {
  auto tier = OpenTier();
  Damage(address_.key, 5000);
  const auto damaged = *OpenNow(*tier, address_.key);
  ASSERT_TRUE(*tier->Erase(kAllNamespaces, address_.key));
  ASSERT_TRUE(Put(*tier, address_).ok());
  const PageBuffer buffer(damaged->header().layer_bytes());
  EXPECT_TRUE(absl::IsDataLoss(ReadLayerNow(*damaged, 0, buffer.bytes())));
  EXPECT_TRUE(ReadAndCompare(*tier, address_).ok());
  EXPECT_EQ(tier->Stats().quarantined, 0);
}

TEST_F(DiskTierDamageTest, TheLogNamesWhatIsDamaged) {
  std::ostringstream out;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out)));
  const auto warnings = [&] {
    std::string lines;
    for (const absl::string_view line : absl::StrSplit(out.str(), '\n')) {
      if (absl::StrContains(line, "[warning]")) absl::StrAppend(&lines, line, "\n");
    }
    out.str("");
    return lines;
  };
  std::vector<ChunkAddress> all;
  {
    auto tier = OpenTier();
    EXPECT_EQ(warnings(), "");
    Damage(address_.key, 5000);
    EXPECT_FALSE(ReadAndCompare(*tier, address_).ok());
    EXPECT_THAT(warnings(), HasSubstr(address_.key.ToHex())) << "found while running";
    for (int seed = 1; seed <= 7; ++seed) all.push_back(SmallAddress(seed));
    for (const ChunkAddress& address : all) ASSERT_TRUE(Put(*tier, address).ok());
  }
  for (const ChunkAddress& address : all) Damage(address.key, 10);
  { auto tier = OpenTier(); }
  const std::string found = warnings();
  EXPECT_THAT(found, HasSubstr("7 damaged entries found and set aside in "));
  EXPECT_THAT(found, HasSubstr("/quarantine: "));
  EXPECT_EQ(std::count_if(
                all.begin(), all.end(),
                [&](const ChunkAddress& address) { return absl::StrContains(found, address.key.ToHex()); }),
            5);
  spdlog::set_default_logger(before);
}

TEST_F(DiskTierDamageTest, QuarantineIsBounded) {
  DiskTier::Options options = TierOptions();
  options.max_quarantined_files = 2;
  auto tier = *DiskTier::Open(options);
  for (int32_t token = 2; token < 6; ++token) {
    const ChunkAddress address = SmallAddress(token);
    ASSERT_TRUE(Put(*tier, address).ok());
    Damage(address.key, 4096);
    EXPECT_TRUE(absl::IsDataLoss(ReadAndCompare(*tier, address)));
    EXPECT_FALSE(memory_.Exists(PathOf(address.key)));
  }
  EXPECT_EQ(NumFilesIn("quarantine"), 2);
  EXPECT_EQ(tier->Stats().quarantined, 4);
  EXPECT_EQ(tier->Stats().quarantined_files, 2);
  tier.reset();
  EXPECT_EQ(OpenTier()->Stats().quarantined_files, 2);
}

}  // namespace
}  // namespace kvblend::store
