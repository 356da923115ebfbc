// The pages of one running sequence.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/kv/page_pool.h"

namespace kvblend::kv {

/// Grows with its sequence, page by page, may shrink with it, and gives everything back when it goes. Must be gone before its
/// pool is. Used by one thread at a time.
class SequencePages {
 public:
  explicit SequencePages(PagePool& pool) : pool_(pool) {}

  /// Makes room for positions 0 .. num_tokens-1 where there is none yet. On error (kResourceExhausted: too
  /// few free pages; kInvalidArgument: num_tokens < 0) the sequence keeps what it had.
  absl::Status Grow(int64_t num_tokens);

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
  PagePool& pool_;
  PageList pages_;
};

}  // namespace kvblend::kv
