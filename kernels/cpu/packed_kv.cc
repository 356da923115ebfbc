#include "kernels/cpu/packed_kv.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/simd.h"

namespace kvblend::kernels {
namespace {

// Copies the rows of keys [begin, end) from `source` (pages.k or pages.v), page by page, into `target`.
void CopyKeys(const HostBatchPlan& plan, const KvPagesView& pages, const void* source, const KvUnit& unit,
              int64_t begin, int64_t end, DataType dtype, std::byte* target) {
  const int64_t row_bytes = pages.head_dim * SizeOf(dtype);
  for (int64_t key = begin; key < end;) {
    const int64_t count = std::min(end - key, pages.page_size - key % pages.page_size);
    const int64_t slot = plan.Slot(pages, unit.sequence, unit.kv_head, static_cast<int32_t>(key));
    simd::ConvertRow(static_cast<const std::byte*>(source) + slot * SizeOf(pages.dtype), pages.dtype,
                     target + (key - unit.begin) * row_bytes, dtype, count * pages.head_dim);
    key += count;
  }
}

}  // namespace

absl::Status PackKv(CpuContext& context, const HostBatchPlan& plan, const KvPagesView& pages, DataType dtype,
                    bool with_values, std::vector<KvUnit>& units, ScratchPool::Lease& lease) {
  const int64_t row_bytes = pages.head_dim * SizeOf(dtype);
  struct Part {
    const KvUnit* unit;
    int64_t begin, end;
  };
  std::vector<Part> parts;
  constexpr int64_t kKeysPerPart = 2 * kKeyBlock;
  int64_t bytes = 0;
  for (const KvUnit& unit : units) {
    bytes += RoundUp(unit.padded_keys() * row_bytes, 64) * (with_values ? 2 : 1);
    for (int64_t key = unit.begin; key < unit.end; key += kKeysPerPart) {
      parts.push_back({&unit, key, std::min(unit.end, key + kKeysPerPart)});
    }
  }
  lease = context.scratch.Borrow(bytes);
  if (!lease)
    return absl::ResourceExhaustedError(absl::StrCat("attention: no memory for ", bytes, " bytes of KV"));
  std::byte* next = lease.data();
  for (KvUnit& unit : units) {
    const int64_t unit_bytes = RoundUp(unit.padded_keys() * row_bytes, 64);
    unit.k = next;
    unit.v = with_values ? next + unit_bytes : nullptr;
    next += unit_bytes * (with_values ? 2 : 1);
  }
  context.pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const auto& [unit, begin, end] = parts[i];
    for (const bool values : {false, true}) {
      if (values && !with_values) continue;
      std::byte* target = values ? unit->v : unit->k;
      CopyKeys(plan, pages, values ? pages.v : pages.k, *unit, begin, end, dtype, target);
      if (end == unit->end) {
        const int64_t keys = unit->end - unit->begin;
        std::memset(target + keys * row_bytes, 0, (unit->padded_keys() - keys) * row_bytes);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
