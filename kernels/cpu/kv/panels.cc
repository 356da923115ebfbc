#include "kernels/cpu/kv/panels.h"

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/page_codec.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kKeysPerPart = 512;  // some ten microseconds of work

/// Copies keys [begin, end) of one unit; begin is a multiple of kPanelKeys behind unit.begin. keys, values:
/// of the unit's first key; panels lie one after the other.
class PartPacker {
 public:
  PartPacker(const Tiles& tiles, const HostBatchPlan& plan, const KvPagesView& pages, const KvUnit& unit,
             uint32_t* keys, uint32_t* values)
      : tiles_(tiles), plan_(plan), pages_(pages), unit_(unit), keys_(keys), values_(values) {}

  void PackKeys(int64_t begin, int64_t end) const {
    const int64_t steps = tiles_.HeadSteps(pages_.head_dim);
    ForEachRun(PageValues::Keys(pages_), begin, end, [&](int64_t key, int64_t count, Rows rows) {
      const int64_t column = (key - unit_.begin) % kPanelKeys;
      uint32_t* panel = keys_ + (key - unit_.begin - column) * steps;
      const void* elements = rows.data;
      if (tiles_.codes) {
        elements = Coded(rows, count, CodeLimitsOf(pages_.head_dim).key,
                         reinterpret_cast<float*>(panel + (steps - 1) * kPanelKeys + column));
      }
      simd::PackKeys(elements, count, pages_.head_dim, tiles_.elements_per_word(), panel, column);
    });
    const int64_t words = tiles_.Words(pages_.head_dim), padded = tiles_.Steps(pages_.head_dim);
    for (int64_t key = begin; padded != words && key < end; key += kPanelKeys) {
      std::memset(keys_ + (key - unit_.begin) * steps + words * kPanelKeys, 0,
                  (padded - words) * kPanelKeys * sizeof(uint32_t));
    }
    if (end != unit_.end) return;
    const int64_t used = (end - unit_.begin) % kPanelKeys;
    if (used == 0) return;
    uint32_t* panel = keys_ + (end - unit_.begin - used) * steps;
    for (int64_t step = 0; step < steps; ++step) {
      std::memset(panel + step * kPanelKeys + used, 0, (kPanelKeys - used) * sizeof(uint32_t));
    }
  }

  void PackValues(int64_t begin, int64_t end) const {
    const int64_t columns = RoundUp(pages_.head_dim, kKeyStep);
    ForEachRun(PageValues::Values(pages_), begin, end, [&](int64_t key, int64_t count, Rows rows) {
      const int64_t in_panel = (key - unit_.begin) % kPanelKeys;
      uint32_t* panel = ValuesOf(key);
      const void* elements = rows.data;
      if (tiles_.codes) {
        elements = Coded(rows, count, kValueLimit,
                         reinterpret_cast<float*>(panel + tiles_.Words(kPanelKeys) * columns) + in_panel);
      }
      simd::PackValues(elements, count, pages_.head_dim, tiles_.elements_per_word(),
                       panel + tiles_.Words(in_panel) * columns, columns);
    });
    const int64_t rest = (end - unit_.begin) % kPanelKeys;
    if (end != unit_.end || rest == 0) return;
    uint32_t* panel = ValuesOf(end - rest);
    const int64_t used = tiles_.Words(rest), padded = tiles_.Words(tiles_.KeysOfProduct(rest));
    std::memset(panel + used * columns, 0, (padded - used) * columns * sizeof(uint32_t));
    if (!tiles_.codes) return;
    std::memset(panel + tiles_.Words(kPanelKeys) * columns + rest, 0, (kPanelKeys - rest) * sizeof(float));
  }

 private:
  // [count, head_dim]
  struct Rows {
    const void* data;
    DataType dtype;
  };

  // The panel of a key's value.
  uint32_t* ValuesOf(int64_t key) const {
    return values_ + (key - unit_.begin) / kPanelKeys * tiles_.ValueWords(RoundUp(pages_.head_dim, kKeyStep));
  }

