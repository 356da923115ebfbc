// The BatchPlan and RopeTable of backends whose memory is the host's. Both are immutable after creation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

class HostBatchPlan final : public BatchPlan {
 public:
  /// REQUIRES: `spec` passed CheckBatchSpec.
  explicit HostBatchPlan(const BatchSpec& spec);
  /// kInvalidArgument when the plan was made by a backend of another kind.
  static absl::StatusOr<const HostBatchPlan*> From(const BatchPlan& plan);

  int64_t num_rows() const override { return static_cast<int64_t>(positions_.size()); }
  int64_t num_sequences() const override { return static_cast<int64_t>(kv_len_.size()); }
  int64_t total_kv_len() const override { return kv_offset_.back(); }
  int64_t max_position() const override { return max_position_; }
  int64_t max_page_index() const override { return max_page_index_; }
  int32_t page_size() const override { return page_size_; }
  int32_t num_page_lists() const override { return num_page_lists_; }

  int32_t row_begin(int64_t sequence) const { return row_indptr_[sequence]; }
  int32_t row_end(int64_t sequence) const { return row_indptr_[sequence + 1]; }
  int32_t kv_len(int64_t sequence) const { return kv_len_[sequence]; }
  /// Where the sequence's keys begin when all sequences are laid one after the other;
  /// kv_offset(num_sequences) is their sum.
  int64_t kv_offset(int64_t sequence) const { return kv_offset_[sequence]; }
  int32_t position(int64_t row) const { return positions_[row]; }
  const int32_t* positions() const { return positions_.data(); }
  int32_t sequence_of_row(int64_t row) const { return sequence_of_row_[row]; }

  /// Index of the first element of `head` at `position` in pages.k and pages.v.
  ABSL_ATTRIBUTE_ALWAYS_INLINE int64_t Slot(const KvPagesView& pages_view, int64_t sequence, int32_t head,
                                            int32_t position) const {
    const int64_t list = int64_t{pages_view.page_list} * page_indptr_.back();
    const int64_t page = page_indices_[list + page_indptr_[sequence] + position / page_size_];
    return ((page * pages_view.num_kv_heads + head) * page_size_ + position % page_size_) *
           pages_view.head_dim;
  }

 private:
  std::vector<int32_t> row_indptr_, positions_, kv_len_, page_indptr_, page_indices_, sequence_of_row_;
  std::vector<int64_t> kv_offset_;  // [num_sequences + 1]
  int64_t max_position_ = -1;
  int64_t max_page_index_ = -1;
  int32_t page_size_ = 0;
  int32_t num_page_lists_ = 1;
};

class HostRopeTable final : public RopeTable {
 public:
  /// REQUIRES: `spec` passed CheckRopeSpec. kResourceExhausted when there is no memory for the table.
  static absl::StatusOr<std::unique_ptr<HostRopeTable>> Create(const RopeSpec& spec);
  /// kInvalidArgument when the table was made by a backend of another kind.
  static absl::StatusOr<const HostRopeTable*> From(const RopeTable& table);

  int64_t max_position() const override { return max_position_; }
  int64_t head_dim() const override { return head_dim_; }
  RopeLayout layout() const { return layout_; }
  /// Both [head_dim / 2], times the magnitude.
  const float* cos(int64_t position) const { return values_.data() + position * head_dim_; }
  const float* sin(int64_t position) const { return cos(position) + head_dim_ / 2; }

 private:
  HostRopeTable() = default;

  RopeLayout layout_ = RopeLayout::kInterleaved;
  int64_t max_position_ = 0;
  int64_t head_dim_ = 0;
  std::vector<float> values_;  // per position: head_dim / 2 cosines, head_dim / 2 sines
};

}  // namespace kvblend::kernels
