#include "engine/serve/sequences/kept_sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace kvblend {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kPageSize = 4;

class KeptSequencesTest : public testing::Test {
 protected:
  void Create(int32_t num_pages, int64_t max_pages) {
    auto pool = kv::PagePool::Create(*backend_, {.num_layers = 1,
                                                 .num_kv_heads = 1,
                                                 .head_dim = 2,
                                                 .page_size = kPageSize,
                                                 .num_pages = num_pages,
                                                 .dtype = kernels::DataType::kF32});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    kept_ = std::make_unique<KeptSequences>(*pool_, max_pages);
  }

  /// With `spare_tokens` more pages than its tokens need.
  KeptSequence Sequence(const std::string& tenant, Tokens tokens, int32_t must_match, int32_t num_exact,
                        int32_t spare_tokens = 0) {
    auto pages = std::make_unique<kv::SequencePages>(*pool_);
    EXPECT_TRUE(pages->Grow(static_cast<int64_t>(tokens.size()) + spare_tokens).ok());
    return {.tenant_namespace = tenant,
            .blend = {},
            .token_ids = std::move(tokens),
            .must_match = must_match,
            .num_exact = num_exact,
            .pages = std::move(pages)};
  }

  std::unique_ptr<kernels::Backend> backend_ = kernels::CreateReferenceBackend();
  std::unique_ptr<kv::PagePool> pool_;
  std::unique_ptr<KeptSequences> kept_;
};

