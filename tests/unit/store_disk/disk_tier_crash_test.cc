// Death at every single operation of the file system, by kill and by power failure.
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

constexpr int32_t kNumChunks = 6;

class DiskTierCrashTest : public DiskTierTest {
 protected:
  /// What the tier promised by returning OK, and not taken back since.
  struct Promises {
    std::set<ChunkKey> present;  // less what was evicted since
    std::set<ChunkKey> pinned;
    std::set<ChunkKey> erased;
  };

  /// Puts that evict, a pin, an unpin and an erasure. Stops at the first failure.
  Promises Work(DiskTier& tier) {
    Promises promises;
    const auto put = [&](int32_t token) {
      promises.erased.erase(SmallAddress(token).key);  // from now on it may be there
      if (!Put(tier, SmallAddress(token), {.compute_cost_seconds = 1}).ok()) return false;
      promises.present.insert(SmallAddress(token).key);
      return true;
    };
    const auto erase = [&](int32_t token) {
      const ChunkKey key = SmallAddress(token).key;
      promises.present.erase(key);  // until it is known: may or may not be there
      promises.pinned.erase(key);
      const absl::StatusOr<bool> erased = tier.Erase(kAllNamespaces, key);
      if (!erased.ok()) return false;
      promises.erased.insert(key);
      return true;
    };
    const auto pin = [&](int32_t token, bool pinned) {
      const ChunkKey key = SmallAddress(token).key;
      promises.pinned.erase(key);
      if (!tier.SetPinned(kAllNamespaces, key, pinned).ok()) return false;
      if (pinned) promises.pinned.insert(key);
      return true;
    };
    const auto erase_all = [&](const std::vector<int32_t>& tokens) {
      std::vector<ChunkKey> keys;
      for (const int32_t token : tokens) {
        keys.push_back(SmallAddress(token).key);
        promises.present.erase(keys.back());
        promises.pinned.erase(keys.back());
      }
      const auto erased = tier.EraseAll(kAllNamespaces, keys);
      for (size_t i = 0; i < keys.size(); ++i) {
        if (erased[i].ok()) promises.erased.insert(keys[i]);
      }
      return std::all_of(erased.begin(), erased.end(), [](const auto& one) { return one.ok(); });
    };
    // The quota is four entries: the last puts evict.
    (void)(put(0) && pin(0, true) && put(1) && put(2) && erase(1) && put(1) && put(3) && pin(2, true) &&
           pin(2, false) && put(4) && put(5) && erase_all({0, 5}) && put(0));
    // Evicted entries left the index before their files.
    std::erase_if(promises.present, [&](const ChunkKey& key) { return !tier.Contains(key); });
    return promises;
  }

  void ExpectKept(const Promises& promises, DiskTier& tier) {
    EXPECT_EQ(NumFilesIn("tmp"), 0);
    EXPECT_EQ(tier.Stats().quarantined, 0) << "an entry was there that was not whole";
    for (const ChunkKey& key : promises.present) EXPECT_TRUE(tier.Contains(key)) << key.ToHex();
    for (const ChunkKey& key : promises.erased) EXPECT_FALSE(tier.Contains(key)) << key.ToHex();
    for (const ChunkKey& key : promises.pinned) {
      const auto info = tier.Stat(kAllNamespaces, key);
      EXPECT_TRUE(info.has_value() && info->pinned) << key.ToHex();
    }
    for (int32_t token = 0; token < kNumChunks; ++token) {
      const ChunkAddress address = SmallAddress(token);
      if (!tier.Contains(address.key)) continue;
      EXPECT_TRUE(ReadAndCompare(tier, address).ok());
    }
  }

  /// Runs Work to its end, or to its death in operation `death`. Returns whether it died.
  bool DieAndCheck(int64_t death, bool power_fails, uint64_t seed) {
    SCOPED_TRACE(testing::Message() << "death in operation " << death
                                    << (power_fails ? " by power failure" : "") << ", seed " << seed);
    std::mt19937_64 random(seed);
    MemoryFileSystem memory;
    FaultyFileSystem faulty(memory);
    DiskTier::Options options = TierOptions(4);
    options.fs = &faulty;
    faulty.DieAt(death);
    Promises promises;
    bool died = false;
    if (auto tier = DiskTier::Open(options); tier.ok()) promises = Work(**tier);
    died = faulty.dead();
    if (power_fails) {
      memory.LosePower(random);
    } else {
      memory.KillProcess();
    }
    options.fs = &memory;
    // Evicted entries may come back when the power fails, and others would have to go instead.
    options.quota_bytes = 100 * kEntryFileBytes;
    const auto reopened = DiskTier::Open(options);
    if (!reopened.ok()) {
      ADD_FAILURE() << reopened.status();
      return false;
    }
    for (const std::string& file : memory.AllFiles()) {
      EXPECT_EQ(file.rfind("/var/chunks/tmp/", 0), std::string::npos) << file;
    }
    ExpectKept(promises, **reopened);
    EXPECT_TRUE(power_fails || (*reopened)->Stats().bytes <= 4 * kEntryFileBytes);
    // And goes on as if nothing had been.
    for (int32_t token = 0; token < kNumChunks; ++token) {
      EXPECT_TRUE(Put(**reopened, SmallAddress(token), {.compute_cost_seconds = 1}).ok());
      EXPECT_TRUE(ReadAndCompare(**reopened, SmallAddress(token)).ok());
    }
    return died;
  }
};

TEST_F(DiskTierCrashTest, KilledInEveryOperation) {
  int64_t death = 1;
  while (DieAndCheck(death, false, 0) && !HasFailure()) ++death;
  EXPECT_GT(death, 100) << "there were fewer operations than expected";
}

TEST_F(DiskTierCrashTest, PowerFailsInEveryOperation) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    int64_t death = 1;
    while (DieAndCheck(death, true, seed) && !HasFailure()) ++death;
    if (HasFailure()) return;
  }
}

// A tier whose process died, opened again by one that dies as well, and so on.
TEST_F(DiskTierCrashTest, DiesAgainAndAgain) {
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    MemoryFileSystem memory;
    std::set<ChunkKey> present;
    for (int life = 0; life < 20 && !HasFailure(); ++life) {
      FaultyFileSystem faulty(memory);
      DiskTier::Options options = TierOptions(100);
      options.fs = &faulty;
      faulty.DieAt(1 + static_cast<int64_t>(random() % 120));
      if (auto tier = DiskTier::Open(options); tier.ok()) {
        for (const ChunkKey& key : present) {
          EXPECT_TRUE((*tier)->Contains(key) || faulty.dead()) << key.ToHex();
        }
        for (int i = 0; i < 5; ++i) {
          const ChunkAddress address = SmallAddress(static_cast<int32_t>(random() % 20));
          if (Put(**tier, address).ok()) present.insert(address.key);
        }
      }
      if (random() % 2 == 0) {
        memory.LosePower(random);
      } else {
        memory.KillProcess();
      }
    }
    DiskTier::Options options = TierOptions(100);
    options.fs = &memory;
    const auto tier = DiskTier::Open(options);
    ASSERT_TRUE(tier.ok()) << tier.status();
    for (const ChunkKey& key : present) EXPECT_TRUE((*tier)->Contains(key)) << key.ToHex();
    EXPECT_EQ((*tier)->Stats().quarantined, 0);
    for (int32_t token = 0; token < 20; ++token) {
      if (present.contains(SmallAddress(token).key)) {
        EXPECT_TRUE(ReadAndCompare(**tier, SmallAddress(token)).ok());
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::store