  // Rows as codes in working memory, and their steps.
  const int16_t* Coded(Rows rows, int64_t count, float limit, float* steps) const {
    const int64_t head_dim = pages_.head_dim;
    auto* codes = ThreadScratch<int16_t>(ScratchSlot::kHeads, kPanelKeys * head_dim);
    simd::CodeRows(rows.data, rows.dtype, count, head_dim, /*scale=*/1.0f, limit,
                   {.codes = codes, .code_stride = head_dim, .steps = steps, .step_stride = 1});
    return codes;
  }

  // Calls body(key, count, rows) for keys of one panel that are contiguous, rows being in the tiles' type, or
  // where they become codes in any. Runs begin at even keys: two keys that share a word are in one run.
  template <typename Body>
  void ForEachRun(const PageValues& source, int64_t begin, int64_t end, const Body& body) const {
    const bool fits = tiles_.codes ? pages_.dtype != DataType::kInt8 : pages_.dtype == tiles_.dtype;
    const bool direct = fits && pages_.page_size % 2 == 0;
    for (int64_t key = begin; key < end;) {
      int64_t count = std::min(end - key, kPanelKeys - key % kPanelKeys);
      if (direct) count = std::min(count, pages_.page_size - key % pages_.page_size);
      body(key, count,
           direct ? Rows{Dense(source, Slot(key)), source.dtype}
                  : Rows{Gathered(source, key, count), tiles_.dtype});
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
        simd::DequantizeHeads(source.CodesAt(slot), source.StepsAt(slot), count, pages_.head_dim,
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
  uint32_t* const keys_;
  uint32_t* const values_;
};

/// Hands out a lease's words, or, without one, counts them.
class Words {
 public:
  explicit Words(uint32_t* memory) : memory_(memory) {}
  uint32_t* Take(int64_t count) {
    uint32_t* taken = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += RoundUp(count, kKeyStep);
    return taken;
  }
  const uint32_t** TakePointers(int64_t count) {
    constexpr int64_t kWordsPerPointer = sizeof(const uint32_t*) / 4;
    return reinterpret_cast<const uint32_t**>(Take(count * kWordsPerPointer));
  }
  int64_t bytes() const { return taken_ * static_cast<int64_t>(sizeof(uint32_t)); }

 private:
  uint32_t* const memory_;
  int64_t taken_ = 0;
};

/// Calls take(words) to count them, borrows so many and calls it again.
template <typename TakeAll>
absl::Status Borrow(CpuContext& context, ScratchPool::Lease& lease, const TakeAll& take) {
  Words counted(nullptr);
  take(counted);
  lease = context.scratch.Borrow(counted.bytes());
  if (!lease) {
    return absl::ResourceExhaustedError(
        absl::StrCat("attention: no memory for ", counted.bytes(), " bytes of KV"));
  }
  Words words(reinterpret_cast<uint32_t*>(lease.data()));
  take(words);
  return absl::OkStatus();
}

/// Copies the units' KV.
absl::Status PackUnits(CpuContext& context, const Tiles& tiles, const HostBatchPlan& plan,
                       const KvPagesView& pages, bool with_values, absl::Span<KvUnit> units,
                       ScratchPool::Lease& lease) {
  struct Packed {
    uint32_t* keys;    // panels, padded with zeros to kPanelKeys and HeadSteps
    uint32_t* values;  // padded with zeros to KeysOfProduct and to columns
  };
  struct Part {
    int64_t unit, begin, end;
  };
  const int64_t key_words = kPanelKeys * tiles.HeadSteps(pages.head_dim),
                value_words = tiles.ValueWords(RoundUp(pages.head_dim, kKeyStep));
  ListMemory lists(context.scratch);
  std::pmr::vector<Packed> packed(units.size(), lists.resource());
  std::pmr::vector<Part> parts(lists.resource());
  absl::Status status = Borrow(context, lease, [&](Words& words) {
    for (size_t i = 0; i < units.size(); ++i) {
      KvUnit& unit = units[i];
      const int64_t panels = unit.num_panels();
      unit.keys = words.TakePointers(panels);
      unit.values = with_values ? words.TakePointers(panels) : nullptr;
      packed[i].keys = words.Take(panels * key_words);
      packed[i].values = with_values ? words.Take(panels * value_words) : nullptr;
    }
  });
  if (!status.ok()) return status;
  for (size_t i = 0; i < units.size(); ++i) {
    const KvUnit& unit = units[i];
    for (int64_t panel = 0; panel < unit.num_panels(); ++panel) {
      unit.keys[panel] = packed[i].keys + panel * key_words;
      if (with_values) unit.values[panel] = packed[i].values + panel * value_words;
    }
    for (int64_t key = unit.begin; key < unit.end; key += kKeysPerPart) {
      parts.push_back({static_cast<int64_t>(i), key, std::min(unit.end, key + kKeysPerPart)});
    }
  }
  context.pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const auto& [unit, begin, end] = parts[i];
    const PartPacker packer(tiles, plan, pages, units[unit], packed[unit].keys, packed[unit].values);
    packer.PackKeys(begin, end);
    if (with_values) packer.PackValues(begin, end);
  });
  return absl::OkStatus();
}

/// Points at the units' tiles in their pages. Only what a product reads behind a unit's last value is copied,
/// as zeros: its probability is zero, but zero times a NaN, which memory that nobody has written may hold, is
/// NaN.
absl::Status PointAtTiles(CpuContext& context, const Tiles& tiles, const HostBatchPlan& plan,
                          const KvPagesView& pages, bool with_values, absl::Span<KvUnit> units,
                          ScratchPool::Lease& lease) {
  const int64_t head_dim = pages.head_dim;
  ListMemory lists(context.scratch);
  std::pmr::vector<uint32_t*> last_values(units.size(), lists.resource());
  absl::Status status = Borrow(context, lease, [&](Words& words) {
    for (size_t i = 0; i < units.size(); ++i) {
      KvUnit& unit = units[i];
      unit.keys = words.TakePointers(unit.num_panels());
      unit.values = with_values ? words.TakePointers(unit.num_panels()) : nullptr;
      const int64_t rest = (unit.end - unit.begin) % kPanelKeys;
      last_values[i] = with_values && tiles.KeysOfProduct(rest) != rest
                           ? words.Take(tiles.Words(tiles.KeysOfProduct(rest)) * head_dim)
                           : nullptr;
    }
  });
  if (!status.ok()) return status;
  const auto at = [](const void* data, int64_t element) {
    return reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(data) + element);
  };
  for (size_t i = 0; i < units.size(); ++i) {
    const KvUnit& unit = units[i];
    for (int64_t panel = 0; panel < unit.num_panels(); ++panel) {
      // A tile of keys takes as much memory as their rows would, and so do their values.
      const int64_t slot = plan.Slot(pages, unit.sequence, unit.kv_head,
                                     static_cast<int32_t>(unit.begin + panel * kPanelKeys));
      unit.keys[panel] = at(pages.k, slot);
      if (with_values) unit.values[panel] = at(pages.v, slot);
    }
    if (last_values[i] == nullptr) continue;
    const int64_t keys = (unit.end - unit.begin) % kPanelKeys, words = tiles.Words(tiles.KeysOfProduct(keys)),
                  whole = keys / 2;
    const uint32_t* from = unit.values[unit.num_panels() - 1];
    uint32_t* copy = last_values[i];
    std::copy_n(from, whole * head_dim, copy);
    std::fill(copy + whole * head_dim, copy + words * head_dim, 0u);
    if (keys % 2 != 0) {  // the last value is the lower half of its words
      for (int64_t d = whole * head_dim; d < (whole + 1) * head_dim; ++d) copy[d] = from[d] & 0xFFFFu;
    }
    unit.values[unit.num_panels() - 1] = copy;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FindPanels(CpuContext& context, const Tiles& tiles, const HostBatchPlan& plan,
                        const KvPagesView& pages, bool with_values, absl::Span<KvUnit> units,
                        ScratchPool::Lease& lease) {
  const auto find = pages.layout == PageLayout::kTiles ? &PointAtTiles : &PackUnits;
  return find(context, tiles, plan, pages, with_values, units, lease);
}

}  // namespace kvblend::kernels
