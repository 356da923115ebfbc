#include "kernels/cpu/packed_kv.h"

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/simd.h"
#include "kernels/host/page_codec.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kKeysPerPart = 512;  // some ten microseconds of work

/// Packs keys [begin, end) of one unit; begin is a multiple of kPanelKeys behind unit.begin.
class PartPacker {
 public:
  PartPacker(const Tiles& tiles, const HostBatchPlan& plan, const KvPagesView& pages, const KvUnit& unit)
      : tiles_(tiles), plan_(plan), pages_(pages), unit_(unit) {}

  void PackKeys(int64_t begin, int64_t end) const {
    const int64_t steps = tiles_.Steps(pages_.head_dim);
    ForEachRun(PageValues::Keys(pages_), begin, end, [&](int64_t key, int64_t count, const void* rows) {
      // A quad of keys may not straddle two panels.
      for (int64_t i = 0; i < count;) {
        const int64_t column = (key + i - unit_.begin) % kPanelKeys;
        const int64_t keys = std::min({count - i, int64_t{4}, kPanelKeys - column});
        uint32_t* panel = unit_.keys + (key + i - unit_.begin - column) * steps;
        simd::PackKeys(Row(rows, i), keys, pages_.head_dim, tiles_.elements_per_word(), panel, column);
        i += keys;
      }
    });
    const int64_t words = tiles_.Words(pages_.head_dim);
    for (int64_t key = begin; steps != words && key < end; key += kPanelKeys) {
      std::memset(unit_.keys + (key - unit_.begin) * steps + words * kPanelKeys, 0,
                  (steps - words) * kPanelKeys * sizeof(uint32_t));
    }
    if (end != unit_.end) return;
    const int64_t used = (end - unit_.begin) % kPanelKeys;
    if (used == 0) return;
    uint32_t* panel = unit_.keys + (end - unit_.begin - used) * steps;
    for (int64_t step = 0; step < steps; ++step) {
      std::memset(panel + step * kPanelKeys + used, 0, (kPanelKeys - used) * sizeof(uint32_t));
    }
  }

  void PackValues(int64_t begin, int64_t end) const {
    const int64_t columns = RoundUp(pages_.head_dim, kKeyStep);
    ForEachRun(PageValues::Values(pages_), begin, end, [&](int64_t key, int64_t count, const void* rows) {
      simd::PackValues(rows, count, pages_.head_dim, tiles_.elements_per_word(),
                       unit_.values + tiles_.Words(key - unit_.begin) * columns, columns);
    });
    if (end != unit_.end) return;
    const int64_t used = tiles_.Words(end - unit_.begin),
                  padded = tiles_.Words(tiles_.KeysOfProduct(end - unit_.begin));
    std::memset(unit_.values + used * columns, 0, (padded - used) * columns * sizeof(uint32_t));
  }

 private:
  const void* Row(const void* rows, int64_t i) const {
    return static_cast<const std::byte*>(rows) + i * pages_.head_dim * SizeOf(tiles_.dtype);
  }

  // Calls body(key, count, rows in the tiles' type) for keys that are contiguous. Runs begin at even keys:
  // two keys that share a word are in one run.
  template <typename Body>
  void ForEachRun(const PageValues& source, int64_t begin, int64_t end, const Body& body) const {
    const bool direct = pages_.dtype == tiles_.dtype && pages_.page_size % 2 == 0;
    const int64_t run_keys = direct ? pages_.page_size : kPanelKeys;
    for (int64_t key = begin; key < end;) {
      const int64_t count = std::min(end - key, run_keys - key % run_keys);
      body(key, count, direct ? Dense(source, Slot(key)) : Gathered(source, key, count));
      key += count;
    }
  }

  int64_t Slot(int64_t key) const {
    return plan_.Slot(pages_, unit_.sequence, unit_.kv_head, static_cast<int32_t>(key));
  }
  static const std::byte* Dense(const PageValues& source, int64_t slot) {
    return static_cast<const std::byte*>(source.data) + slot * SizeOf(source.dtype);
  }

  const std::byte* Gathered(const PageValues& source, int64_t begin, int64_t keys) const {
    const int64_t row_bytes = pages_.head_dim * SizeOf(tiles_.dtype);
    std::byte* rows = ThreadScratch<std::byte>(ScratchSlot::kRow, kPanelKeys * row_bytes);
    for (int64_t key = begin; key < begin + keys;) {
      const int64_t count = std::min(begin + keys - key, pages_.page_size - key % pages_.page_size);
      const int64_t slot = Slot(key);
      std::byte* target = rows + (key - begin) * row_bytes;
      if (source.dtype == DataType::kInt8) {
        simd::DequantiseHeads(source.CodesAt(slot), source.StepsAt(slot), count, pages_.head_dim,
                              tiles_.dtype, target, /*next=*/nullptr);
      } else {
        simd::ConvertRow(Dense(source, slot), source.dtype, target, tiles_.dtype, count * pages_.head_dim);
      }
      key += count;
    }
    return rows;
  }

  const Tiles& tiles_;
  const HostBatchPlan& plan_;
  const KvPagesView& pages_;
  const KvUnit& unit_;
};

}  // namespace

absl::Status PackKv(CpuContext& context, const Tiles& tiles, const HostBatchPlan& plan,
                    const KvPagesView& pages, bool with_values, absl::Span<KvUnit> units,
                    ScratchPool::Lease& lease) {
  struct Part {
    const KvUnit* unit;
    int64_t begin, end;
  };
  ListMemory lists(context.scratch);
  std::pmr::vector<Part> parts(lists.resource());
  int64_t words = 0;
  for (const KvUnit& unit : units) {
    words += unit.WordsOfKeys(tiles, pages.head_dim);
    if (with_values) words += unit.WordsOfValues(tiles, pages.head_dim);
    for (int64_t key = unit.begin; key < unit.end; key += kKeysPerPart) {
      parts.push_back({&unit, key, std::min(unit.end, key + kKeysPerPart)});
    }
  }
  lease = context.scratch.Borrow(words * sizeof(uint32_t));
  if (!lease) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attention: no memory for ", words * sizeof(uint32_t), " bytes of KV"));
  }
  auto* next = reinterpret_cast<uint32_t*>(lease.data());
  for (KvUnit& unit : units) {
    unit.keys = next;
    next += unit.WordsOfKeys(tiles, pages.head_dim);
    unit.values = with_values ? next : nullptr;
    if (with_values) next += unit.WordsOfValues(tiles, pages.head_dim);
  }
  context.pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const auto& [unit, begin, end] = parts[i];
    const PartPacker packer(tiles, plan, pages, *unit);
    packer.PackKeys(begin, end);
    if (with_values) packer.PackValues(begin, end);
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
