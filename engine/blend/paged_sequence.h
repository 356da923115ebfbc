// The pages of the sequence that a pass works on, and row plans over them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/sequence_pages.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// Neither pool nor pages are owned; both must outlive this. Not thread-safe.
class PagedSequence {
 public:
  PagedSequence(kernels::Backend& backend, kv::PagePool& pool, const kv::SequencePages& pages)
      : backend_(backend), pool_(pool), pages_(pages) {}

  /// A plan for the rows at `positions` (strictly increasing) that may read the KV of positions below kv_len.
  absl::StatusOr<std::unique_ptr<kernels::BatchPlan>> PlanRows(absl::Span<const int32_t> positions,
                                                               int32_t kv_len) const;
  /// The same for the contiguous rows [begin, end).
  absl::StatusOr<std::unique_ptr<kernels::BatchPlan>> PlanRange(int32_t begin, int32_t end,
                                                                int32_t kv_len) const;

  kernels::KvPagesView Layer(int32_t layer) const { return pool_.Layer(layer); }

 private:
  kernels::Backend& backend_;
  kv::PagePool& pool_;
  const kv::SequencePages& pages_;
};

}  // namespace kvblend::blend
