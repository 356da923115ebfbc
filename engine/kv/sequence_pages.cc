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
  absl::StatusOr<PageList> more = pool_.Allocate(missing);
  if (!more.ok()) return more.status();
  pages_.Append(*std::move(more));
  return absl::OkStatus();
}

}  // namespace kvblend::kv
