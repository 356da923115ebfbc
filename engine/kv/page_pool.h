// The KV pages of running sequences, in a backend's memory. One page holds page_size tokens of one sequence
// in every layer of a group (pages/layer_groups.h): page p is slot p of the KvPagesView of each of these
// layers, and a sequence has a list of pages for every group. Most models are one group.
//
// Several lists may hold the same page (Kwon et al., PagedAttention, SOSP 2023). The pool counts the lists; a
// page is free when none holds it. What more than one holds is read only: who wants to write takes a copy
// first (engine/kv/sequence_pages.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/kv/pages/layer_groups.h"
#include "engine/kv/pages/page_ranges.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"

namespace kvblend::kv {

class PagePool;

/// For whom a list holds its pages.
enum class PageUse : uint8_t {
  kWorking,   // what is computed and over when its task is
  kDecoding,  // answers, from the beginning of their prompts on
  kKept,      // sequences that are over: pages that somebody else may have at any time
};
inline constexpr int kNumPageUses = 3;

/// Counts of pages of one list that are only kept, in use by no running sequence.
struct IdlePages {
  int64_t all = 0;
  int64_t alone = 0;  // those that no other list holds: they become free when this list goes

  IdlePages& operator+=(const IdlePages& other) {
    all += other.all;
    alone += other.alone;
    return *this;
  }
};

/// Holds pages of a pool, some of them together with other lists, and gives them back on destruction. Must be
/// gone before its pool is. Move-only; one list is used by one thread at a time.
class PageList {
 public:
  PageList() = default;
  PageList(PageList&& other) noexcept;
  PageList& operator=(PageList&& other) noexcept;
  ~PageList();

  /// Page indices as BatchSpec::page_indices wants them. Valid until this list changes.
  absl::Span<const int32_t> page_indices() const { return pages_; }
  int32_t size() const { return static_cast<int32_t>(pages_.size()); }

  /// Notes that the pages may hold values that are not finite: they are cleared before anybody else gets
  /// them.
  void MarkDamaged() { damaged_ = true; }
  bool is_damaged() const { return damaged_; }

  /// Another list of its first pages. REQUIRES: 0 <= num_pages <= size(); none of them has been dropped
  PageList Share(int32_t num_pages, PageUse use) const;
  /// Whether another list holds this page as well. REQUIRES: num_dropped() <= index < size()
  bool IsShared(int32_t index) const;
  IdlePages idle() const;
  /// How many of its first pages at least `num_lists` lists hold for `use`. REQUIRES: 0 <= num_pages <=
  /// size(), num_lists >= 1
  int64_t NumHeldFor(PageUse use, int32_t num_lists, int32_t num_pages) const;
  /// Gives the page back and holds that of `other` in its place. REQUIRES: num_dropped() <= index < size();
  /// other.size() == 1, of the same pool and use.
  void Replace(int32_t index, PageList other);

  PageUse use() const { return use_; }
  void SetUse(PageUse use);

  /// Takes over the pages of `other`, behind its own. REQUIRES: both from one pool and of one use, or either
  /// empty.
  void Append(PageList other);

  /// Gives back the first pages up to `num_pages`: their places stay, with a page in them that somebody else
  /// may write, or this list at its end. What they held is gone. REQUIRES: 0 <= num_pages < size(), or
  /// num_pages == 0
  void DropFirst(int32_t num_pages);
  /// How many pages at the beginning have been given back.
  int32_t num_dropped() const { return num_dropped_; }
  /// Takes over the pages of `other` in their places. REQUIRES: other.size() == num_dropped(); other is
  /// empty, or of the same pool and use
  void TakeBack(PageList other);

  /// Gives back all but the first `num_pages`. REQUIRES: num_pages >= 0
  void Truncate(int32_t num_pages);

 private:
  friend class PagePool;
  /// The pages that it holds.
  absl::Span<const int32_t> held() const { return absl::MakeConstSpan(pages_).subspan(num_dropped_); }
  PageList(PagePool* pool, std::vector<int32_t> pages, PageUse use)
      : pool_(pool), pages_(std::move(pages)), use_(use) {}

  PagePool* pool_ = nullptr;  // null when made empty or moved from
  std::vector<int32_t> pages_;
  PageUse use_ = PageUse::kWorking;
  int32_t num_dropped_ = 0;  // of pages_, the first ones: not held
  bool damaged_ = false;
};

/// Thread-safe. Its memory is allocated once, at creation; pages handed out hold whatever their last owner
/// left, which is finite, or zeros: attention may multiply by 0 what none of its rows sees.
class PagePool {
 public:
  struct Options {
    int32_t num_layers = 0;
    std::vector<int32_t> windows = {};  // of the layers, 0: it sees everything; empty: all do
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int32_t page_size = 64;  // tokens, at most 1024
    int32_t num_pages = 0;
    kernels::DataType dtype = kernels::DataType::kBF16;
  };

