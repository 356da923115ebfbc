#include "engine/kv/sequence_pages.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::kv {

absl::Status SequencePages::Grow(int64_t num_tokens) {
  if (num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence pages: num_tokens is ", num_tokens, "; allowed: >= 0"));
  }
  const int64_t missing = pool_.PagesPerGroup(num_tokens) - num_places();
  if (missing <= 0) return absl::OkStatus();
  std::vector<PageList> added;
  for (const PageList& list : lists_) {
    absl::StatusOr<PageList> more = pool_.Allocate(missing, list.use());
    if (!more.ok()) return more.status();
    added.push_back(*std::move(more));
  }
  for (size_t i = 0; i < lists_.size(); ++i) lists_[i].Append(std::move(added[i]));
  return absl::OkStatus();
}

absl::Status SequencePages::ShareFrom(const SequencePages& other, int64_t num_tokens,
                                      kernels::Stream& stream) {
  const auto full = static_cast<int32_t>(num_tokens / pool_.page_size());
  const auto all = static_cast<int32_t>(pool_.PagesPerGroup(num_tokens));
  // The pool may drop the other sequence to make room for the copies.
  std::vector<PageList> sources;
  for (size_t i = 0; i < lists_.size(); ++i) {
    sources.push_back(other.lists_[i].Share(all, lists_[i].use()));
    lists_[i] = sources[i].Share(full, lists_[i].use());
  }
  if (all == full) return absl::OkStatus();
  absl::Status copied = Grow(num_tokens);
  for (size_t i = 0; i < lists_.size() && copied.ok(); ++i) {
    copied = pool_.CopyPage(stream, sources[i].page_indices()[full], lists_[i].page_indices()[full]);
  }
  if (!copied.ok()) Shrink(0);
  return copied;
}

int32_t SequencePages::DropUnseenFrom(int64_t position) {
  int32_t dropped = 0;
  for (size_t i = 0; i < lists_.size(); ++i) {
    const int64_t window = pool_.groups().windows[i];
    const int64_t first = position - std::max<int64_t>(window - 1, 1);  // one page at least is left
    if (window == 0 || first <= 0) continue;
    const int32_t before = lists_[i].num_dropped();
    lists_[i].DropFirst(static_cast<int32_t>(first / pool_.page_size()));
    dropped += lists_[i].num_dropped() - before;
  }
  return dropped;
}

int64_t SequencePages::first_seeing_all() const {
  int64_t first = 0;
  for (size_t i = 0; i < lists_.size(); ++i) {
    const int64_t begin = int64_t{lists_[i].num_dropped()} * pool_.page_size();
    if (begin > 0) first = std::max(first, begin + pool_.groups().windows[i] - 1);
  }
  return first;
}

int64_t SequencePages::num_dropped() const {
  int64_t dropped = 0;
  for (const PageList& list : lists_) dropped += list.num_dropped();
  return dropped;
}

int64_t SequencePages::num_held_by_others() const {
  int64_t pages = 0;
  for (const PageList& list : lists_) pages += list.NumHeldFor(list.use(), 2, list.size());
  return pages;
}

int64_t SequencePages::NumHeldFor(PageUse use, int64_t num_tokens) const {
  const int64_t full = std::min(num_tokens / pool_.page_size(), num_places());
  int64_t pages = 0;
  for (const PageList& list : lists_) pages += list.NumHeldFor(use, 1, static_cast<int32_t>(full));
  return pages;
}

absl::Status SequencePages::TakeBack() {
  std::vector<PageList> taken(lists_.size());
  for (size_t i = 0; i < lists_.size(); ++i) {
    absl::StatusOr<PageList> pages = pool_.Allocate(lists_[i].num_dropped(), lists_[i].use());
    if (!pages.ok()) return pages.status();
    taken[i] = *std::move(pages);
  }
  for (size_t i = 0; i < lists_.size(); ++i) lists_[i].TakeBack(std::move(taken[i]));
  return absl::OkStatus();
}

void SequencePages::SetUse(PageUse use) {
  for (PageList& list : lists_) list.SetUse(use);
}

IdlePages SequencePages::idle() const {
  IdlePages idle;
  for (const PageList& list : lists_) idle += list.idle();
  return idle;
}

void SequencePages::Shrink(int64_t num_tokens) {
  const int64_t num_pages = std::min(pool_.PagesPerGroup(num_tokens), num_places());
  for (PageList& list : lists_) list.Truncate(static_cast<int32_t>(num_pages));
}

void SequencePages::MarkDamaged() {
  for (PageList& list : lists_) list.MarkDamaged();
}

std::vector<int32_t> SequencePages::SharedPages(const PageList& list, int64_t begin, int64_t end) const {
  std::vector<int32_t> shared;
  const auto last = static_cast<int32_t>(std::min(pool_.PagesPerGroup(end), num_places()));
  // Pages that were given back are nobody's.
  const int32_t first = std::max(static_cast<int32_t>(begin / pool_.page_size()), list.num_dropped());
  for (int32_t index = first; index < last; ++index) {
    if (list.IsShared(index)) shared.push_back(index);
  }
  return shared;
}

int64_t SequencePages::PagesToCopy(int64_t begin, int64_t end) const {
  int64_t pages = 0;
  for (const PageList& list : lists_) pages += static_cast<int64_t>(SharedPages(list, begin, end).size());
  return pages;
}

absl::Status SequencePages::MakeOwn(int64_t begin, int64_t end, kernels::Stream& stream) {
  for (PageList& list : lists_) {
    for (const int32_t index : SharedPages(list, begin, end)) {
      absl::StatusOr<PageList> copy = pool_.Allocate(1, list.use());
      if (!copy.ok()) return copy.status();
      const absl::Status copied =
          pool_.CopyPage(stream, list.page_indices()[index], copy->page_indices().front());
      if (!copied.ok()) return copied;
      list.Replace(index, *std::move(copy));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kv
