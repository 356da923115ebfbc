#include "engine/kv/sequence_pages.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::kv {

absl::Status SequencePages::Grow(int64_t num_tokens) {
  if (num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence pages: num_tokens is ", num_tokens, "; allowed: >= 0"));
  }
  const int64_t missing = pool_.PagesForTokens(num_tokens) - pages_.size();
  if (missing <= 0) return absl::OkStatus();
  absl::StatusOr<PageList> more = pool_.Allocate(missing, pages_.use());
  if (!more.ok()) return more.status();
  pages_.Append(*std::move(more));
  return absl::OkStatus();
}

absl::Status SequencePages::ShareFrom(const SequencePages& other, int64_t num_tokens,
                                      kernels::Stream& stream) {
  const auto full = static_cast<int32_t>(num_tokens / pool_.page_size());
  // The pool may drop the other sequence to make room for the copy.
  const PageList source =
      other.pages_.Share(static_cast<int32_t>(pool_.PagesForTokens(num_tokens)), pages_.use());
  pages_ = source.Share(full, pages_.use());
  if (source.size() == full) return absl::OkStatus();
  absl::Status copied = Grow(num_tokens);
  if (copied.ok()) {
    copied = pool_.CopyPage(stream, source.page_indices()[full], page_indices()[full]);
  }
  if (!copied.ok()) pages_.Truncate(0);
  return copied;
}

int32_t SequencePages::DropBefore(int64_t token) {
  const int32_t before = pages_.num_dropped();
  pages_.DropFirst(static_cast<int32_t>(token / pool_.page_size()));
  return pages_.num_dropped() - before;
}

std::vector<int32_t> SequencePages::SharedPages(int64_t begin, int64_t end) const {
  std::vector<int32_t> shared;
  const auto last = static_cast<int32_t>(std::min<int64_t>(pool_.PagesForTokens(end), pages_.size()));
  for (auto index = static_cast<int32_t>(begin / pool_.page_size()); index < last; ++index) {
    if (pages_.IsShared(index)) shared.push_back(index);
  }
  return shared;
}

int64_t SequencePages::PagesToCopy(int64_t begin, int64_t end) const {
  return static_cast<int64_t>(SharedPages(begin, end).size());
}

absl::Status SequencePages::MakeOwn(int64_t begin, int64_t end, kernels::Stream& stream) {
  for (const int32_t index : SharedPages(begin, end)) {
    absl::StatusOr<PageList> copy = pool_.Allocate(1, pages_.use());
    if (!copy.ok()) return copy.status();
    const absl::Status copied = pool_.CopyPage(stream, page_indices()[index], copy->page_indices().front());
    if (!copied.ok()) return copied;
    pages_.Replace(index, *std::move(copy));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kv
