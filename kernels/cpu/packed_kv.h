// The keys and values of some (sequence, kv head) pairs, copied out of their pages into contiguous rows of
// the GEMM's type, for operations that read each of them many times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/context.h"
#include "kernels/host/batch_plan.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Keys are taken in blocks of this size, the last one rounded up to kKeyStep, so that few shapes of products
/// exist. Scores of 192 rows x 256 keys with their probabilities, keys and values take half of a 1 MiB
/// second-level cache.
inline constexpr int64_t kKeyBlock = 256;
inline constexpr int64_t kKeyStep = 64;

inline int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// One kv head of one sequence, keys [begin, end).
struct KvUnit {
  int64_t sequence;
  int32_t kv_head;
  int64_t begin;  // a multiple of kKeyBlock
  int64_t end;
  std::byte* k = nullptr;  // [RoundUp(end - begin, kKeyStep), head_dim], padded with zeros
  std::byte* v = nullptr;  // the same, or null when values are not wanted

  int64_t padded_keys() const { return RoundUp(end - begin, kKeyStep); }
};

/// Fills k and v of all units from pages; `lease` holds the memory. dtype: kF32 or kBF16.
absl::Status PackKv(CpuContext& context, const HostBatchPlan& plan, const KvPagesView& pages, DataType dtype,
                    bool with_values, std::vector<KvUnit>& units, ScratchPool::Lease& lease);

}  // namespace kvblend::kernels
