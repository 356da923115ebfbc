#include "engine/kv/page_pool.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/kv/sequence_pages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace kvblend::kv {
namespace {

using ::testing::HasSubstr;

PagePool::Options SmallOptions(int32_t num_pages) {
  return {.num_layers = 3,
          .num_kv_heads = 2,
          .head_dim = 5,
          .page_size = 4,
          .num_pages = num_pages,
          .dtype = kernels::DataType::kF32};
}

class PagePoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<PagePool> Create(const PagePool::Options& options) {
    auto pool = PagePool::Create(*backend_, options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  std::unique_ptr<kernels::Backend> backend_ = kernels::CreateReferenceBackend();
};

TEST_F(PagePoolTest, LayoutIsTheBackendsBest) {
  PagePool::Options options = SmallOptions(1);
  EXPECT_EQ(Create(options)->Layer(0).layout, kernels::PageLayout::kRows);
  options.dtype = kernels::DataType::kBF16;
  options.page_size = 128;
  options.head_dim = 96;
  ASSERT_EQ(backend_->best_page_layout(options.dtype, 128, 96), kernels::PageLayout::kTiles);
  EXPECT_EQ(Create(options)->Layer(2).layout, kernels::PageLayout::kTiles);
}

/// What a page holds in a layer.
std::vector<float> KeysOf(const PagePool& pool, int32_t layer, int32_t page) {
  const kernels::KvPagesView view = pool.Layer(layer);
  const int64_t count = int64_t{view.num_kv_heads} * view.page_size * view.head_dim;
  const float* keys = static_cast<const float*>(view.k) + page * count;
  return {keys, keys + count};
}

// Attention multiplies by 0 what no row sees, so nothing may be there that is not finite.
TEST_F(PagePoolTest, PagesAreZeroAtFirstAndAfterSomebodyWasDamagedAndElseAsTheyWereLeft) {
  auto pool = Create(SmallOptions(4));
  const auto zeros = testing::Each(0.0f);
  const auto fill = [&](const PageList& list, float value) {
    for (const int32_t page : list.page_indices()) {
      for (int32_t layer = 0; layer < 3; ++layer) {
        const kernels::KvPagesView view = pool->Layer(layer);
        const int64_t count = int64_t{view.num_kv_heads} * view.page_size * view.head_dim;
        for (void* section : {view.k, view.v})
          std::fill_n(static_cast<float*>(section) + page * count, count, value);
      }
    }
  };
  {
    auto pages = *pool->Allocate(2);
    for (const int32_t page : pages.page_indices()) EXPECT_THAT(KeysOf(*pool, 2, page), zeros);
    fill(pages, 3);
  }
  {
    auto pages = *pool->Allocate(3);
    EXPECT_THAT(KeysOf(*pool, 1, pages.page_indices()[0]), testing::Each(3.0f));
    EXPECT_THAT(KeysOf(*pool, 1, pages.page_indices()[2]), zeros);
    fill(pages, std::numeric_limits<float>::quiet_NaN());
    PageList taken_over;
    taken_over.Append(std::move(pages));
    taken_over.MarkDamaged();
  }
  const auto pages = *pool->Allocate(4);
  for (const int32_t page : pages.page_indices()) {
    for (int32_t layer = 0; layer < 3; ++layer) EXPECT_THAT(KeysOf(*pool, layer, page), zeros);
  }
}

TEST_F(PagePoolTest, LayersAreDisjointAndCoverEveryPage) {
  const auto options = SmallOptions(7);
  auto pool = Create(options);
  EXPECT_EQ(PagePool::PageBytes(options), 2 * 3 * 2 * 5 * 4 * 4);
  const size_t bytes = 7 * 2 * 4 * 5 * sizeof(float);
  int fill = 1;
  for (int layer = 0; layer < 3; ++layer) {
    const kernels::KvPagesView view = pool->Layer(layer);
    EXPECT_EQ(view.dtype, options.dtype);
    EXPECT_EQ(view.num_pages, 7);
    EXPECT_EQ(view.num_kv_heads, 2);
    EXPECT_EQ(view.page_size, 4);
    EXPECT_EQ(view.head_dim, 5);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.k) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.v) % 64, 0u);
    std::memset(view.k, fill++, bytes);
    std::memset(view.v, fill++, bytes);
  }
  fill = 1;
  for (int layer = 0; layer < 3; ++layer) {
    const kernels::KvPagesView view = pool->Layer(layer);
    for (const void* section : {view.k, view.v}) {
      const std::string expected(bytes, static_cast<char>(fill++));
      EXPECT_EQ(std::memcmp(section, expected.data(), bytes), 0) << "layer " << layer;
    }
  }
}

