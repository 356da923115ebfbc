// Pages that several sequences hold: counted right, and never written under another's eyes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/kv/page_pool.h"
#include "engine/kv/sequence_pages.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace kvblend::kv {
namespace {

constexpr int32_t kTokensPerPage = 4;
constexpr int32_t kLayers = 2;
constexpr int32_t kHeadDim = 3;

/// Sequences over a pool, and what each of them should read.
class SharedPages {
 public:
  SharedPages(PagePool& pool, kernels::Stream& stream) : pool_(pool), stream_(stream) {}

  struct Sequence {
    std::unique_ptr<SequencePages> pages;
    PageUse use;
    std::vector<float> values;    // one per token, the same in all layers
    std::vector<int64_t> begins;  // of each group: where its KV begins

    int64_t last_begin() const { return *std::max_element(begins.begin(), begins.end()); }
  };

  void AddEmpty(PageUse use) { sequences.push_back(Empty(use)); }

  /// A sequence that begins as another one.
  void AddSharing(size_t other, int64_t num_tokens, PageUse use) {
    if (sequences[other].last_begin() > 0) return;
    Sequence added = Empty(use);
    const bool fits = num_tokens % kTokensPerPage == 0 || pool_.num_free() >= pool_.groups().num_groups();
    const absl::Status shared = added.pages->ShareFrom(*sequences[other].pages, num_tokens, stream_);
    EXPECT_EQ(shared.ok(), fits) << shared;
    EXPECT_TRUE(shared.ok() || added.pages->page_indices().empty());
    if (!shared.ok()) return;
    const std::vector<float>& values = sequences[other].values;
    added.values.assign(values.begin(), values.begin() + num_tokens);
    sequences.push_back(std::move(added));
  }

  /// Writes the tokens from `begin` on anew, or from where there is KV.
  bool Write(Sequence& sequence, int64_t begin, int64_t end, float first) {
    begin = std::max(begin, sequence.last_begin());
    if (begin >= end) return false;
    if (!sequence.pages->MakeOwn(begin, end, stream_).ok()) return false;
    if (!sequence.pages->Grow(end).ok()) return false;
    sequence.values.resize(begin);
    for (int64_t token = begin; token < end; ++token) {
      sequence.values.push_back(first++);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        float* key = KeyOf(sequence, layer, token);
        std::fill_n(key, kHeadDim, sequence.values.back());
      }
    }
    return true;
  }

  /// To nothing, or to tokens behind what was given back.
  void Shrink(Sequence& sequence, int64_t num_tokens) {
    if (num_tokens < sequence.last_begin()) num_tokens = 0;
    sequence.pages->Shrink(num_tokens);
    sequence.values.resize(num_tokens);
    if (num_tokens == 0) sequence.begins.assign(sequence.begins.size(), 0);
  }

  /// Gives back what no row from `position` on sees.
  void Drop(Sequence& sequence, int64_t position) {
    int64_t dropped = 0;
    for (size_t group = 0; group < sequence.begins.size(); ++group) {
      const int64_t window = WindowOf(group), before = sequence.begins[group];
      if (window == 0 || position < window) continue;
      const int64_t page = (position - window + 1) / kTokensPerPage;
      sequence.begins[group] = std::max(before, page * kTokensPerPage);
      dropped += (sequence.begins[group] - before) / kTokensPerPage;
    }
    EXPECT_EQ(sequence.pages->DropUnseenFrom(position), dropped);
  }

