// Attention of many rows: tiles of query rows against blocks of keys with an online softmax (Milakov and
// Gimelshein, 2018; Dao et al., FlashAttention, 2022). The query rows of all heads that share a kv head form
// the rows of one product. Rows are ordered by position and every tile ends at its own last key, so that
// gathered rows cost no more per key than contiguous ones.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_queries.h"
#include "kernels/cpu/packed_kv.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles.h"

namespace kvblend::kernels {
namespace {

// Enough rows that keys and values in the second-level cache are used often; their outputs stay there too.
constexpr int64_t kRowsPerTask = 64;
// KV copied at a time; longer contexts go head by head.
constexpr int64_t kMaxPackedBytes = int64_t{256} << 20;
// Several tasks per thread, so that they finish together; where rows are few, their keys are split.
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kMinKeysPerTask = 2 * kKeyBlock;

/// Some rows of one unit and, where their keys are split, the keys of one part.
struct Task {
  const KvUnit* unit;
  int64_t row_begin, row_end;
  int64_t key_begin, key_end;
  float* partial = nullptr;  // where the part's result goes; null: there is only this one
};

class BlockedTask {
 public:
  BlockedTask(const Tiles& tiles, const AttentionArgs& args, const Task& task, MatrixView out)
      : tiles_(tiles),
        args_(args),
        task_(task),
        out_(out),
        queries_(tiles, args, task.row_begin, task.row_end),
        columns_(RoundUp(args.pages.head_dim, kKeyStep)) {}

  /// Floats that `partial` needs: outputs, maxima, sums of the padded rows.
  static int64_t PartialFloats(const Tiles& tiles, const AttentionArgs& args, int64_t row_begin,
                               int64_t row_end) {
    return TileQueries(tiles, args, row_begin, row_end).padded_products() *
           (RoundUp(args.pages.head_dim, kKeyStep) + 2);
  }

  void Run() {
    const int64_t rows = queries_.padded_products();
    words_ = ThreadScratch<uint32_t>(ScratchSlot::kQuery, queries_.words());
    scores_ = ThreadScratch<float>(ScratchSlot::kScores, tiles_.rows * kKeyBlock);
    // In f32 the probabilities overwrite the scores.
    probabilities_ = tiles_.dtype == DataType::kF32
                         ? reinterpret_cast<uint32_t*>(scores_)
                         : ThreadScratch<uint32_t>(ScratchSlot::kProbabilities, tiles_.rows * kKeyBlock / 2);
    output_ = task_.partial != nullptr ? task_.partial
                                       : ThreadScratch<float>(ScratchSlot::kOutput, rows * (columns_ + 2));
    max_ = output_ + rows * columns_;
    sum_ = max_ + rows;
    std::fill(output_, output_ + rows * columns_, 0.0f);
    std::fill(max_, max_ + rows, -std::numeric_limits<float>::infinity());
    std::fill(sum_, sum_ + rows, 0.0f);
    queries_.Gather(task_.unit->kv_head, words_);
    const TileScope scope(tiles_);
    int64_t first_tile = 0;  // those before it stand before the block
    for (int64_t key = task_.key_begin; key < task_.key_end; key += kKeyBlock) {
      const int64_t end = std::min(key + kKeyBlock, task_.key_end);
      while (first_tile < queries_.num_tiles() && queries_.OfTile(first_tile).end <= key) ++first_tile;
      for (int64_t tile = first_tile; tile < queries_.num_tiles(); ++tile) {
        const VisibleKeys seen = queries_.OfTile(tile);
        if (seen.begin >= end) break;  // and so have all later ones the block behind their window
        AddBlock(tile, key, std::min(end, seen.end) - key);
      }
    }
    if (task_.partial != nullptr) return;
    for (int64_t r = 0; r < queries_.num_products(); ++r) Write(r, output_ + r * columns_, sum_[r]);
  }

