// A disk tier over a file system in memory, whose every operation can fail.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/store/disk/disk_tier.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/memory_file_system.h"
#include "tests/unit/store/entry_reading.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {

/// One page of header, and per layer two sections of a page each: SmallAddress(token).
inline constexpr int64_t kEntryFileBytes = 4096 + 2 * 2 * 4096;

class DiskTierTest : public ::testing::Test {
 protected:
  DiskTierTest() { spdlog::set_level(spdlog::level::off); }  // thousands of failures, on purpose
  ~DiskTierTest() override { spdlog::set_level(spdlog::level::info); }

  DiskTier::Options TierOptions(int64_t num_entries = 100) {
    return {.path = "/var/chunks",
            .quota_bytes = num_entries * kEntryFileBytes,
            .min_free_bytes = 0,
            .num_scan_threads = 1,
            .reads = {.num_threads = 1, .allow_io_uring = false},
            .fs = &faulty_,
            .now = [this] { return now_; }};
  }
  std::unique_ptr<DiskTier> OpenTier(int64_t num_entries = 100) {
    auto tier = DiskTier::Open(TierOptions(num_entries));
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier.ok() ? *std::move(tier) : nullptr;
  }
  absl::Status Put(DiskTier& tier, const ChunkAddress& address, DiskTier::PutOptions options = {}) {
    return tier.Put(address, *FilledKv(address), options);
  }
  static std::string PathOf(const ChunkKey& key, const std::string& suffix = ".kvb1") {
    const std::string hex = key.ToHex();
    return "/var/chunks/entries/" + hex.substr(0, 2) + "/" + hex.substr(2, 2) + "/" + hex + suffix;
  }
  static std::string QuarantinePathOf(const ChunkKey& key) {
    return "/var/chunks/quarantine/" + key.ToHex() + ".kvb1";
  }
  /// Flips a bit of an entry's file.
  void Damage(const ChunkKey& key, size_t position) {
    memory_.ChangeContents(PathOf(key),
                           [&](std::vector<std::byte>& bytes) { bytes[position] ^= std::byte{1}; });
  }
  int64_t NumFilesIn(const std::string& folder) const {
    int64_t count = 0;
    for (const std::string& file : memory_.AllFiles())
      count += file.rfind("/var/chunks/" + folder + "/", 0) == 0;
    return count;
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  MemoryFileSystem memory_;
  FaultyFileSystem faulty_{memory_};
};

}  // namespace kvblend::store
