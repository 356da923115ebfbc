#include <algorithm>
#include <atomic>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/api/namespace_limit.h"
#include "engine/api/options.h"
#include "engine/store/chunk_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;

ChunkAddress Of(std::string_view tenant, int32_t token) { return SmallAddress(token, 8, {0}, tenant); }

int64_t CountOf(ChunkStore& store, std::string_view tenant) {
  return static_cast<int64_t>(store.List(tenant, "", ChunkStore::kMaxPageSize)->chunks.size());
}

TEST(NamespaceQuotasTest, SharesOfATier) {
  const NamespaceQuotas quotas{.default_share = 0.25, .named = {{"big", 0.5}, {"all", 1.0}}};
  EXPECT_TRUE(quotas.Check().ok());
  EXPECT_TRUE(quotas.limited());
  EXPECT_EQ(quotas.BytesOf("anyone", 1000), 250);
  EXPECT_EQ(quotas.BytesOf("", 1000), 250);
  EXPECT_EQ(quotas.BytesOf("big", 1000), 500);
  EXPECT_EQ(quotas.BytesOf("all", int64_t{1} << 60), int64_t{1} << 60);
  EXPECT_FALSE(NamespaceQuotas().limited());
}

TEST(NamespaceQuotasTest, RefusesWhatIsNoShare) {
  for (const double share : {0.0, -0.5, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(NamespaceQuotas{.default_share = share}.Check().message(), HasSubstr("above 0, at most 1"));
    const NamespaceQuotas named{.named = {{"a", share}}};
    EXPECT_THAT(named.Check().message(), HasSubstr("namespace 'a'"));
    EXPECT_EQ(ChunkStore::Create({.namespace_quotas = named}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(NamespaceQuotasTest, ANamespaceGivesUpItsOwn) {
  auto store =
      *ChunkStore::Create({.byte_budget = 10 * kChunkBytes, .namespace_quotas = {.default_share = 0.4}});
  const auto put = [&](const ChunkAddress& address, InsertOptions options = {}) {
    return store->Insert(address, FilledKv(address), options).status();
  };
  ASSERT_TRUE(put(Of("quiet", 1), {.compute_cost_seconds = 0}).ok());
  for (int32_t token = 0; token < 50; ++token) {
    ASSERT_TRUE(put(Of("loud", token), {.compute_cost_seconds = 1000}).ok());
  }
  EXPECT_EQ(CountOf(*store, "loud"), 4);
  EXPECT_EQ(CountOf(*store, "quiet"), 1);
  EXPECT_EQ(store->Stats().bytes, 5 * kChunkBytes);

  // Pinned ones count, and a refusal changes nothing.
  for (int32_t token = 46; token < 50; ++token) {
    ASSERT_TRUE(store->Pin("loud", Of("loud", token).key).ok());
  }
  const absl::Status refused = put(Of("loud", 100));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("namespace 'loud' may fill"));
  EXPECT_TRUE(IsLimitOfNamespace(refused, "loud"));
  EXPECT_FALSE(IsLimitOfNamespace(refused, "quiet"));
  EXPECT_EQ(CountOf(*store, "loud"), 4);
  EXPECT_TRUE(put(Of("quiet", 2)).ok());
}

TEST(NamespaceQuotasTest, BytesAndSharesBothHold) {
  const NamespaceQuotas quotas{.default_share = 0.5, .bytes = {{"small", 100}, {"large", 900}}};
  EXPECT_TRUE(quotas.limited());
  EXPECT_EQ(quotas.BytesOf("small", 1000), 100);
  EXPECT_EQ(quotas.BytesOf("large", 1000), 500);
  EXPECT_EQ(quotas.BytesOf("other", 1000), 500);
  EXPECT_THAT(quotas.Describe("small", 1000), HasSubstr("store_bytes"));
  EXPECT_THAT(quotas.Describe("large", 1000), ::testing::Not(HasSubstr("store_bytes")));
}

TEST(NamespaceQuotasTest, LimitsThatComeLaterCountWhatIsThere) {
  auto store = *ChunkStore::Create({.byte_budget = 100 * kChunkBytes});
  const auto put = [&](const ChunkAddress& address, InsertOptions options = {}) {
    return store->Insert(address, FilledKv(address), options).status();
  };
  for (int32_t token = 0; token < 10; ++token) {
    ASSERT_TRUE(put(Of("loud", token), {.pinned = token == 0}).ok());
    ASSERT_TRUE(put(Of("quiet", token)).ok());
  }
  store->LimitNamespaces({{"loud", 3 * kChunkBytes}});
  EXPECT_EQ(CountOf(*store, "loud"), 3) << "at once";
  EXPECT_EQ(CountOf(*store, "quiet"), 10);
  EXPECT_TRUE(store->Stat("loud", Of("loud", 0).key).ok()) << "pinned";
  for (int32_t token = 10; token < 20; ++token) ASSERT_TRUE(put(Of("loud", token)).ok());
  EXPECT_EQ(CountOf(*store, "loud"), 3);
  EXPECT_TRUE(store->Stat("loud", Of("loud", 19).key).ok()) << "the newest has room";

  store->LimitNamespaces({{"loud", kChunkBytes}});
  EXPECT_EQ(CountOf(*store, "loud"), 1);
  const absl::Status beside_the_pinned = put(Of("loud", 30));
  store->LimitNamespaces({{"loud", kChunkBytes - 1}});
  const absl::Status before_it_is_computed = store->LookupOrReserve(Of("loud", 30)).status();
  for (const absl::Status& refused : {beside_the_pinned, before_it_is_computed}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.message(), HasSubstr("namespace 'loud' may fill"));
    EXPECT_THAT(refused.message(), HasSubstr("(store_bytes of its tenant)"));
  }
  store->LimitNamespaces({});
  for (int32_t token = 30; token < 40; ++token) ASSERT_TRUE(put(Of("loud", token)).ok());
  EXPECT_EQ(CountOf(*store, "loud"), 11);
}

TEST(NamespaceQuotasTest, ManyWritersAtOnceStayWithinTheLimit) {
  auto store = *ChunkStore::Create({.byte_budget = 1000 * kChunkBytes});
  store->LimitNamespaces({{"loud", 5 * kChunkBytes}});
  std::atomic<bool> stop = false;
  std::atomic<int64_t> most = 0;
  std::thread watcher([&] {
    while (!stop) most = std::max<int64_t>(most, CountOf(*store, "loud"));
  });
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (int32_t i = 0; i < 200; ++i) {
        const ChunkAddress address = Of("loud", writer * 1000 + i);
        EXPECT_TRUE(store->Insert(address, FilledKv(address), {}).ok());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  watcher.join();
  EXPECT_LE(most, 5);
  EXPECT_EQ(CountOf(*store, "loud"), 5);
}

}  // namespace
}  // namespace kvblend::store
