#include "kernels/host/batch_plan.h"

#include <cmath>
#include <new>
#include <stdexcept>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/checks.h"

namespace kvblend::kernels {

HostBatchPlan::HostBatchPlan(const BatchSpec& spec)
    : row_indptr_(spec.row_indptr.begin(), spec.row_indptr.end()),
      positions_(spec.positions.begin(), spec.positions.end()),
      kv_len_(spec.kv_len.begin(), spec.kv_len.end()),
      page_indptr_(spec.page_indptr.begin(), spec.page_indptr.end()),
      page_indices_(spec.page_indices.begin(), spec.page_indices.end()),
      sequence_of_row_(spec.positions.size()),
      kv_offset_(spec.kv_len.size() + 1, 0),
      page_size_(spec.page_size),
      num_page_lists_(spec.num_page_lists) {
  for (size_t s = 0; s < kv_len_.size(); ++s) {
    kv_offset_[s + 1] = kv_offset_[s] + kv_len_[s];
    std::fill(sequence_of_row_.begin() + row_indptr_[s], sequence_of_row_.begin() + row_indptr_[s + 1],
              static_cast<int32_t>(s));
  }
  for (int32_t position : positions_) max_position_ = std::max<int64_t>(max_position_, position);
  for (int32_t page : page_indices_) max_page_index_ = std::max<int64_t>(max_page_index_, page);
}

absl::StatusOr<const HostBatchPlan*> HostBatchPlan::From(const BatchPlan& plan) {
  return OfOwnKind<HostBatchPlan>(plan, "the BatchPlan was");
}

absl::StatusOr<std::unique_ptr<HostRopeTable>> HostRopeTable::Create(const RopeSpec& spec) {
  std::unique_ptr<HostRopeTable> table(new HostRopeTable());
  table->layout_ = spec.layout;
  table->max_position_ = spec.max_position;
  table->head_dim_ = spec.head_dim;
  const auto no_memory = [&] {
    return absl::ResourceExhaustedError(absl::StrCat("CreateRopeTable: no memory for ", spec.max_position,
                                                     " positions x head_dim ", spec.head_dim));
  };
  if (spec.max_position * spec.head_dim > (int64_t{1} << 40)) return no_memory();
  try {
    table->values_.resize(spec.max_position * spec.head_dim);
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::length_error&) {
    return no_memory();
  }
  const int64_t half = spec.head_dim / 2;
  for (int64_t position = 0; position < spec.max_position; ++position) {
    float* row = table->values_.data() + position * spec.head_dim;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * static_cast<double>(spec.inv_freq[i]);
      const double magnitude = spec.inv_freq[i] == 0 ? 1.0 : spec.magnitude;
      row[i] = static_cast<float>(magnitude * std::cos(angle));
      row[half + i] = static_cast<float>(magnitude * std::sin(angle));
    }
  }
  return table;
}

absl::StatusOr<const HostRopeTable*> HostRopeTable::From(const RopeTable& table) {
  return OfOwnKind<HostRopeTable>(table, "the RopeTable was");
}

}  // namespace kvblend::kernels