  /// Takes pages for what was given back, and writes all of them.
  void TakeBack(Sequence& sequence) {
    const bool fits = sequence.pages->num_dropped() <= pool_.num_free();
    EXPECT_EQ(sequence.pages->TakeBack().ok(), fits);
    if (!fits) return;
    sequence.begins.assign(sequence.begins.size(), 0);
    for (size_t token = 0; token < sequence.values.size(); ++token) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        float* key = KeyOf(sequence, layer, static_cast<int64_t>(token));
        std::fill_n(key, kHeadDim, sequence.values[token]);  // others hold the same
      }
    }
  }

  void Check() const {
    std::map<int32_t, std::array<int, kNumPageUses>> lists;
    for (const Sequence& sequence : sequences) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        const int64_t begin = sequence.begins[pool_.Layer(layer).page_list];
        for (auto token = begin; token < static_cast<int64_t>(sequence.values.size()); ++token) {
          const float* key = KeyOf(sequence, layer, token);
          for (int i = 0; i < kHeadDim; ++i) ASSERT_EQ(key[i], sequence.values[token]);
        }
      }
      int64_t held = 0, seeing_all = 0;
      for (size_t group = 0; group < sequence.begins.size(); ++group) {
        const int64_t begin = sequence.begins[group];
        const auto pages = sequence.pages->page_indices(static_cast<int32_t>(group));
        ASSERT_EQ(pages.size(), sequence.pages->num_places());
        const auto own = pages.subspan(begin / kTokensPerPage);
        for (const int32_t page : own) ++lists[page][static_cast<int>(sequence.use)];
        held += static_cast<int64_t>(own.size());
        if (begin > 0) seeing_all = std::max(seeing_all, begin + WindowOf(group) - 1);
      }
      ASSERT_EQ(sequence.pages->num_held(), held);
      ASSERT_EQ(sequence.pages->first_seeing_all(), seeing_all);
    }
    int32_t shared = 0, idle = 0;
    std::array<PagePool::Holdings, kNumPageUses> holdings;
    for (const auto& [page, by_use] : lists) {
      shared += by_use[0] + by_use[1] + by_use[2] > 1 ? 1 : 0;
      idle += by_use[0] + by_use[1] == 0 ? 1 : 0;
      for (int use = 0; use < kNumPageUses; ++use) {
        holdings[use].held += by_use[use];
        holdings[use].distinct += by_use[use] > 0 ? 1 : 0;
      }
    }
    ASSERT_EQ(pool_.num_used(), static_cast<int32_t>(lists.size()));
    ASSERT_EQ(pool_.num_shared(), shared);
    ASSERT_EQ(pool_.num_idle(), idle);
    for (int use = 0; use < kNumPageUses; ++use) {
      ASSERT_EQ(pool_.HeldFor(static_cast<PageUse>(use)).held, holdings[use].held);
      ASSERT_EQ(pool_.HeldFor(static_cast<PageUse>(use)).distinct, holdings[use].distinct);
    }
  }

  std::vector<Sequence> sequences;

 private:
  Sequence Empty(PageUse use) const {
    const auto num_groups = static_cast<size_t>(pool_.groups().num_groups());
    return {std::make_unique<SequencePages>(pool_, use), use, {}, std::vector<int64_t>(num_groups, 0)};
  }
  int64_t WindowOf(size_t group) const { return pool_.groups().windows[group]; }
  float* KeyOf(const Sequence& sequence, int32_t layer, int64_t token) const {
    const kernels::KvPagesView view = pool_.Layer(layer);
    const int32_t page = sequence.pages->page_indices(view.page_list)[token / kTokensPerPage];
    return static_cast<float*>(view.k) + (int64_t{page} * kTokensPerPage + token % kTokensPerPage) * kHeadDim;
  }

  PagePool& pool_;
  kernels::Stream& stream_;
};

class PageSharingTest : public ::testing::Test {
 protected:
  std::unique_ptr<PagePool> Create(int32_t num_pages, kernels::DataType dtype = kernels::DataType::kF32,
                                   const std::vector<int32_t>& windows = {}) {
    auto pool = PagePool::Create(*backend_, {.num_layers = kLayers,
                                             .windows = windows,
                                             .num_kv_heads = 1,
                                             .head_dim = kHeadDim,
                                             .page_size = kTokensPerPage,
                                             .num_pages = num_pages,
                                             .dtype = dtype});
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  std::unique_ptr<kernels::Backend> backend_ = kernels::CreateReferenceBackend();
  std::unique_ptr<kernels::Stream> stream_ = *backend_->CreateStream();
};

TEST_F(PageSharingTest, FullPagesAreHeldTogetherAndTheLastOneIsCopied) {
  const auto pool = Create(8);
  SharedPages shared(*pool, *stream_);
  shared.AddEmpty(PageUse::kDecoding);
  ASSERT_TRUE(shared.Write(shared.sequences[0], 0, 11, 100));
  shared.AddSharing(0, 10, PageUse::kDecoding);
  EXPECT_EQ(pool->num_used(), 4) << "two together, and one each";
  EXPECT_EQ(pool->num_shared(), 2);
  // Both go on behind their common tokens.
  ASSERT_TRUE(shared.Write(shared.sequences[0], 11, 14, 500));
  ASSERT_TRUE(shared.Write(shared.sequences[1], 10, 13, 900));
  shared.Check();
  // Who writes what the other one reads takes a copy.
  EXPECT_EQ(shared.sequences[1].pages->PagesToCopy(2, 12), 2);
  ASSERT_TRUE(shared.Write(shared.sequences[1], 2, 12, 700));
  shared.Check();
  EXPECT_EQ(pool->num_shared(), 0);
  shared.sequences.erase(shared.sequences.begin());
  shared.Check();
}

TEST_F(PageSharingTest, ACopyHasEverythingOfItsPage) {
  // 8-bit pages have steps beside their elements.
  const auto pool = Create(3, kernels::DataType::kInt8);
  const PageList pages = *pool->Allocate(3);
  const auto bytes_of = [&](int32_t page) {
    std::vector<uint8_t> bytes;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const kernels::KvPagesView view = pool->Layer(layer);
      const int64_t elements = kTokensPerPage * kHeadDim;
      const int64_t steps = kTokensPerPage * kernels::KvPagesView::StepsPerHead(kHeadDim) * 2;
      for (const auto& [data, size] : {std::pair{view.k, elements}, std::pair{view.v, elements},
                                       std::pair{view.k_steps, steps}, std::pair{view.v_steps, steps}}) {
        const auto* begin = static_cast<const uint8_t*>(data) + page * size;
        bytes.insert(bytes.end(), begin, begin + size);
      }
    }
    return bytes;
  };
  // Every byte of the pool its own value, and so of every page.
  uint8_t next = 0;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const kernels::KvPagesView view = pool->Layer(layer);
    const int64_t elements = 3 * kTokensPerPage * kHeadDim;
    const int64_t steps = 3 * kTokensPerPage * kernels::KvPagesView::StepsPerHead(kHeadDim) * 2;
    for (const auto& [data, size] : {std::pair{view.k, elements}, std::pair{view.v, elements},
                                     std::pair{view.k_steps, steps}, std::pair{view.v_steps, steps}}) {
      for (int64_t i = 0; i < size; ++i) static_cast<uint8_t*>(data)[i] = next++;
    }
  }
  const std::vector<uint8_t> first = bytes_of(0), second = bytes_of(1), third = bytes_of(2);
  ASSERT_NE(first, third);
  ASSERT_TRUE(pool->CopyPage(*stream_, 0, 2).ok());
  EXPECT_EQ(bytes_of(2), first);
  EXPECT_EQ(bytes_of(1), second);
  EXPECT_EQ(bytes_of(0), first);
}