  /// Merges the results of the parts of the same rows, in memory one after the other.
  void Merge(int64_t num_parts) {
    const int64_t rows = queries_.padded_products(), part_floats = rows * (columns_ + 2);
    float* merged = ThreadScratch<float>(ScratchSlot::kOutput, columns_);
    for (int64_t r = 0; r < queries_.num_products(); ++r) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (int64_t p = 0; p < num_parts; ++p) {
        max = std::max(max, task_.partial[p * part_floats + rows * columns_ + r]);
      }
      std::fill(merged, merged + columns_, 0.0f);
      for (int64_t p = 0; p < num_parts; ++p) {
        const float* part = task_.partial + p * part_floats;
        const float weight = std::exp2(part[rows * columns_ + r] - max);
        sum += part[rows * columns_ + rows + r] * weight;
        simd::AddScaledRow(part + r * columns_, weight, merged, args_.pages.head_dim);
      }
      Write(r, merged, sum);
    }
  }

 private:
  void AddBlock(int64_t tile, int64_t key, int64_t num_keys) {
    const KvUnit& unit = *task_.unit;
    const int64_t keys = tiles_.KeysOfProduct(num_keys), first = tile * tiles_.rows;
    tiles_.scores(words_ + first * queries_.steps(), unit.keys + (key - unit.begin) * queries_.steps(),
                  queries_.steps(), keys, scores_);
    VisibleKeys visible[kMaxTileRows];
    queries_.OfBlock(tile, key, num_keys, visible);
    float alphas[kMaxTileRows];
    for (int64_t r = 0; r < tiles_.rows; ++r) {
      alphas[r] = 1.0f;
      uint32_t* probabilities = probabilities_ + r * tiles_.Words(kKeyBlock);
      if (visible[r].begin < visible[r].end) {
        alphas[r] = tiles_.softmax(scores_ + r * kKeyBlock, visible[r], keys, max_ + first + r,
                                   sum_ + first + r, probabilities);
      } else {
        std::fill(probabilities, probabilities + tiles_.Steps(keys), 0u);
      }
    }
    tiles_.add_values(probabilities_, unit.values + tiles_.Words(key - unit.begin) * columns_,
                      tiles_.Steps(keys), columns_, alphas, output_ + first * columns_);
  }

  void Write(int64_t product, const float* values, float sum) const {
    const int64_t head_dim = args_.pages.head_dim,
                  head = task_.unit->kv_head * args_.group() + product % args_.group();
    std::byte* target = static_cast<std::byte*>(out_.data) +
                        (queries_.row(product) * out_.row_stride + head * head_dim) * SizeOf(out_.dtype);
    simd::ScaleRow(values, 1.0f / sum, target, out_.dtype, head_dim);
  }

