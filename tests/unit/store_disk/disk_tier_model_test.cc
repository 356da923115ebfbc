// Random operations against a simple model; the same index after every restart; many threads at once.
#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

constexpr int64_t kQuotaEntries = 12;

/// All chunks that the test knows: several tenants, and several anchors per content.
std::vector<ChunkAddress> Addresses() {
  std::vector<ChunkAddress> addresses;
  for (int32_t token = 0; token < 6; ++token) {
    for (const char* tenant : {"", "b"}) {
      for (const std::vector<int32_t>& anchor : {std::vector<int32_t>{}, {1}, {2}}) {
        addresses.push_back(SmallAddress(token, 8, anchor, tenant));
      }
    }
  }
  return addresses;
}

struct ModelEntry {
  std::string label;
  bool pinned = false;
};

auto WhatLasts(const ChunkInfo& info) {
  return std::tuple(info.key, info.content_key, info.anchor_hash, info.tenant_namespace, info.label,
                    info.num_tokens, info.bytes, info.pinned, info.compute_cost_seconds, info.created);
}

class DiskTierModelTest : public DiskTierTest {
 protected:
  std::vector<ChunkInfo> All(const DiskTier& tier) { return tier.List(kAllNamespaces, std::nullopt, 1000); }

  /// What the tier has must be in the model as it says; what it evicted is taken out of the model.
  void CompareAndForget(const DiskTier& tier, std::map<ChunkKey, ModelEntry>& model) {
    const std::vector<ChunkInfo> all = All(tier);
    int64_t bytes = 0;
    int64_t num_pinned = 0;
    std::map<ChunkKey, ModelEntry> kept;
    for (const ChunkInfo& info : all) {
      const auto known = model.find(info.key);
      ASSERT_NE(known, model.end()) << "an entry that was never put, or was erased";
      EXPECT_EQ(info.label, known->second.label);
      EXPECT_EQ(info.pinned, known->second.pinned);
      EXPECT_TRUE(memory_.Exists(PathOf(info.key)));
      EXPECT_EQ(memory_.Exists(PathOf(info.key, ".pin")), info.pinned);
      kept.insert(*known);
      bytes += info.bytes;
      num_pinned += info.pinned;
    }
    for (const auto& [key, entry] : model) {
      EXPECT_TRUE(kept.contains(key) || !entry.pinned) << "a pinned entry is gone";
    }
    model = kept;
    const DiskTierStats stats = tier.Stats();
    EXPECT_EQ(stats.entries, static_cast<int64_t>(all.size()));
    EXPECT_EQ(stats.bytes, bytes);
    EXPECT_LE(stats.bytes, kQuotaEntries * kEntryFileBytes);
    EXPECT_EQ(stats.pinned_entries, num_pinned);
    EXPECT_EQ(NumFilesIn("entries"), stats.entries + num_pinned);
    EXPECT_EQ(NumFilesIn("tmp"), 0);
    EXPECT_EQ(stats.quarantined, 0);
    // Any anchor: compared with the list.
    for (const ChunkAddress& address : Addresses()) {
      const ChunkInfo* best = nullptr;
      for (const ChunkInfo& info : all) {
        if (info.content_key != address.content_key) continue;
        const auto rank = [](const ChunkInfo& i) {
          return std::pair(i.anchor_hash == IsolatedAnchorHash(), i.key);
        };
        if (best == nullptr || rank(info) < rank(*best)) best = &info;
      }
      const std::optional<ContentMatch> found =
          tier.FindAnyAnchor({address.content_key}, absl::InfiniteFuture())[0];
      ASSERT_EQ(found.has_value(), best != nullptr);
      EXPECT_TRUE(best == nullptr || found->key == best->key);
    }
  }
};

