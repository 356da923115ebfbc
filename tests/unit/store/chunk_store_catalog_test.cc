// What operators see of the store: namespaces and lists.
#include <set>
#include <string>

#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/unit/store/chunk_store_fixture.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

using ChunkStoreCatalogTest = ChunkStoreTest;

TEST_F(ChunkStoreCatalogTest, NamespacesDoNotSeeEachOther) {
  auto store = Create(8);
  const ChunkAddress a = SmallAddress(1, 8, {0}, "a");
  const ChunkAddress b = SmallAddress(1, 8, {0}, "b");
  ASSERT_TRUE(Put(*store, a).ok());
  ASSERT_TRUE(Put(*store, b).ok());
  ASSERT_TRUE(Put(*store, SmallAddress(1)).ok());
  EXPECT_EQ(store->Stat("a", b.key).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Stat("", b.key).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(*store->Erase("a", b.key));
  EXPECT_EQ(store->Pin("a", b.key).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Unpin("a", b.key).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store->Stat(kAllNamespaces, b.key).ok());

  const auto listed = store->List("a", "", 10);
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->chunks.size(), 1u);
  EXPECT_EQ(listed->chunks[0].key, a.key);
  EXPECT_EQ(store->List("", "", 10)->chunks.size(), 1u);
  EXPECT_EQ(store->List(kAllNamespaces, "", 10)->chunks.size(), 3u);

  EXPECT_EQ(store->Clear("a").erased, 1);
  EXPECT_EQ(store->Clear("a").erased, 0);
  EXPECT_TRUE(store->Stat("b", b.key).ok());
  EXPECT_EQ(store->Clear(kAllNamespaces).erased, 2);
  EXPECT_EQ(store->Stats().bytes, 0);
}

TEST_F(ChunkStoreCatalogTest, PagesListWhatStaysExactlyOnceThroughComingsAndGoings) {
  auto store = Create(100);
  std::set<ChunkKey> lasting;
  for (int token = 0; token < 20; ++token) {
    const ChunkAddress address = SmallAddress(token, 8, {0}, token % 2 == 0 ? "even" : "odd");
    ASSERT_TRUE(Put(*store, address).ok());
    if (token >= 10) lasting.insert(address.key);
  }
  std::set<ChunkKey> listed;
  std::string token;
  int pages = 0;
  do {
    const auto page = store->List(kAllNamespaces, token, 3);
    ASSERT_TRUE(page.ok()) << page.status();
    ASSERT_LE(page->chunks.size(), 3u);
    for (const ChunkInfo& info : page->chunks) {
      EXPECT_TRUE(listed.insert(info.key).second) << "listed twice";
    }
    token = page->next_page_token;
    // Gone: some that may have been listed, among them the very entries that page tokens name. New: others.
    if (!page->chunks.empty() && !lasting.contains(page->chunks.back().key)) {
      store->Erase(kAllNamespaces, page->chunks.back().key).IgnoreError();
    }
    ASSERT_TRUE(Put(*store, SmallAddress(1000 + pages, 8, {0}, "even")).ok());
    ASSERT_LT(++pages, 30);
  } while (!token.empty());
  for (const ChunkKey& key : lasting) EXPECT_TRUE(listed.contains(key));
}

TEST_F(ChunkStoreCatalogTest, ListRefusesBadPageSizesAndTokens) {
  auto store = Create(4);
  ASSERT_TRUE(Put(*store, SmallAddress(1, 8, {0}, "a")).ok());
  ASSERT_TRUE(Put(*store, SmallAddress(2, 8, {0}, "a")).ok());
  const std::string token = store->List("a", "", 1)->next_page_token;
  ASSERT_FALSE(token.empty());
  const auto code = [&](NamespaceFilter filter, std::string_view page_token, int32_t page_size) {
    return store->List(filter, page_token, page_size).status().code();
  };
  EXPECT_EQ(code("a", token, 1), absl::StatusCode::kOk);
  EXPECT_EQ(code(kAllNamespaces, token, 1), absl::StatusCode::kOk);
  EXPECT_EQ(code("b", token, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", "", 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", "", 1001), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", "x", 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", token.substr(1), 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", token + "zz", 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a", std::string(64, 'q'), 1), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvblend::store