  const Tiles& tiles_;
  const AttentionArgs& args_;
  const Task& task_;
  const MatrixView out_;
  const TileQueries queries_;
  const int64_t columns_;              // of an output row: head_dim, padded
  uint32_t* words_ = nullptr;          // queries [padded rows, steps]
  float* scores_ = nullptr;            // [rows of a tile, kKeyBlock]
  uint32_t* probabilities_ = nullptr;  // [rows of a tile, words of kKeyBlock]
  float* output_ = nullptr;            // [padded rows, columns], not yet divided by sum
  float* max_ = nullptr;               // [padded rows]
  float* sum_ = nullptr;               // [padded rows]
};

/// Splits rows, and where they are few their keys, into tasks; parts of the same rows are neighbours.
std::vector<Task> MakeTasks(const AttentionArgs& args, const std::vector<KvUnit>& units, int num_threads) {
  const HostBatchPlan& plan = args.plan;
  int64_t row_tasks = 0;
  for (const KvUnit& unit : units) {
    row_tasks +=
        (plan.row_end(unit.sequence) - plan.row_begin(unit.sequence) + kRowsPerTask - 1) / kRowsPerTask;
  }
  const int64_t wanted_parts = (kTasksPerThread * num_threads + row_tasks - 1) / row_tasks;
  std::vector<Task> tasks;
  for (const KvUnit& unit : units) {
    const int64_t end = plan.row_end(unit.sequence);
    for (int64_t row = plan.row_begin(unit.sequence); row < end; row += kRowsPerTask) {
      const int64_t row_end = std::min(end, row + kRowsPerTask);
      const int64_t key_begin = plan.FirstVisible(plan.position(row)) / kPanelKeys * kPanelKeys,
                    key_end = int64_t{plan.position(row_end - 1)} + 1;
      const int64_t keys =
          num_threads == 1
              ? key_end - key_begin
              : RoundUp(std::max((key_end - key_begin + wanted_parts - 1) / wanted_parts, kMinKeysPerTask),
                        kPanelKeys);
      for (int64_t key = key_begin; key < key_end; key += keys) {
        tasks.push_back({&unit, row, row_end, key, std::min(key + keys, key_end)});
      }
    }
  }
  return tasks;
}

bool SameRows(const Task& a, const Task& b) { return a.unit == b.unit && a.row_begin == b.row_begin; }

absl::Status RunUnits(CpuContext& context, const AttentionArgs& args, std::vector<KvUnit>& units,
                      MatrixView out) {
  const Tiles& tiles = context.TilesFor(AttentionDtype(context, args.pages));
  ScratchPool::Lease kv_lease;
  absl::Status status = PackKv(context, tiles, args.plan, args.pages, /*with_values=*/true, units, kv_lease);
  if (!status.ok()) return status;
  std::vector<Task> tasks = MakeTasks(args, units, context.pool.num_threads());

  struct Merging {
    int64_t first_task, num_parts;
  };
  std::vector<Merging> merging;
  int64_t partial_floats = 0;
  for (size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
    while (end < tasks.size() && SameRows(tasks[begin], tasks[end])) ++end;
    if (end - begin == 1) continue;
    merging.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)});
    partial_floats += static_cast<int64_t>(end - begin) *
                      BlockedTask::PartialFloats(tiles, args, tasks[begin].row_begin, tasks[begin].row_end);
  }
  ScratchPool::Lease partial_lease;
  if (partial_floats > 0) partial_lease = context.scratch.Borrow(partial_floats * sizeof(float));
  if (partial_floats > 0 && !partial_lease) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "SelectiveAttention: no memory for ", partial_floats * sizeof(float), " bytes of partial sums"));
  }
  auto* next = reinterpret_cast<float*>(partial_lease.data());
  for (const Merging& rows : merging) {
    for (int64_t p = 0; p < rows.num_parts; ++p) {
      Task& task = tasks[rows.first_task + p];
      task.partial = next;
      next += BlockedTask::PartialFloats(tiles, args, task.row_begin, task.row_end);
    }
  }

  // Later rows see more keys: the longest tasks first, so that the threads finish together.
  std::vector<const Task*> order;
  for (const Task& task : tasks) order.push_back(&task);
  const auto cost = [](const Task* t) { return (t->row_end - t->row_begin) * (t->key_end - t->key_begin); };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Task* a, const Task* b) { return cost(a) > cost(b); });
  context.pool.ParallelFor(static_cast<int64_t>(order.size()),
                           [&](int64_t i) { BlockedTask(tiles, args, *order[i], out).Run(); });
  context.pool.ParallelFor(static_cast<int64_t>(merging.size()), [&](int64_t i) {
    BlockedTask(tiles, args, tasks[merging[i].first_task], out).Merge(merging[i].num_parts);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status BlockedAttention(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  const HostBatchPlan& plan = args.plan;
  const int64_t key_bytes = 2 * args.pages.head_dim * SizeOf(AttentionDtype(context, args.pages));
  std::vector<KvUnit> all;
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    const int64_t begin = plan.row_begin(s), end = plan.row_end(s);
    if (end - begin <= kMaxDecodeRows) continue;
    const int64_t first_key = plan.FirstVisible(plan.position(begin)) / kPanelKeys * kPanelKeys;
    for (int32_t h = 0; h < args.pages.num_kv_heads; ++h) {
      all.push_back({.sequence = s, .kv_head = h, .begin = first_key, .end = plan.position(end - 1) + 1});
    }
  }
  for (size_t next = 0; next < all.size();) {
    std::vector<KvUnit> units;
    for (int64_t bytes = 0; next < all.size() && (units.empty() || bytes < kMaxPackedBytes); ++next) {
      bytes += (all[next].end - all[next].begin) * key_bytes;
      units.push_back(all[next]);
    }
    if (absl::Status status = RunUnits(context, args, units, out); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CpuSelectiveAttention(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  absl::Status status = BlockedAttention(context, args, out);
  return status.ok() ? DecodeAttention(context, args, out) : status;
}

}  // namespace kvblend::kernels
