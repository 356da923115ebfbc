// The keys and values of some (sequence, kv head) pairs, copied out of their pages into the layout that
// attention's tiles multiply, for operations that read each of them many times.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/tiles.h"
#include "kernels/host/batch_plan.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// One kv head of one sequence, keys [begin, end).
struct KvUnit {
  int64_t sequence;
  int32_t kv_head;
  int64_t begin;  // a multiple of kPanelKeys
  int64_t end;
  uint32_t* keys = nullptr;    // panels, padded with zeros to kPanelKeys and Steps
  uint32_t* values = nullptr;  // padded with zeros to KeysOfProduct and to columns; null when not wanted

  /// What PackKv will ask for.
  int64_t WordsOfKeys(const Tiles& tiles, int64_t head_dim) const {
    return RoundUp(end - begin, kPanelKeys) * tiles.Steps(head_dim);
  }
  int64_t WordsOfValues(const Tiles& tiles, int64_t head_dim) const {
    return tiles.Words(tiles.KeysOfProduct(end - begin)) * RoundUp(head_dim, kKeyStep);
  }
};

/// Fills keys, and values when wanted, of all units from pages; `lease` holds the memory.
absl::Status PackKv(CpuContext& context, const Tiles& tiles, const HostBatchPlan& plan,
                    const KvPagesView& pages, bool with_values, absl::Span<KvUnit> units,
                    ScratchPool::Lease& lease);

}  // namespace kvblend::kernels
