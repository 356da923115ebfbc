// Attention of many rows: blocks of query rows against blocks of keys with an online softmax (Milakov and
// Gimelshein, 2018; Dao et al., FlashAttention, 2022). The query rows of all heads that share a kv head form
// the rows of one product. Rows are ordered by position, so that the rows which a block of keys concerns are
// contiguous.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/packed_kv.h"
#include "kernels/cpu/simd.h"

namespace kvblend::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
// Row counts are rounded up to this, so that few shapes of products exist.
constexpr int64_t kRowStep = 8;
// Products reach full speed at about this many rows x heads.
constexpr int64_t kProductRows = 192;
// KV copied at a time; longer contexts go head by head.
constexpr int64_t kMaxPackedBytes = int64_t{256} << 20;

struct Task {
  const KvUnit* unit;
  int64_t row_begin, row_end;
};

class BlockedTask {
 public:
  BlockedTask(CpuContext& context, const AttentionArgs& args, const Task& task, MatrixView out)
      : context_(context),
        args_(args),
        task_(task),
        out_(out),
        dtype_(AttentionDtype(context, args.pages)),
        group_(args.group()),
        head_dim_(args.pages.head_dim),
        rows_(task.row_end - task.row_begin),
        padded_rows_(RoundUp(rows_, kRowStep)) {}

  absl::Status Run() {
    const int64_t m = padded_rows_ * group_;
    queries_ = ThreadScratch<std::byte>(ScratchSlot::kQuery, m * head_dim_ * SizeOf(dtype_));
    scores_ = ThreadScratch<float>(ScratchSlot::kScores, m * kKeyBlock);
    // In f32 the probabilities overwrite the scores.
    probabilities_ = dtype_ == DataType::kF32 ? reinterpret_cast<std::byte*>(scores_)
                                              : ThreadScratch<std::byte>(ScratchSlot::kProbabilities,
                                                                         m * kKeyBlock * SizeOf(dtype_));
    output_ = ThreadScratch<float>(ScratchSlot::kOutput, m * (head_dim_ + 2));
    max_ = output_ + m * head_dim_;
    sum_ = max_ + m;
    std::fill(output_, output_ + m * head_dim_, 0.0f);
    std::fill(max_, max_ + m, -std::numeric_limits<float>::infinity());
    std::fill(sum_, sum_ + m, 0.0f);
    GatherQueries();
    const int64_t last = Position(rows_ - 1);
    for (int64_t key = FirstVisible(0) / kKeyBlock * kKeyBlock; key <= last; key += kKeyBlock) {
      if (absl::Status status = AddKeyBlock(key); !status.ok()) return status;
    }
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t g = 0; g < group_; ++g) {
        const int64_t r = i * group_ + g, head = task_.unit->kv_head * group_ + g;
        std::byte* target = static_cast<std::byte*>(out_.data) +
                            ((task_.row_begin + i) * out_.row_stride + head * head_dim_) * SizeOf(out_.dtype);
        simd::ScaleRow(output_ + r * head_dim_, 1.0f / sum_[r], target, out_.dtype, head_dim_);
      }
    }
    return absl::OkStatus();
  }

 private:
  int64_t Position(int64_t i) const { return args_.plan.position(task_.row_begin + i); }
  int64_t FirstVisible(int64_t i) const {
    return args_.plan.FirstVisible(args_.plan.position(task_.row_begin + i));
  }

  // Scaled by scale * log2(e), so that the softmax can use powers of two.
  void GatherQueries() {
    const int64_t row_bytes = head_dim_ * SizeOf(dtype_);
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t g = 0; g < group_; ++g) {
        simd::ScaleRow(args_.query(task_.row_begin + i, task_.unit->kv_head * group_ + g),
                       args_.scale * kLog2E, queries_ + (i * group_ + g) * row_bytes, dtype_, head_dim_);
      }
    }
    std::memset(queries_ + rows_ * group_ * row_bytes, 0, (padded_rows_ - rows_) * group_ * row_bytes);
  }

  absl::Status AddKeyBlock(int64_t key) {
    const KvUnit& unit = *task_.unit;
    const int64_t keys =
        std::min(RoundUp(std::min(unit.end, Position(rows_ - 1) + 1) - key, kKeyStep), kKeyBlock);
    // Rows before `first` stand before the block, rows from `end` on have it behind their window.
    int64_t first = 0, end = rows_;
    while (Position(first) < key) ++first;
    while (FirstVisible(end - 1) >= key + keys) --end;
    if (first >= end) return absl::OkStatus();  // a gap between the windows of two rows
    first = first / kRowStep * kRowStep;
    end = std::min(RoundUp(end, kRowStep), padded_rows_);
    const int64_t m = (end - first) * group_, offset = first * group_;
    const int64_t kv_offset = (key - unit.begin) * head_dim_ * SizeOf(dtype_);

    auto scores_gemm = context_.gemms.Get(
        {.dtype = dtype_, .layout = GemmLayout::kTransposed, .m = m, .n = keys, .k = head_dim_});
    if (!scores_gemm.ok()) return scores_gemm.status();
    absl::Status status =
        (*scores_gemm)->Run(queries_ + offset * head_dim_ * SizeOf(dtype_), unit.k + kv_offset, scores_);
    if (!status.ok()) return status;

    for (int64_t i = first; i < end; ++i) {
      const bool real = i < rows_;
      const int64_t visible_begin = real ? std::max<int64_t>(FirstVisible(i) - key, 0) : 0;
      const int64_t visible_end = real ? std::min(Position(i) + 1 - key, keys) : 0;
      for (int64_t g = 0; g < group_; ++g) {
        const int64_t r = i * group_ + g, local = r - offset;
        std::byte* target = probabilities_ + local * keys * SizeOf(dtype_);
        if (visible_begin >= visible_end) {
          std::memset(target, 0, keys * SizeOf(dtype_));
          continue;
        }
        const float alpha = simd::SoftmaxRow(scores_ + local * keys, visible_begin, visible_end, keys,
                                             max_ + r, sum_ + r, target, dtype_);
        float* row = output_ + r * head_dim_;
        if (alpha != 1.0f) simd::ScaleRow(row, alpha, row, DataType::kF32, head_dim_);
      }
    }

    auto values_gemm = context_.gemms.Get({.dtype = dtype_,
                                           .layout = GemmLayout::kRowMajor,
                                           .accumulate = true,
                                           .m = m,
                                           .n = head_dim_,
                                           .k = keys});
    if (!values_gemm.ok()) return values_gemm.status();
    return (*values_gemm)->Run(probabilities_, unit.v + kv_offset, output_ + offset * head_dim_);
  }

  CpuContext& context_;
  const AttentionArgs& args_;
  const Task& task_;
  const MatrixView out_;
  const DataType dtype_;
  const int64_t group_, head_dim_, rows_, padded_rows_;
  std::byte* queries_ = nullptr;        // [padded_rows, group, head_dim] of dtype
  float* scores_ = nullptr;             // [padded_rows, group, keys of the block]
  std::byte* probabilities_ = nullptr;  // the same of dtype
  float* output_ = nullptr;             // [padded_rows, group, head_dim], not yet divided by sum
  float* max_ = nullptr;                // [padded_rows, group]
  float* sum_ = nullptr;                // [padded_rows, group]
};