TEST_F(PageSharingTest, WhatThePoolDropsWhileItIsSharedIsCopiedAllTheSame) {
  const auto pool = Create(2);
  SharedPages shared(*pool, *stream_);
  shared.AddEmpty(PageUse::kKept);
  ASSERT_TRUE(shared.Write(shared.sequences[0], 0, 7, 1));
  // The copy needs a page, and the only one to be had is that of the sequence itself.
  pool->SetReclaim([&](int64_t) { shared.sequences[0].pages.reset(); });
  SequencePages other(*pool);
  EXPECT_EQ(other.ShareFrom(*shared.sequences[0].pages, 7, *stream_).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(other.page_indices().empty());
  EXPECT_EQ(pool->num_used(), 0);
  pool->SetReclaim(nullptr);
}

TEST_F(PageSharingTest, PagesThatNobodySeesAnyMoreAreGivenBack) {
  constexpr int32_t kWindow = 5;
  const auto pool = Create(6, kernels::DataType::kF32, {kWindow, kWindow});
  SequencePages sequence(*pool, PageUse::kDecoding);
  ASSERT_TRUE(sequence.Grow(5 * kTokensPerPage).ok());
  const std::vector<int32_t> before(sequence.page_indices().begin(), sequence.page_indices().end());
  EXPECT_EQ(sequence.DropUnseenFrom(kTokensPerPage + kWindow - 2), 0);
  EXPECT_EQ(sequence.DropUnseenFrom(2 * kTokensPerPage + kWindow - 1), 2);
  EXPECT_EQ(sequence.DropUnseenFrom(kTokensPerPage + kWindow), 0) << "they have gone already";
  EXPECT_EQ(sequence.first_seeing_all(), 2 * kTokensPerPage + kWindow - 1);
  EXPECT_EQ(sequence.num_held(), 3);
  EXPECT_EQ(sequence.num_dropped(), 2);
  EXPECT_EQ(pool->num_used(), 3);
  EXPECT_EQ(pool->HeldFor(PageUse::kDecoding).held, 3);
  // Their places stay, with pages in them that may be read.
  ASSERT_EQ(sequence.num_places(), 5);
  EXPECT_EQ(sequence.page_indices()[0], before[2]);
  EXPECT_EQ(sequence.page_indices()[4], before[4]);
  sequence.SetUse(PageUse::kKept);
  EXPECT_EQ(pool->num_idle(), 3);
  ASSERT_TRUE(sequence.Grow(8 * kTokensPerPage).ok());
  EXPECT_EQ(pool->num_free(), 0);
  EXPECT_EQ(sequence.TakeBack().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(sequence.num_held(), 6);
  sequence.Shrink(3 * kTokensPerPage);
  EXPECT_EQ(pool->num_used(), 1);
  ASSERT_TRUE(sequence.TakeBack().ok());
  EXPECT_EQ(pool->num_used(), 3);
  EXPECT_EQ(sequence.first_seeing_all(), 0);
  EXPECT_EQ(sequence.DropUnseenFrom(2 * kTokensPerPage + kWindow - 1), 2);
  sequence.Shrink(kTokensPerPage);
  EXPECT_EQ(pool->num_used(), 0);
  EXPECT_EQ(sequence.num_held(), 0);
  ASSERT_TRUE(sequence.Grow(2 * kTokensPerPage).ok());
  SequencePages moved = std::move(sequence);
  EXPECT_EQ(pool->num_used(), 1);
}

TEST_F(PageSharingTest, LayersThatSeeEverythingKeepTheirsAndOthersTheWindow) {
  constexpr int32_t kWindow = 6;
  const auto pool = Create(40, kernels::DataType::kF32, {kWindow, 0});
  ASSERT_EQ(pool->groups().num_groups(), 2);
  SharedPages shared(*pool, *stream_);
  shared.AddEmpty(PageUse::kDecoding);
  SharedPages::Sequence& sequence = shared.sequences[0];
  for (int32_t tokens = 1; tokens <= 70; ++tokens) {
    ASSERT_TRUE(shared.Write(sequence, tokens - 1, tokens, static_cast<float>(tokens)));
    shared.Drop(sequence, tokens);
    ASSERT_NO_FATAL_FAILURE(shared.Check());
    const int64_t all = (tokens + kTokensPerPage - 1) / kTokensPerPage;
    EXPECT_LE(sequence.pages->num_held() - all, kWindow / kTokensPerPage + 2);
  }
  // What it costs that nothing is given back.
  EXPECT_EQ(pool->PagesForTokens(70), 2 * 18);
}

TEST_F(PageSharingTest, RandomSequencesReadWhatTheyWroteAndEveryPageIsCounted) {
  const std::vector<std::vector<int32_t>> kinds = {{}, {3, 5}, {0, 5}, {5, 0}};
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{std::random_device()()}}) {
    for (const std::vector<int32_t>& windows : kinds) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", windows of " + std::to_string(windows.size()));
      std::mt19937_64 random(seed);
      const auto below = [&](size_t n) { return static_cast<int64_t>(random() % n); };
      const int32_t num_pages = windows.empty() || windows[0] * windows[1] > 0 ? 24 : 48;
      const auto pool = Create(num_pages, kernels::DataType::kF32, windows);
      int num_shared = 0, num_dropped = 0;
      {
        SharedPages shared(*pool, *stream_);
        float next = 1;
        for (int step = 0; step < 2000; ++step) {
          const auto use = static_cast<PageUse>(below(kNumPageUses));
          const size_t index = shared.sequences.empty() ? 0 : below(shared.sequences.size());
          switch (shared.sequences.empty() ? 0 : below(windows.empty() ? 6 : 8)) {
            case 0:
              if (shared.sequences.size() < 9) shared.AddEmpty(use);
              break;
            case 1:
              if (shared.sequences.size() < 9) {
                shared.AddSharing(index, below(shared.sequences[index].values.size() + 1), use);
              }
              break;
            case 2: {
              SharedPages::Sequence& sequence = shared.sequences[index];
              const size_t size = sequence.values.size();
              // Where there are windows, near the end, as answers do: behind what has been given back.
              const int64_t begin =
                  windows.empty() ? below(size + 1) : size - below(std::min<size_t>(size, 4) + 1);
              shared.Write(sequence, begin, begin + 1 + below(9), next);
              next += 16;
              break;
            }
            case 3: {
              SharedPages::Sequence& sequence = shared.sequences[index];
              shared.Shrink(sequence, below(sequence.values.size() + 1));
              break;
            }
            case 4:
              shared.sequences[index].pages->SetUse(use);
              shared.sequences[index].use = use;
              break;
            case 5:
              shared.sequences.erase(shared.sequences.begin() + static_cast<std::ptrdiff_t>(index));
              break;
            case 6: {
              SharedPages::Sequence& sequence = shared.sequences[index];
              const size_t size = sequence.values.size();
              shared.Drop(sequence, size - below(std::min<size_t>(size, 4) + 1));
              num_dropped += sequence.pages->num_dropped() > 0 ? 1 : 0;
              break;
            }
            default:
              if (below(3) == 0) shared.TakeBack(shared.sequences[index]);
          }
          ASSERT_NO_FATAL_FAILURE(shared.Check()) << "step " << step;
          num_shared += pool->num_shared() > 0 ? 1 : 0;
        }
      }
      EXPECT_GT(num_shared, 20) << "hardly anything was shared";
      EXPECT_EQ(num_dropped > 10, !windows.empty());
      EXPECT_EQ(pool->num_free(), num_pages);
      EXPECT_EQ(pool->num_idle() + pool->num_shared(), 0);
    }
  }
}

}  // namespace
}  // namespace kvblend::kv
