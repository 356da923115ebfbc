// The attention that rows pay to each cached position, in two sweeps over the keys: the first finds each
// row's maximum and sum, the second knows with them what every score is worth and adds it to its key. Scores
// are computed twice and never leave the first-level cache.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory_resource>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/queries.h"
#include "kernels/cpu/kv/panels.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {
namespace {

// Scores of a thread's rows against keys that stay in the second-level cache.
constexpr int64_t kKeysPerPart = 2 * kKeyBlock;

/// All rows of one sequence, all kv heads. `units` hold the sequence's keys, one per kv head.
class MassOfRows {
 public:
  MassOfRows(CpuContext& context, const Tiles& tiles, const AttentionArgs& args,
             absl::Span<const KvUnit> units)
      : context_(context),
        tiles_(tiles),
        args_(args),
        units_(units),
        queries_(tiles, args, args.plan.row_begin(units[0].sequence), args.plan.row_end(units[0].sequence)),
        rows_(queries_.padded_products()),
        num_parts_((units[0].end - units[0].begin + kKeysPerPart - 1) / kKeysPerPart) {}

  /// Adds to mass [kv_len of the sequence].
  absl::Status AddTo(float* mass) {
    const auto num_kv_heads = static_cast<int64_t>(units_.size());
    const int64_t query_bytes = num_kv_heads * queries_.words() * static_cast<int64_t>(sizeof(uint32_t));
    const int64_t partial_floats = num_kv_heads * num_parts_ * 2 * rows_,
                  offset_floats = num_kv_heads * rows_;
    const int64_t partial_bytes = (partial_floats + offset_floats) * static_cast<int64_t>(sizeof(float));
    ScratchPool::Lease query_lease = context_.scratch.Borrow(query_bytes);
    ScratchPool::Lease partial_lease = context_.scratch.Borrow(partial_bytes);
    if (!query_lease || !partial_lease) {
      return absl::ResourceExhaustedError(
          absl::StrCat("AttentionMass: no memory for ", query_bytes + partial_bytes, " bytes"));
    }
    words_ = reinterpret_cast<uint32_t*>(query_lease.data());
    partial_ = reinterpret_cast<float*>(partial_lease.data());
    offsets_ = partial_ + partial_floats;
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      queries_.Gather(static_cast<int32_t>(h), words_ + h * queries_.words());
    }
    context_.pool.ParallelFor(num_kv_heads * num_parts_,
                              [&](int64_t i) { FindMaxAndSum(i / num_parts_, i % num_parts_); });
    for (int64_t h = 0; h < num_kv_heads; ++h) Merge(h);
    context_.pool.ParallelFor(num_parts_, [&](int64_t part) { AddPart(part, mass); });
    return absl::OkStatus();
  }

 private:
  float* Max(int64_t head, int64_t part) { return partial_ + (head * num_parts_ + part) * 2 * rows_; }
  float* Sum(int64_t head, int64_t part) { return Max(head, part) + rows_; }
  int64_t PartBegin(int64_t part) const { return units_[0].begin + part * kKeysPerPart; }
  int64_t PartEnd(int64_t part) const { return std::min(PartBegin(part + 1), units_[0].end); }

  // Calls body(tile, key, number of keys, which of them each row sees) with the block's scores.
  template <typename Body>
  void ForEachBlock(int64_t head, int64_t part, float* scores, const Body& body) const {
    const KvUnit& unit = units_[head];
    const TileScope scope(tiles_);
    for (int64_t key = PartBegin(part); key < PartEnd(part); key += kKeyBlock) {
      const int64_t end = std::min(key + kKeyBlock, PartEnd(part));
      for (int64_t tile = 0; tile < queries_.num_tiles(); ++tile) {
        const VisibleKeys seen = queries_.KeysOfTile(tile);
        if (seen.end <= key || seen.begin >= end) continue;
        const int64_t num_keys = std::min(end, seen.end) - key, keys = tiles_.KeysOfProduct(num_keys);
        tiles_.scores(words_ + head * queries_.words() + tile * tiles_.rows * queries_.steps(),
                      unit.keys + (key - unit.begin) / kPanelKeys, queries_.steps(), keys, scores);
        args_.CapBlock(scores, tiles_.rows, keys);
        VisibleKeys visible[kMaxTileRows];
        queries_.KeysOfBlock(tile, key, num_keys, visible);
        body(tile, key, keys, visible);
      }
    }
  }