// Query rows per task: few enough that every thread gets several tasks.
int64_t RowsPerTask(int64_t total_rows, int64_t num_kv_heads, int64_t group, int num_threads) {
  int64_t rows = std::clamp<int64_t>(kProductRows / group / kRowStep * kRowStep, kRowStep, 64);
  while (rows > kRowStep && (total_rows + rows - 1) / rows * num_kv_heads < 4 * num_threads) {
    rows = std::max(kRowStep, rows / 2 / kRowStep * kRowStep);
  }
  return rows;
}

absl::Status RunUnits(CpuContext& context, const AttentionArgs& args, std::vector<KvUnit>& units,
                      int64_t rows_per_task, MatrixView out) {
  ScratchPool::Lease lease;
  absl::Status status = PackKv(context, args.plan, args.pages, AttentionDtype(context, args.pages),
                               /*with_values=*/true, units, lease);
  if (!status.ok()) return status;
  std::vector<Task> tasks;
  for (const KvUnit& unit : units) {
    const int64_t end = args.plan.row_end(unit.sequence);
    for (int64_t row = args.plan.row_begin(unit.sequence); row < end; row += rows_per_task) {
      tasks.push_back({&unit, row, std::min(end, row + rows_per_task)});
    }
  }
  // Later rows see more keys: the longest tasks first, so that the threads finish together.
  std::stable_sort(tasks.begin(), tasks.end(), [&](const Task& a, const Task& b) {
    return args.plan.position(a.row_end - 1) > args.plan.position(b.row_end - 1);
  });
  FirstError error;
  context.pool.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t i) {
    if (error.ok()) error.Update(BlockedTask(context, args, tasks[i], out).Run());
  });
  return error.status();
}

}  // namespace

absl::Status BlockedAttention(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  const HostBatchPlan& plan = args.plan;
  const int64_t key_bytes = 2 * args.pages.head_dim * SizeOf(AttentionDtype(context, args.pages));
  std::vector<KvUnit> all;
  int64_t total_rows = 0;
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    const int64_t begin = plan.row_begin(s), end = plan.row_end(s);
    if (end - begin <= kMaxDecodeRows) continue;
    total_rows += end - begin;
    const int64_t first_key = plan.FirstVisible(plan.position(begin)) / kKeyBlock * kKeyBlock;
    for (int32_t h = 0; h < args.pages.num_kv_heads; ++h) {
      all.push_back({.sequence = s, .kv_head = h, .begin = first_key, .end = plan.position(end - 1) + 1});
    }
  }
  const int64_t rows_per_task =
      RowsPerTask(total_rows, args.pages.num_kv_heads, args.group(), context.pool.num_threads());
  for (size_t next = 0; next < all.size();) {
    std::vector<KvUnit> units;
    for (int64_t bytes = 0; next < all.size() && (units.empty() || bytes < kMaxPackedBytes); ++next) {
      bytes += all[next].padded_keys() * key_bytes;
      units.push_back(all[next]);
    }
    if (absl::Status status = RunUnits(context, args, units, rows_per_task, out); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CpuSelectiveAttention(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  absl::Status status = BlockedAttention(context, args, out);
  return status.ok() ? DecodeAttention(context, args, out) : status;
}

}  // namespace kvblend::kernels
