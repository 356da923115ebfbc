#include "engine/blend/paged_sequence.h"

#include <numeric>

namespace kvblend::blend {

absl::StatusOr<std::unique_ptr<kernels::BatchPlan>> PagedSequence::PlanRows(
    absl::Span<const int32_t> positions, int32_t kv_len) const {
  const int32_t row_indptr[] = {0, static_cast<int32_t>(positions.size())};
  const int32_t kv_lens[] = {kv_len};
  const int32_t page_indptr[] = {0, static_cast<int32_t>(pages_.num_places())};
  std::vector<int32_t> page_indices;
  for (int32_t group = 0; group < pool_.groups().num_groups(); ++group) {
    const absl::Span<const int32_t> list = pages_.page_indices(group);
    page_indices.insert(page_indices.end(), list.begin(), list.end());
  }
  kernels::BatchSpec spec;
  spec.row_indptr = row_indptr;
  spec.positions = positions;
  spec.kv_len = kv_lens;
  spec.page_indptr = page_indptr;
  spec.page_indices = page_indices;
  spec.page_size = pool_.page_size();
  spec.num_page_lists = pool_.groups().num_groups();
  return backend_.PlanBatch(spec);
}

absl::StatusOr<std::unique_ptr<kernels::BatchPlan>> PagedSequence::PlanRange(int32_t begin, int32_t end,
                                                                             int32_t kv_len) const {
  std::vector<int32_t> positions(end - begin);
  std::iota(positions.begin(), positions.end(), begin);
  return PlanRows(positions, kv_len);
}

}  // namespace kvblend::blend