TEST_F(KeptSequencesTest, GivesWhatAPromptRepeats) {
  Create(16, 16);
  kept_->Keep(Sequence("t", {1, 2, 3, 4, 5, 6}, /*must_match=*/4, /*num_exact=*/2, /*spare_tokens=*/9));
  EXPECT_EQ(pool_->num_used(), 2);
  EXPECT_EQ(kept_->counts().pages, 2);
  EXPECT_FALSE(kept_->Take("", {1, 2, 3, 4, 5, 6, 7}, 7, {}).has_value());
  EXPECT_FALSE(kept_->Take("t", {1, 2, 3, 9, 5, 6, 7}, 7, {}).has_value());
  EXPECT_FALSE(kept_->Take("t", {1, 2, 3, 4, 5, 6, 7}, 3, {}).has_value());
  EXPECT_FALSE(kept_->Take("t", {1, 2, 3, 4, 5, 6, 7}, 7, {.reuse = Reuse::kNothing}).has_value());
  // In another way only what is exact, and that is less than the question.
  EXPECT_FALSE(kept_->Take("t", {1, 2, 3, 4, 5, 6, 7}, 7, {.policy = Policy::kAll}).has_value());
  const auto taken = kept_->Take("t", {1, 2, 3, 4, 9, 6, 7}, 7, {.store_misses = false});
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->token_ids, (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(taken->num_exact, 2);
  EXPECT_EQ(pool_->num_used(), 1);
  EXPECT_EQ(kept_->counts().pages, 0);
  EXPECT_FALSE(kept_->Take("t", {1, 2, 3, 4, 5, 6, 7}, 7, {}).has_value()) << "it has been taken";
  kept_->Keep(Sequence("t", {1, 2, 3, 4, 5}, /*must_match=*/4, /*num_exact=*/5));
  const auto exact = kept_->Take("t", {1, 2, 3, 4, 5, 6}, 6, {.policy = Policy::kAll});
  ASSERT_TRUE(exact.has_value());
  EXPECT_EQ(exact->num_tokens(), 5);
}

TEST_F(KeptSequencesTest, GivesThePoolItsPagesTheOldestFirst) {
  Create(6, 6);
  kept_->Keep(Sequence("", {1, 1, 1, 1, 1}, 1, 0));
  kept_->Keep(Sequence("", {2, 2, 2, 2, 2}, 1, 0));
  kept_->Keep(Sequence("", {3, 3, 3, 3, 3}, 1, 0));
  EXPECT_EQ(pool_->num_free(), 0);
  auto pages = pool_->Allocate(3);
  ASSERT_TRUE(pages.ok()) << pages.status();
  EXPECT_EQ(kept_->counts().evicted, 2);
  EXPECT_FALSE(kept_->Take("", {2, 2, 2, 2, 2}, 5, {}).has_value());
  EXPECT_TRUE(kept_->Take("", {3, 3, 3, 3, 3}, 5, {}).has_value());
  EXPECT_EQ(pool_->Allocate(4).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(KeptSequencesTest, WhoseGoingFreesNoPageStays) {
  Create(6, 6);
  const auto stream = *backend_->CreateStream();
  KeptSequence oldest = Sequence("", {1, 1, 1, 1, 1, 1, 1, 1}, 1, 8);
  auto running = std::make_unique<kv::SequencePages>(*pool_);
  ASSERT_TRUE(running->ShareFrom(*oldest.pages, 8, *stream).ok());
  kept_->Keep(std::move(oldest));
  kept_->Keep(Sequence("", {2, 2, 2, 2, 2}, 1, 0));
  EXPECT_EQ(pool_->num_free(), 2);
  {
    const auto pages = pool_->Allocate(4);
    ASSERT_TRUE(pages.ok()) << pages.status();
    EXPECT_EQ(kept_->counts().evicted, 1);
    EXPECT_EQ(kept_->counts().sequences, 1);
    EXPECT_EQ(pool_->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(kept_->counts().evicted, 1) << "in vain";
    running.reset();
    EXPECT_TRUE(pool_->Allocate(1).ok());
    EXPECT_EQ(kept_->counts().sequences, 0);
  }
  EXPECT_EQ(pool_->num_used(), 0);
}

// Neither of them frees a page alone.
TEST_F(KeptSequencesTest, WhatSeveralKeepIsFreeWhenAllOfThemAreGone) {
  Create(4, 4);
  const auto stream = *backend_->CreateStream();
  KeptSequence first = Sequence("a", {1, 1, 1, 1, 1, 1, 1, 1}, 1, 8);
  KeptSequence second = Sequence("b", {}, 0, 0);
  ASSERT_TRUE(second.pages->ShareFrom(*first.pages, 8, *stream).ok());
  second.token_ids = first.token_ids;
  kept_->Keep(std::move(first));
  kept_->Keep(std::move(second));
  EXPECT_EQ(kept_->counts().pages, 2);
  EXPECT_TRUE(pool_->Allocate(3).ok());
  EXPECT_EQ(kept_->counts().evicted, 2);
  EXPECT_EQ(pool_->num_used(), 0);
}

/// The rules, as simple as they can be told.
struct Model {
  struct Entry {
    std::string tenant;
    Tokens tokens;
    int32_t must_match;
    int32_t num_exact;
    int64_t pages() const { return (static_cast<int64_t>(tokens.size()) + kPageSize - 1) / kPageSize; }
  };
  static int32_t Common(const Tokens& a, const Tokens& b) {
    int32_t n = 0;
    while (n < static_cast<int32_t>(std::min(a.size(), b.size())) && a[n] == b[n]) ++n;
    return n;
  }
  int64_t Pages() const {
    int64_t sum = 0;
    for (const Entry& entry : entries) sum += entry.pages();
    return sum;
  }
  void ShrinkTo(int64_t pages) {
    while (Pages() > std::max<int64_t>(0, pages)) entries.pop_back();
  }
  void Keep(Entry entry) {
    if (entry.pages() > max_pages) return;
    std::erase_if(entries, [&](const Entry& other) {
      return other.tenant == entry.tenant && other.num_exact <= entry.num_exact &&
             Common(other.tokens, entry.tokens) == static_cast<int32_t>(other.tokens.size());
    });
    ShrinkTo(max_pages - entry.pages());
    entries.push_front(std::move(entry));
  }
  /// How many tokens are taken; 0: nothing.
  int32_t Take(const std::string& tenant, const Tokens& prompt, bool same_blend) {
    int32_t most = 0;
    for (const Entry& entry : entries) {
      if (entry.tenant == tenant) most = std::max(most, Usable(entry, prompt, same_blend));
    }
    if (most == 0) return 0;
    // Which of several with equally much goes is left open.
    return most;
  }
  static int32_t Usable(const Entry& entry, const Tokens& prompt, bool same_blend) {
    int32_t n = Common(entry.tokens, prompt);
    if (!same_blend) n = std::min(n, entry.num_exact);
    return n >= entry.must_match ? n : 0;
  }

  int64_t max_pages = 0;
  std::deque<Entry> entries;  // the one used last first
};

TEST_F(KeptSequencesTest, RandomOperationsFollowTheModelAndLeakNoPage) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int32_t>(random() % n); };
  Create(24, 16);
  Model model;
  model.max_pages = 16;
  std::vector<kv::PageList> held;  // by others
  int64_t held_pages = 0;
  int takes = 0;
  for (int step = 0; step < 4000; ++step) {
    Tokens tokens(1 + below(20));
    for (int32_t& token : tokens) token = below(10) == 0;  // long prefixes in common
    const std::string tenant(1, static_cast<char>('a' + below(2)));
    const auto size = static_cast<int32_t>(tokens.size());
    switch (below(4)) {
      case 0: {
        if (pool_->num_pages() - held_pages < 6) break;
        const int32_t must_match = 1 + below(size), num_exact = below(size + 1);
        // Its pages come out of the pool first, as a running sequence's do.
        const int64_t pages = (size + kPageSize - 1) / kPageSize;
        if (pages > pool_->num_free()) model.ShrinkTo(model.Pages() - (pages - pool_->num_free()));
        kept_->Keep(Sequence(tenant, tokens, must_match, num_exact));
        model.Keep({tenant, tokens, must_match, num_exact});
        break;
      }
      case 1: {
        const bool same_blend = below(2) == 0;
        const BlendOptions blend = same_blend ? BlendOptions() : BlendOptions{.policy = Policy::kNone};
        const int32_t expected = model.Take(tenant, tokens, same_blend);
        const auto taken = kept_->Take(tenant, tokens, size, blend);
        ASSERT_EQ(taken.has_value() ? taken->num_tokens() : 0, expected) << step;
        if (!taken.has_value()) break;
        ++takes;
        EXPECT_EQ(taken->token_ids, Tokens(tokens.begin(), tokens.begin() + expected));
        // The model loses the entry that the other no longer has.
        const auto gone =
            std::find_if(model.entries.begin(), model.entries.end(), [&](const Model::Entry& entry) {
              return entry.tenant == tenant && entry.must_match == taken->must_match &&
                     std::min(entry.num_exact, expected) == taken->num_exact &&
                     Model::Usable(entry, tokens, same_blend) == expected;
            });
        ASSERT_NE(gone, model.entries.end());
        model.entries.erase(gone);
        break;
      }
      case 2: {
        const int32_t pages = below(6);
        if (pages > pool_->num_free()) model.ShrinkTo(model.Pages() - (pages - pool_->num_free()));
        auto list = pool_->Allocate(pages);
        ASSERT_EQ(list.ok(), held_pages + pages <= pool_->num_pages()) << list.status();
        if (!list.ok()) break;
        held_pages += pages;
        held.push_back(*std::move(list));
        break;
      }
      default:
        if (held.empty()) break;
        held_pages -= held.back().size();
        held.pop_back();
    }
    ASSERT_EQ(kept_->counts().sequences, model.entries.size()) << step;
    ASSERT_EQ(kept_->counts().pages, model.Pages()) << step;
    ASSERT_EQ(pool_->num_used(), model.Pages() + held_pages) << step;
  }
  EXPECT_GT(takes, 20);
  EXPECT_GT(kept_->counts().evicted, 20);
  kept_.reset();
  EXPECT_EQ(pool_->num_used(), held_pages);
}

}  // namespace
}  // namespace kvblend
