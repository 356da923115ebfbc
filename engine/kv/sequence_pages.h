// The pages of one running sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/kv/page_pool.h"

namespace kvblend::kv {

/// A list of pages for every group of layers, all with places for as many tokens. Grows with its sequence,
/// page by page, may shrink with it, and gives everything back when it goes. Must be gone before its pool is.
/// Used by one thread at a time.
class SequencePages {
 public:
  explicit SequencePages(PagePool& pool, PageUse use = PageUse::kWorking)
      : pool_(pool), lists_(pool.groups().num_groups()) {
    SetUse(use);
  }

  /// Makes room for positions 0 .. num_tokens-1 where there is none yet. On error (kResourceExhausted: too
  /// few free pages; kInvalidArgument: num_tokens < 0) the sequence keeps what it had.
  absl::Status Grow(int64_t num_tokens);
  /// How many pages that takes.
  int64_t PagesToGrow(int64_t num_tokens) const {
    return std::max<int64_t>(0, pool_.PagesPerGroup(num_tokens) - num_places()) * pool_.groups().num_groups();
  }

  /// Begins as the first `num_tokens` tokens of `other`: holds the pages that these fill together with it,
  /// and copies of those that they fill partly, made behind what is on the stream. On error (Grow's, the
  /// backend's) it is empty. REQUIRES: it is empty; both of one pool; `other` has all pages of so many
  /// tokens, and their KV is on its way into them at least.
  absl::Status ShareFrom(const SequencePages& other, int64_t num_tokens, kernels::Stream& stream);

  /// Before positions begin .. end-1 are written: takes copies of their pages where other sequences hold
  /// these as well. On error (Grow's, the backend's) the sequence holds what it held, or copies of it.
  absl::Status MakeOwn(int64_t begin, int64_t end, kernels::Stream& stream);

  /// How many copies MakeOwn would take.
  int64_t PagesToCopy(int64_t begin, int64_t end) const;

  /// In groups of layers with windows, gives back the pages that no row at `position` or later sees.
  /// page_indices() still has entries for them, which may be read but mean nothing. Returns how many.
  /// REQUIRES: 0 <= position, and there are pages for all positions before it
  int32_t DropUnseenFrom(int64_t position);
  /// The first position at which a row has all KV that it sees.
  int64_t first_seeing_all() const;
  /// How many pages DropUnseenFrom has given back.
  int64_t num_dropped() const;
  /// Takes new pages in place of those, for KV that is to be written again. On error (that of Grow) nothing
  /// changes.
  absl::Status TakeBack();

  /// Pages that it holds, alone or with others.
  int64_t num_held() const { return num_places() * pool_.groups().num_groups() - num_dropped(); }
  /// How many of them other sequences hold for the same use as well.
  int64_t num_held_by_others() const;
  /// How many of the pages that its first `num_tokens` tokens fill are held for `use`, by it or by others.
  int64_t NumHeldFor(PageUse use, int64_t num_tokens) const;
  /// Pages in each list, those that were given back among them.
  int64_t num_places() const { return lists_.front().size(); }

  void SetUse(PageUse use);
  IdlePages idle() const;

  /// Gives back the pages that positions 0 .. num_tokens-1 do without. REQUIRES: num_tokens >= 0
  void Shrink(int64_t num_tokens);

  /// What was computed with them is not finite; see PageList.
  void MarkDamaged();
  bool is_damaged() const { return lists_.front().is_damaged(); }

  /// The pages for a group of layers: the KV of position p is in slot p % page_size of page page_indices()[p
  /// / page_size]. Valid until Grow or Shrink.
  absl::Span<const int32_t> page_indices(int32_t group = 0) const { return lists_[group].page_indices(); }

 private:
  /// Indices of the pages of a list with positions begin .. end-1 that other sequences hold as well.
  std::vector<int32_t> SharedPages(const PageList& list, int64_t begin, int64_t end) const;

  PagePool& pool_;
  std::vector<PageList> lists_;  // per group of layers
};

}  // namespace kvblend::kv
