// The pages of one running sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/kv/page_pool.h"

namespace kvblend::kv {

/// Grows with its sequence, page by page, may shrink with it, and gives everything back when it goes. Must be gone before its
/// pool is. Used by one thread at a time.
class SequencePages {
 public:
  explicit SequencePages(PagePool& pool, PageUse use = PageUse::kWorking) : pool_(pool) { SetUse(use); }

  /// Makes room for positions 0 .. num_tokens-1 where there is none yet. On error (kResourceExhausted: too
  /// few free pages; kInvalidArgument: num_tokens < 0) the sequence keeps what it had.
  absl::Status Grow(int64_t num_tokens);

  /// Begins as the first `num_tokens` tokens of `other`: holds the pages that these fill together with it, and a copy of the
  /// one that they fill partly, made behind what is on the stream. On error (Grow's, the backend's) it is empty. REQUIRES:
  /// it is empty; both of one pool; `other` has all pages of so many tokens, and their KV is on its way into them at least.
  absl::Status ShareFrom(const SequencePages& other, int64_t num_tokens, kernels::Stream& stream);

  /// Before positions begin .. end-1 are written: takes copies of their pages where other sequences hold these as well. On
  /// error (Grow's, the backend's) the sequence holds what it held, or copies of it.
  absl::Status MakeOwn(int64_t begin, int64_t end, kernels::Stream& stream);

  /// How many copies MakeOwn would take.
  int64_t PagesToCopy(int64_t begin, int64_t end) const;

  /// Gives back the pages of positions before `token` alone, which nobody reads any more: what page_indices() has for them may
  /// be read, and means nothing. Returns how many. REQUIRES: 0 <= token, and there are pages behind those
  int32_t DropBefore(int64_t token);
  /// The KV of the positions before this is gone.
  int64_t first_token() const { return int64_t{pages_.num_dropped()} * pool_.page_size(); }
  /// Pages that it holds, alone or with others.
  int64_t num_held() const { return pages_.size() - pages_.num_dropped(); }

  void SetUse(PageUse use) { pages_.SetUse(use); }

  /// Gives back the pages that positions 0 .. num_tokens-1 do without. REQUIRES: num_tokens >= 0
  void Shrink(int64_t num_tokens) {
    pages_.Truncate(static_cast<int32_t>(std::min<int64_t>(pool_.PagesForTokens(num_tokens), pages_.size())));
  }

  /// What was computed with them is not finite; see PageList.
  void MarkDamaged() { pages_.MarkDamaged(); }
  bool is_damaged() const { return pages_.is_damaged(); }

  /// The KV of position p is in slot p % page_size of page page_indices()[p / page_size]. Valid until Grow or Shrink.
  absl::Span<const int32_t> page_indices() const { return pages_.page_indices(); }

 private:
  /// Indices of the pages with positions begin .. end-1 that other sequences hold as well.
  std::vector<int32_t> SharedPages(int64_t begin, int64_t end) const;

  PagePool& pool_;
  PageList pages_;
};

}  // namespace kvblend::kv
