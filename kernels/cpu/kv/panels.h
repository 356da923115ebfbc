// The keys and values of some (sequence, kv head) pairs in the layout that attention's tiles multiply, for
// operations that read each of them many times: in their pages where these have that layout, copied out of
// them otherwise.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/host/batch_plan.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// One kv head of one sequence, keys [begin, end).
struct KvUnit {
  int64_t sequence;
  int32_t kv_head;
  int64_t begin;  // a multiple of kPanelKeys
  int64_t end;
  // Panels (tiles.h), [num_panels()] each. What lies behind the last key is anything in `keys`, zeros up to
  // KeysOfProduct in `values`, which is null when it was not wanted.
  const uint32_t** keys = nullptr;
  const uint32_t** values = nullptr;

  int64_t num_panels() const { return (end - begin + kPanelKeys - 1) / kPanelKeys; }
};

/// Fills keys, and values when wanted, of all units; `lease` holds what is not in pages.
absl::Status FindPanels(CpuContext& context, const Tiles& tiles, const HostBatchPlan& plan,
                        const KvPagesView& pages, bool with_values, absl::Span<KvUnit> units,
                        ScratchPool::Lease& lease);

}  // namespace kvblend::kernels
