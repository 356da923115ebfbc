#include <limits>
#include <string_view>

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
  EXPECT_EQ(CountOf(*store, "loud"), 4);
  EXPECT_TRUE(put(Of("quiet", 2)).ok());
}

}  // namespace
}  // namespace kvblend::store