  void FindMaxAndSum(int64_t head, int64_t part) {
    float* max = Max(head, part);
    float* sum = Sum(head, part);
    std::fill(max, max + rows_, -std::numeric_limits<float>::infinity());
    std::fill(sum, sum + rows_, 0.0f);
    float* scores = ThreadScratch<float>(ScratchSlot::kScores, tiles_.rows * kKeyBlock);
    ForEachBlock(head, part, scores,
                 [&](int64_t tile, int64_t, int64_t, const VisibleKeys(&visible)[kMaxTileRows]) {
                   for (int64_t r = 0; r < tiles_.rows; ++r) {
                     if (visible[r].begin >= visible[r].end) continue;
                     const int64_t row = tile * tiles_.rows + r;
                     tiles_.max_and_sum(scores + r * kKeyBlock, visible[r], max + row, sum + row);
                   }
                 });
  }

  // 2^(score - offset) is the row's probability over the number of heads.
  void Merge(int64_t head) {
    std::fill_n(offsets_ + head * rows_, rows_, 0.0f);  // of the padding too
    for (int64_t r = 0; r < queries_.num_products(); ++r) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (int64_t part = 0; part < num_parts_; ++part) max = std::max(max, Max(head, part)[r]);
      for (int64_t part = 0; part < num_parts_; ++part) {
        sum += Sum(head, part)[r] * std::exp2(Max(head, part)[r] - max);
      }
      offsets_[head * rows_ + r] = args_.LogMassSum(queries_.head(units_[head].kv_head, r), max, sum);
    }
  }

  void AddPart(int64_t part, float* mass) {
    float* scores = ThreadScratch<float>(ScratchSlot::kScores, tiles_.rows * kKeyBlock);
    float* sums = ThreadScratch<float>(ScratchSlot::kOutput, kKeysPerPart);
    const int64_t begin = PartBegin(part), end = PartEnd(part);
    std::fill(sums, sums + kKeysPerPart, 0.0f);
    for (size_t head = 0; head < units_.size(); ++head) {
      ForEachBlock(static_cast<int64_t>(head), part, scores,
                   [&](int64_t tile, int64_t key, int64_t keys, const VisibleKeys(&visible)[kMaxTileRows]) {
                     tiles_.add_mass(scores, visible,
                                     offsets_ + static_cast<int64_t>(head) * rows_ + tile * tiles_.rows,
                                     tiles_.rows, keys, sums + (key - begin));
                   });
    }
    for (int64_t key = begin; key < end; ++key) mass[key] += sums[key - begin];
  }

  CpuContext& context_;
  const Tiles& tiles_;
  const AttentionArgs& args_;
  const absl::Span<const KvUnit> units_;
  const TileQueries queries_;
  const int64_t rows_;  // padded
  const int64_t num_parts_;
  uint32_t* words_ = nullptr;  // queries [num_kv_heads, padded rows, steps]
  float* partial_ = nullptr;   // [num_kv_heads, num_parts, 2, padded rows]: maxima, sums
  float* offsets_ = nullptr;   // [num_kv_heads, padded rows]
};

}  // namespace

absl::Status CpuAttentionMass(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  const HostBatchPlan& plan = args.plan;
  const Tiles& tiles = AttentionTiles(context, args.pages);
  auto* mass = static_cast<float*>(out.data);
  std::fill(mass, mass + out.cols, 0.0f);
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    const int64_t begin = plan.row_begin(s), end = plan.row_end(s);
    if (begin == end) continue;
    ListMemory lists(context.scratch);
    std::pmr::vector<KvUnit> units(lists.resource());
    for (int32_t h = 0; h < args.pages.num_kv_heads; ++h) {
      units.push_back({.sequence = s,
                       .kv_head = h,
                       .begin = args.spec.FirstVisible(plan.position(begin)) / kPanelKeys * kPanelKeys,
                       .end = plan.position(end - 1) + 1});
    }
    ScratchPool::Lease lease;
    absl::Status status =
        FindPanels(context, tiles, plan, args.pages, /*with_values=*/false, absl::MakeSpan(units), lease);
    if (!status.ok()) return status;
    status = MassOfRows(context, tiles, args, units).AddTo(mass + plan.kv_offset(s));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