TEST_F(DiskTierModelTest, RandomOperations) {
  const std::vector<ChunkAddress> addresses = Addresses();
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::map<ChunkKey, ModelEntry> model;
    auto tier = OpenTier(kQuotaEntries);
    for (const ChunkInfo& info : All(*tier)) ASSERT_TRUE(*tier->Erase(kAllNamespaces, info.key));
    for (int step = 0; step < 400 && !HasFailure(); ++step) {
      now_ += absl::Seconds(1);
      const ChunkAddress& address = addresses[random() % addresses.size()];
      const bool is_there = model.contains(address.key);
      switch (random() % 12) {
        default: {
          const std::string label = std::to_string(step);
          const absl::Status status = Put(
              *tier, address, {.label = label, .compute_cost_seconds = static_cast<double>(random() % 10)});
          EXPECT_TRUE(status.ok()) << status;  // half of the quota is never pinned
          if (!is_there) model[address.key] = {.label = label};
          break;
        }
        case 4:
        case 5:
        case 6: {
          const absl::Status status = ReadAndCompare(*tier, address);
          EXPECT_EQ(status.code(), is_there ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
          break;
        }
        case 7:
          EXPECT_EQ(*tier->Erase(kAllNamespaces, address.key), is_there);
          model.erase(address.key);
          break;
        case 8:
        case 9:
          if (const absl::Status status = tier->SetPinned(kAllNamespaces, address.key, true); !is_there) {
            EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
          } else {
            const auto num_pinned =
                std::ranges::count_if(model, [](const auto& entry) { return entry.second.pinned; });
            const bool fits = model[address.key].pinned || num_pinned < kQuotaEntries / 2;
            EXPECT_EQ(status.code(), fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
            model[address.key].pinned |= fits;
          }
          break;
        case 10:
          EXPECT_EQ(tier->SetPinned(kAllNamespaces, address.key, false).ok(), is_there);
          if (is_there) model[address.key].pinned = false;
          break;
        case 11: {
          const std::vector<ChunkInfo> before = All(*tier);
          tier.reset();
          tier = OpenTier(kQuotaEntries);
          const std::vector<ChunkInfo> after = All(*tier);
          ASSERT_EQ(before.size(), after.size());
          for (size_t i = 0; i < before.size(); ++i) {
            EXPECT_EQ(WhatLasts(before[i]), WhatLasts(after[i]));
          }
          break;
        }
      }
      CompareAndForget(*tier, model);
    }
  }
}

TEST_F(DiskTierModelTest, ManyThreadsOnFewChunks) {
  // On the real file system, with whichever reader the kernel allows.
  const test_support::TemporaryFolder folder;
  DiskTier::Options options = TierOptions(6);
  options.path = folder.path() + "/chunks";
  options.fs = &PosixFileSystem();
  options.reads = {.num_threads = 2, .depth = 8};
  auto tier = *DiskTier::Open(options);
  std::atomic<int64_t> num_read = 0;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      for (int step = 0; step < 150; ++step) {
        const ChunkAddress address = SmallAddress(static_cast<int32_t>(random() % 9));
        switch (random() % 8) {
          default:
            EXPECT_TRUE(Put(*tier, address, {.compute_cost_seconds = 1}).ok());
            break;
          case 3:
          case 4:
          case 5: {
            const absl::Status status = ReadAndCompare(*tier, address);
            EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << status;
            num_read += status.ok();
            break;
          }
          case 6:
            EXPECT_TRUE(tier->Erase(kAllNamespaces, address.key).ok());
            break;
          case 7: {
            const absl::Status pinned = tier->SetPinned(kAllNamespaces, address.key, true);
            EXPECT_TRUE(pinned.ok() || absl::IsNotFound(pinned) || absl::IsResourceExhausted(pinned))
                << pinned;
            const absl::Status unpinned = tier->SetPinned(kAllNamespaces, address.key, false);
            EXPECT_TRUE(unpinned.ok() || absl::IsNotFound(unpinned)) << unpinned;
            break;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(num_read, 0);
  EXPECT_EQ(tier->Stats().quarantined, 0);
  EXPECT_EQ(tier->Stats().vanished, 0);
  EXPECT_EQ(tier->Stats().delete_failures, 0);
  const std::vector<ChunkInfo> before = All(*tier);
  tier.reset();
  tier = *DiskTier::Open(options);
  const std::vector<ChunkInfo> after = All(*tier);
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].key, after[i].key);
  for (int32_t token = 0; token < 9; ++token) {
    if (!tier->Contains(SmallAddress(token).key)) continue;
    EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(token)).ok());
  }
}

}  // namespace
}  // namespace kvblend::store