  /// The backend must outlive the pool. kInvalidArgument naming the option; kResourceExhausted from the
  /// backend.
  static absl::StatusOr<std::unique_ptr<PagePool>> Create(kernels::Backend& backend, const Options& options);
  /// How Create groups the layers. REQUIRES: options that Create accepts.
  static LayerGroups GroupsOf(const Options& options);
  /// Bytes of one page over the layers of a group. REQUIRES: options that Create accepts.
  static int64_t PageBytes(const Options& options);

  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  kernels::DataType dtype() const { return options_.dtype; }
  int32_t page_size() const { return options_.page_size; }
  int32_t num_pages() const { return options_.num_pages; }
  int64_t page_bytes() const { return PageBytes(options_); }
  const LayerGroups& groups() const { return groups_; }
  /// Pages that num_tokens tokens take in each group, and in all of them. REQUIRES: num_tokens >= 0
  int64_t PagesPerGroup(int64_t num_tokens) const {
    return (num_tokens + options_.page_size - 1) / options_.page_size;
  }
  int64_t PagesForTokens(int64_t num_tokens) const {
    return groups_.num_groups() * PagesPerGroup(num_tokens);
  }

  /// All pages of one layer, valid as long as the pool. REQUIRES: 0 <= layer < num_layers
  kernels::KvPagesView Layer(int32_t layer) const;

  /// All or nothing. The pages follow each other where so many in a row are free, because attention reads
  /// them from front to back; otherwise they form few ranges. Where too few are free, `reclaim` is asked
  /// first. kResourceExhausted naming pages needed and free; kInvalidArgument: num_pages < 0.
  absl::StatusOr<PageList> Allocate(int64_t num_pages, PageUse use = PageUse::kWorking);

  /// What gives back at least so many pages, if it has them, of lists that hold pages only as long as nobody
  /// needs them; null: nothing. Called by Allocate, on its thread and with no lock held. May only be set, and
  /// what it refers to may only be changed, by the one thread that then calls Allocate, or while no thread
  /// does.
  using Reclaim = std::function<void(int64_t num_pages)>;
  void SetReclaim(Reclaim reclaim) { reclaim_ = std::move(reclaim); }

  /// Copies what page `from` holds in all layers of its group into page `to`, through host memory, behind
  /// what is on the stream. REQUIRES: pages of this pool. Errors: the backend's.
  absl::Status CopyPage(kernels::Stream& stream, int32_t from, int32_t to) const;

  int32_t num_free() const;
  int32_t num_used() const { return num_pages() - num_free(); }
  /// Pages that are only kept, in use by no running sequence.
  int32_t num_idle() const;
  /// Pages that several lists hold.
  int32_t num_shared() const;
  /// What the lists of one use hold: pages, and how many times the same one counted once.
  struct Holdings {
    int64_t held = 0;      // the sizes of all lists
    int64_t distinct = 0;  // pages in any of them
  };
  Holdings HeldFor(PageUse use) const;

 private:
  friend class PageList;
  PagePool(kernels::Backend& backend, std::unique_ptr<kernels::Stream> stream, const Options& options,
           LayerGroups groups, int64_t section_bytes, std::vector<std::unique_ptr<kernels::Buffer>> slots);
  void Release(absl::Span<const int32_t> pages, PageUse use, bool damaged);
  void Hold(absl::Span<const int32_t> pages, PageUse use);
  void ChangeUse(absl::Span<const int32_t> pages, PageUse from, PageUse to);
  bool IsShared(int32_t page) const;
  IdlePages IdleOf(absl::Span<const int32_t> pages) const;
  int64_t NumHeldFor(absl::Span<const int32_t> pages, PageUse use, int32_t num_lists) const;
  /// The lists that hold a page, by their use.
  struct References {
    std::array<int32_t, kNumPageUses> by_use = {};
    int32_t all() const { return by_use[0] + by_use[1] + by_use[2]; }
    bool is_idle() const { return all() > 0 && all() == by_use[static_cast<int>(PageUse::kKept)]; }
  };
  void AddReferences(int32_t page, PageUse use, int32_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What Layer gives for the layers in one slot of their groups, but for the list.
  kernels::KvPagesView Slot(int32_t slot) const;
  /// Calls `visit(section, bytes)` for the run of bytes that a page has in every section of every layer.
  using VisitSection = absl::FunctionRef<absl::Status(std::byte* data, int64_t bytes)>;
  absl::Status ForSectionsOf(int32_t page, VisitSection visit) const;
  /// All of these pages, in every layer.
  absl::Status WriteZeros(absl::Span<const int32_t> pages);

  kernels::Backend& backend_;
  const std::unique_ptr<kernels::Stream> stream_;  // for zeros
  const Options options_;
  const LayerGroups groups_;
  const kernels::PageLayout layout_;  // the backend's best
  const int64_t section_bytes_;       // of the K of all pages of a slot, padded for alignment
  const std::vector<std::unique_ptr<kernels::Buffer>> slots_;  // per slot: the K of all pages, then the V
  Reclaim reclaim_;

  mutable absl::Mutex mutex_;  // the only lock; nothing is called while it is held
  PageRanges free_ ABSL_GUARDED_BY(mutex_);
  std::vector<References> references_ ABSL_GUARDED_BY(mutex_);  // pages
  std::array<Holdings, kNumPageUses> holdings_ ABSL_GUARDED_BY(mutex_);
  int32_t num_idle_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t num_shared_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<bool> is_finite_
      ABSL_GUARDED_BY(mutex_);  // pages: written before, by somebody who was not damaged
};

}  // namespace kvblend::kv
