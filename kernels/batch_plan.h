// Which rows of tokens are computed together, and where the KV lies that they see.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace kvblend::kernels {

/// A ragged batch of token rows over paged KV. Row i belongs to the sequence s with
/// row_indptr[s] <= i < row_indptr[s+1] and stands at absolute position positions[i] of it. Positions within
/// a sequence need not be contiguous (a blended prefill gathers them) but must be strictly increasing. The KV
/// of position p of sequence s is in slot p % page_size of page page_indices[page_indptr[s] + p / page_size].
///
/// Layers that keep different tokens have lists of pages of their own: page_indices then is num_page_lists
/// such lists of equal length, one behind the other, and KvPagesView::page_list tells which of them the pages
/// of a layer go by.
struct BatchSpec {
  absl::Span<const int32_t> row_indptr;    // [num_sequences + 1], starts at 0, non-decreasing; never empty
  absl::Span<const int32_t> positions;     // [num_rows]; each < kv_len of its sequence
  absl::Span<const int32_t> kv_len;        // [num_sequences] tokens whose KV may be read
  absl::Span<const int32_t> page_indptr;   // [num_sequences + 1], likewise; enough pages for each kv_len
  absl::Span<const int32_t> page_indices;  // each < num_pages of the pages it is used with
  int32_t page_size = 0;                   // tokens
  int32_t num_page_lists = 1;
};

/// A BatchSpec checked and prepared once (host scheduling, uploads), then used for every layer.
/// Immutable after creation. Must not outlive its backend.
class BatchPlan {
 public:
  virtual ~BatchPlan() = default;
  virtual int64_t num_rows() const = 0;
  virtual int64_t num_sequences() const = 0;
  virtual int64_t total_kv_len() const = 0;  // sum of kv_len
  // What the checked entries compare with the tables and pages that the plan is used with; -1 when there is
  // none.
  virtual int64_t max_position() const = 0;
  virtual int64_t max_page_index() const = 0;
  virtual int32_t page_size() const = 0;
  virtual int32_t num_page_lists() const = 0;
};

}  // namespace kvblend::kernels
