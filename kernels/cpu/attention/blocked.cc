// Attention of many rows: tiles of query rows against blocks of keys with an online softmax (Milakov and
// Gimelshein, 2018; Dao et al., FlashAttention, 2022). The query rows of all heads that share a kv head form
// the rows of one product. Rows are ordered by position and every tile ends at its own last key, so that
// gathered rows cost no more per key than contiguous ones.
#include <algorithm>
#include <memory_resource>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/task.h"
#include "kernels/cpu/kv/panels.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {
namespace {

// Enough rows that keys and values in the second-level cache are used often; their outputs stay there too.
constexpr int64_t kRowsPerTask = 64;
// KV copied at a time; longer contexts go head by head.
constexpr int64_t kMaxPackedBytes = int64_t{256} << 20;
// Several tasks per thread, so that they finish together; where rows are few, their keys are split.
constexpr int64_t kTasksPerThread = 8;
constexpr int64_t kMinKeysPerTask = 2 * kKeyBlock;
// Probabilities kept from one pass over the keys to the sums per key; more rows compute their scores again.
constexpr int64_t kMaxKeptBytes = int64_t{64} << 20;

/// Splits rows, and where they are few their keys, into tasks; parts of the same rows are neighbours.
std::pmr::vector<AttentionTask> MakeTasks(const AttentionArgs& args, absl::Span<const KvUnit> units,
                                          int num_threads, std::pmr::memory_resource* memory) {
  const HostBatchPlan& plan = args.plan;
  int64_t row_tasks = 0;
  for (const KvUnit& unit : units) {
    row_tasks +=
        (plan.row_end(unit.sequence) - plan.row_begin(unit.sequence) + kRowsPerTask - 1) / kRowsPerTask;
  }
  const int64_t wanted_parts = (kTasksPerThread * num_threads + row_tasks - 1) / row_tasks;
  std::pmr::vector<AttentionTask> tasks(memory);
  for (const KvUnit& unit : units) {
    const int64_t end = plan.row_end(unit.sequence);
    for (int64_t row = plan.row_begin(unit.sequence); row < end; row += kRowsPerTask) {
      const int64_t row_end = std::min(end, row + kRowsPerTask);
      const int64_t key_begin = args.spec.FirstVisible(plan.position(row)) / kPanelKeys * kPanelKeys,
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

// Where the parts of the same rows begin in the list of tasks, and how many there are.
struct SameRows {
  int64_t first_task, num_parts;
};

/// Gives every task the memory that it writes to, from what `lease` borrows: results where keys are split,
/// and, with `keeps_mass`, of all, with probabilities.
absl::Status GiveMemory(CpuContext& context, const Tiles& tiles, const AttentionArgs& args, bool keeps_mass,
                        absl::Span<const SameRows> groups, absl::Span<AttentionTask> tasks,
                        ScratchPool::Lease& lease) {
  const auto give = [&](float* memory) {
    int64_t words = 0;
    const auto take = [&](int64_t count) {
      float* taken = memory == nullptr ? nullptr : memory + words;
      words += RoundUp(count, kKeyStep);
      return taken;
    };
    for (const SameRows& group : groups) {
      if (group.num_parts == 1 && !keeps_mass) continue;
      // The parts' results lie one after the other.
      const int64_t floats = AttentionTaskRunner(tiles, args, tasks[group.first_task], {}).PartialFloats();
      float* partial = take(group.num_parts * floats);
      for (int64_t p = 0; p < group.num_parts; ++p) {
        AttentionTask& task = tasks[group.first_task + p];
        task.partial = memory == nullptr ? nullptr : partial + p * floats;
        if (!keeps_mass) continue;
        const AttentionTaskRunner runner(tiles, args, task, {});
        task.kept = reinterpret_cast<uint32_t*>(take(runner.KeptWords()));
        task.kept_max = take(runner.KeptMaxFloats());
        task.mass = take(runner.MassFloats());
      }
    }
    return words * static_cast<int64_t>(sizeof(float));
  };
  const int64_t bytes = give(nullptr);
  if (bytes == 0) return absl::OkStatus();
  lease = context.scratch.Borrow(bytes);
  if (!lease) {
    return absl::ResourceExhaustedError(
        absl::StrCat("SelectiveAttention: no memory for ", bytes, " bytes of partial sums"));
  }
  give(reinterpret_cast<float*>(lease.data()));
  return absl::OkStatus();
}

/// mass: of all sequences, added to; null: nobody asks for it.
absl::Status RunUnits(CpuContext& context, const AttentionArgs& args, absl::Span<KvUnit> units,
                      MatrixView out, float* mass) {
  const Tiles& tiles = AttentionTiles(context, args.pages);
  ScratchPool::Lease kv_lease;
  absl::Status status =
      FindPanels(context, tiles, args.plan, args.pages, /*with_values=*/true, units, kv_lease);
  if (!status.ok()) return status;
  ListMemory lists(context.scratch);
  std::pmr::vector<AttentionTask> tasks =
      MakeTasks(args, units, context.pool.num_threads(), lists.resource());
  std::pmr::vector<SameRows> groups(lists.resource());
  for (size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
    while (end < tasks.size() && tasks[begin].SameRows(tasks[end])) ++end;
    groups.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)});
  }
  ScratchPool::Lease lease;
  status =
      GiveMemory(context, tiles, args, /*keeps_mass=*/mass != nullptr, groups, absl::MakeSpan(tasks), lease);
  if (!status.ok()) return status;

  // Later rows see more keys: the longest tasks first, so that the threads finish together.
  std::pmr::vector<const AttentionTask*> order(lists.resource());
  order.reserve(tasks.size());
  for (const AttentionTask& task : tasks) order.push_back(&task);
  const auto cost = [](const AttentionTask* t) { return (t->row_end - t->row_begin) * t->num_keys(); };
  std::sort(order.begin(), order.end(), [&](const AttentionTask* a, const AttentionTask* b) {
    return std::pair(-cost(a), a) < std::pair(-cost(b), b);
  });
  context.pool.ParallelFor(static_cast<int64_t>(order.size()),
                           [&](int64_t i) { AttentionTaskRunner(tiles, args, *order[i], out).Run(); });
  context.pool.ParallelFor(static_cast<int64_t>(groups.size()), [&](int64_t i) {
    const AttentionTask& first = tasks[groups[i].first_task];
    if (first.partial != nullptr) AttentionTaskRunner(tiles, args, first, out).Merge(groups[i].num_parts);
  });
  if (mass == nullptr) return absl::OkStatus();

  std::pmr::vector<absl::Span<const AttentionTask>> parts(tasks.size(), lists.resource());
  for (const SameRows& group : groups) {
    std::fill_n(parts.begin() + group.first_task, group.num_parts,
                absl::MakeConstSpan(tasks).subspan(group.first_task, group.num_parts));
  }
  context.pool.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    AttentionTaskRunner(tiles, args, tasks[i], out).SumMass(parts[i]);
  });
  for (const AttentionTask& task : tasks) {  // in one order, whatever the threads did
    float* target = mass + args.plan.kv_offset(task.unit->sequence) + task.key_begin;
    for (int64_t key = 0; key < task.num_keys(); ++key) target[key] += task.mass[key];
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BlockedAttention(CpuContext& context, const AttentionArgs& args, MatrixView out, float* mass) {
  const HostBatchPlan& plan = args.plan;
  const int64_t key_bytes = 2 * args.pages.head_dim * SizeOf(AttentionDtype(context, args.pages));
  ListMemory lists(context.scratch);
  std::pmr::vector<KvUnit> all(lists.resource());
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    const int64_t begin = plan.row_begin(s), end = plan.row_end(s);
    if (end - begin <= kMaxDecodeRows) continue;
    const int64_t first_key = args.spec.FirstVisible(plan.position(begin)) / kPanelKeys * kPanelKeys;
    for (int32_t h = 0; h < args.pages.num_kv_heads; ++h) {
      all.push_back({.sequence = s, .kv_head = h, .begin = first_key, .end = plan.position(end - 1) + 1});
    }
  }
  for (size_t first = 0, next = 0; next < all.size(); first = next) {
    for (int64_t bytes = 0; next < all.size() && (next == first || bytes < kMaxPackedBytes); ++next) {
      bytes += (all[next].end - all[next].begin) * key_bytes;
    }
    absl::Status status =
        RunUnits(context, args, absl::MakeSpan(all).subspan(first, next - first), out, mass);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CpuSelectiveAttention(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  absl::Status status = BlockedAttention(context, args, out, /*mass=*/nullptr);
  return status.ok() ? DecodeAttention(context, args, out) : status;
}

absl::Status CpuSelectiveAttentionWithMass(CpuContext& context, const AttentionArgs& args, MatrixView out,
                                           MatrixView mass) {
  const HostBatchPlan& plan = args.plan;
  const int64_t element = SizeOf(AttentionDtype(context, args.pages));
  int64_t kept_bytes = 0;
  bool all_blocked = true;
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    const int64_t begin = plan.row_begin(s), end = plan.row_end(s);
    if (begin == end) continue;
    all_blocked = all_blocked && end - begin > kMaxDecodeRows;
    kept_bytes += (end - begin) * args.spec.num_heads * (int64_t{plan.position(end - 1)} + 1) * element;
  }
  if (!all_blocked || kept_bytes > kMaxKeptBytes) {
    absl::Status status = CpuAttentionMass(context, args, mass);
    return status.ok() ? CpuSelectiveAttention(context, args, out) : status;
  }
  auto* sums = static_cast<float*>(mass.data);
  std::fill_n(sums, mass.cols, 0.0f);
  return BlockedAttention(context, args, out, sums);
}

}  // namespace kvblend::kernels