TEST_F(PagePoolTest, AllocationIsAllOrNothingAndNamesTheNumbers) {
  auto pool = Create(SmallOptions(5));
  auto three = pool->Allocate(3);
  ASSERT_TRUE(three.ok());
  const auto refused = pool->Allocate(3);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), HasSubstr("3 pages needed, 2 of 5 free"));
  EXPECT_EQ(pool->num_free(), 2);
  EXPECT_TRUE(pool->Allocate(2).ok());
  EXPECT_TRUE(pool->Allocate(0).ok());
  EXPECT_EQ(pool->Allocate(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PagePoolTest, RefusesBadOptionsByName) {
  struct Case {
    const char* name;
    void (*spoil)(PagePool::Options&);
  };
  for (const Case& c : {
           Case{"num_layers", [](auto& o) { o.num_layers = 0; }},
           Case{"num_kv_heads", [](auto& o) { o.num_kv_heads = -1; }},
           Case{"head_dim", [](auto& o) { o.head_dim = 1 << 20; }},
           Case{"page_size", [](auto& o) { o.page_size = 1025; }},
           Case{"num_pages", [](auto& o) { o.num_pages = 0; }},
       }) {
    PagePool::Options options = SmallOptions(4);
    c.spoil(options);
    const auto pool = PagePool::Create(*backend_, options);
    EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(pool.status().message(), HasSubstr(c.name));
  }
}

TEST_F(PagePoolTest, RefusesSizesThatOverflow) {
  const PagePool::Options options = {.num_layers = 1,
                                     .num_kv_heads = 1 << 14,
                                     .head_dim = 1 << 14,
                                     .page_size = 1024,
                                     .num_pages = INT32_MAX,
                                     .dtype = kernels::DataType::kF32};
  const auto pool = PagePool::Create(*backend_, options);
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(pool.status().message(), HasSubstr("addressed"));
}

TEST_F(PagePoolTest, MovedAndAppendedListsGiveEveryPageBackOnce) {
  auto pool = Create(SmallOptions(10));
  {
    PageList a = *pool->Allocate(2);
    PageList b = *pool->Allocate(3);
    const std::vector<int32_t> first(a.page_indices().begin(), a.page_indices().end());
    a.Append(std::move(b));
    EXPECT_EQ(a.size(), 5);
    EXPECT_THAT(a.page_indices().subspan(0, 2), ::testing::ElementsAreArray(first));
    PageList c = std::move(a);
    EXPECT_EQ(pool->num_used(), 5);
    c = *pool->Allocate(1);
    EXPECT_EQ(pool->num_used(), 1);
    PageList empty;
    empty.Append(std::move(c));
    EXPECT_EQ(empty.size(), 1);
  }
  EXPECT_EQ(pool->num_free(), 10);
}

TEST_F(PagePoolTest, SequenceGrowsByWholePagesAndKeepsWhatItHasWhenThePoolIsEmpty) {
  auto pool = Create(SmallOptions(4));
  SequencePages sequence(*pool);
  EXPECT_TRUE(sequence.Grow(0).ok());
  EXPECT_EQ(sequence.page_indices().size(), 0u);
  EXPECT_TRUE(sequence.Grow(5).ok());
  EXPECT_EQ(sequence.page_indices().size(), 2u);
  const int32_t first = sequence.page_indices()[0];
  EXPECT_TRUE(sequence.Grow(8).ok());
  EXPECT_EQ(sequence.page_indices().size(), 2u);
  EXPECT_EQ(sequence.Grow(17).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.Grow(-1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sequence.page_indices().size(), 2u);
  EXPECT_TRUE(sequence.Grow(9).ok());
  EXPECT_EQ(sequence.page_indices()[0], first);
  EXPECT_TRUE(sequence.Grow(1).ok());
  EXPECT_EQ(sequence.page_indices().size(), 3u);
}

// Random growth, truncation and death of sequences against a set of pages: no page has two owners, and free
// and used pages always add up.
void RunRandomOperations(PagePool& pool, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<std::optional<SequencePages>> sequences(8);
  for (int step = 0; step < 3000; ++step) {
    std::optional<SequencePages>& sequence = sequences[random() % sequences.size()];
    if (!sequence.has_value()) {
      sequence.emplace(pool);
    } else if (random() % 4 == 0) {
      sequence.reset();
    } else {
      const int64_t before = sequence->page_indices().size();
      const int64_t tokens = static_cast<int64_t>(random() % 60);
      const int64_t missing = std::max<int64_t>(0, pool.PagesForTokens(tokens) - before);
      const bool expected = missing <= pool.num_free();
      ASSERT_EQ(sequence->Grow(tokens).ok(), expected);
      ASSERT_EQ(sequence->page_indices().size(), before + (expected ? missing : 0));
    }
    std::set<int32_t> owned;
    size_t total = 0;
    for (const auto& s : sequences) {
      if (!s.has_value()) continue;
      owned.insert(s->page_indices().begin(), s->page_indices().end());
      total += s->page_indices().size();
    }
    ASSERT_EQ(owned.size(), total) << "a page has two owners";
    if (!owned.empty()) {
      ASSERT_GE(*owned.begin(), 0);
      ASSERT_LT(*owned.rbegin(), pool.num_pages());
    }
    ASSERT_EQ(pool.num_used(), static_cast<int32_t>(total));
    ASSERT_EQ(pool.num_free() + pool.num_used(), pool.num_pages());
  }
}

TEST_F(PagePoolTest, RandomOperationsConservePages) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{std::random_device()()}}) {
    auto pool = Create(SmallOptions(40));
    RunRandomOperations(*pool, seed);
    EXPECT_EQ(pool->num_free(), 40);
  }
}

TEST_F(PagePoolTest, ThreadsNeverShareAPage) {
  auto pool = Create(SmallOptions(24));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int i = 0; i < 500; ++i) {
        auto pages = pool->Allocate(random() % 8);
        if (!pages.ok()) continue;
        // A second owner writing the same page is a data race (for TSan) and a wrong value (for everyone).
        auto* k = static_cast<float*>(pool->Layer(0).k);
        for (const int32_t page : pages->page_indices()) k[page * 40] = static_cast<float>(t);
        for (const int32_t page : pages->page_indices()) ASSERT_EQ(k[page * 40], static_cast<float>(t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->num_free(), 24);
}

}  // namespace
}  // namespace kvblend::kv
