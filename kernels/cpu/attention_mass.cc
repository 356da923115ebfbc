// The attention that rows pay to each cached position. The scores of a few dozen rows are kept whole: they
// are needed twice, before and after the softmax's sum is known.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/packed_kv.h"
#include "kernels/cpu/simd.h"

namespace kvblend::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr int64_t kRowStep = 8;  // row counts are rounded up to this, so that few shapes of products exist
constexpr int64_t kMaxRows = 64;
constexpr int64_t kMaxScoreBytes = int64_t{64} << 20;

// Rows [row_begin, row_end) of one sequence, all kv heads. `units` hold the sequence's keys, one per kv head.
class MassOfRows {
 public:
  MassOfRows(CpuContext& context, const AttentionArgs& args, const std::vector<KvUnit>& units,
             int64_t row_begin, int64_t row_end)
      : context_(context),
        args_(args),
        units_(units),
        dtype_(AttentionDtype(context, args.pages)),
        row_begin_(row_begin),
        rows_(row_end - row_begin),
        padded_rows_(RoundUp(rows_, kRowStep)),
        m_(padded_rows_ * args.group()),
        num_keys_(args.plan.position(row_end - 1) + 1 - units[0].begin),
        num_blocks_((num_keys_ + kKeyBlock - 1) / kKeyBlock) {}

  int64_t score_bytes() const {
    return args_.pages.num_kv_heads * num_blocks_ * m_ * kKeyBlock * static_cast<int64_t>(sizeof(float));
  }

  // Adds to mass [kv_len of the sequence].
  absl::Status AddTo(float* mass) {
    const int64_t head_dim = args_.pages.head_dim, num_kv_heads = args_.pages.num_kv_heads;
    ScratchPool::Lease score_lease = context_.scratch.Borrow(score_bytes());
    const int64_t query_bytes = m_ * head_dim * SizeOf(dtype_);
    ScratchPool::Lease query_lease = context_.scratch.Borrow(num_kv_heads * query_bytes);
    if (!score_lease || !query_lease) {
      return absl::ResourceExhaustedError(absl::StrCat("AttentionMass: no memory for ",
                                                       score_bytes() + num_kv_heads * query_bytes, " bytes"));
    }
    scores_ = reinterpret_cast<float*>(score_lease.data());
    queries_ = query_lease.data();
    inverse_sums_.assign(num_kv_heads * m_, 0.0f);
    GatherQueries();
    FirstError error;
    context_.pool.ParallelFor(num_kv_heads * num_blocks_, [&](int64_t i) {
      if (error.ok()) error.Update(ComputeScores(i / num_blocks_, i % num_blocks_));
    });
    if (!error.ok()) return error.status();
    context_.pool.ParallelFor(num_kv_heads * rows_, [&](int64_t i) { Softmax(i / rows_, i % rows_); });
    context_.pool.ParallelFor(num_blocks_, [&](int64_t block) { SumColumns(block, mass); });
    return absl::OkStatus();
  }

 private:
  // Scores of kv head `head`, key block `block`: [m, Stride(block)].
  float* Scores(int64_t head, int64_t block) {
    return scores_ + (head * num_blocks_ + block) * m_ * kKeyBlock;
  }
  int64_t Stride(int64_t block) const { return RoundUp(KeysIn(block), kKeyStep); }
  int64_t KeysIn(int64_t block) const { return std::min(kKeyBlock, num_keys_ - block * kKeyBlock); }

  void GatherQueries() {
    const int64_t head_dim = args_.pages.head_dim, group = args_.group(),
                  row_bytes = head_dim * SizeOf(dtype_);
    for (int64_t h = 0; h < args_.pages.num_kv_heads; ++h) {
      std::byte* head = queries_ + h * m_ * row_bytes;
      for (int64_t r = 0; r < rows_ * group; ++r) {
        simd::ScaleRow(args_.query(row_begin_ + r / group, h * group + r % group), args_.scale * kLog2E,
                       head + r * row_bytes, dtype_, head_dim);
      }
      std::memset(head + rows_ * group * row_bytes, 0, (m_ - rows_ * group) * row_bytes);
    }
  }

  absl::Status ComputeScores(int64_t head, int64_t block) {
    const int64_t head_dim = args_.pages.head_dim, row_bytes = head_dim * SizeOf(dtype_);
    auto gemm = context_.gemms.Get(
        {.dtype = dtype_, .layout = GemmLayout::kTransposed, .m = m_, .n = Stride(block), .k = head_dim});
    if (!gemm.ok()) return gemm.status();
    return (*gemm)->Run(queries_ + head * m_ * row_bytes, units_[head].k + block * kKeyBlock * row_bytes,
                        Scores(head, block));
  }

  // Turns the scores of one row and its group of heads into powers of two of their distance to the maximum.
  void Softmax(int64_t head, int64_t row) {
    const int64_t first = units_[head].begin;
    const int32_t position = args_.plan.position(row_begin_ + row);
    const int64_t visible_begin = args_.plan.FirstVisible(position) - first,
                  visible_end = position + 1 - first;
    for (int64_t g = 0; g < args_.group(); ++g) {
      const int64_t r = row * args_.group() + g;
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (const bool sum_pass : {false, true}) {
        for (int64_t block = 0; block < num_blocks_; ++block) {
          float* values = Scores(head, block) + r * Stride(block);
          const int64_t begin = std::max<int64_t>(visible_begin - block * kKeyBlock, 0);
          const int64_t end = std::min(visible_end - block * kKeyBlock, KeysIn(block));
          if (begin < end) {
            if (sum_pass) sum += simd::Exp2Row(values, begin, end, KeysIn(block), max);
            if (!sum_pass) max = std::max(max, simd::MaxOf(values + begin, end - begin));
          } else if (sum_pass) {
            std::memset(values, 0, KeysIn(block) * sizeof(float));
          }
        }
      }
      inverse_sums_[head * m_ + r] = 1.0f / (sum * static_cast<float>(args_.num_heads));
    }
  }

  void SumColumns(int64_t block, float* mass) {
    float* target = mass + units_[0].begin + block * kKeyBlock;
    for (int64_t h = 0; h < args_.pages.num_kv_heads; ++h) {
      for (int64_t r = 0; r < rows_ * args_.group(); ++r) {
        simd::AddScaledRow(Scores(h, block) + r * Stride(block), inverse_sums_[h * m_ + r], target,
                           KeysIn(block));
      }
    }
  }

  CpuContext& context_;
  const AttentionArgs& args_;
  const std::vector<KvUnit>& units_;
  const DataType dtype_;
  const int64_t row_begin_, rows_, padded_rows_;
  const int64_t m_;  // padded_rows * group
  const int64_t num_keys_, num_blocks_;
  float* scores_ = nullptr;          // [num_kv_heads, num_blocks, m, keys of the block]
  std::byte* queries_ = nullptr;     // [num_kv_heads, m, head_dim] of dtype
  std::vector<float> inverse_sums_;  // [num_kv_heads, m], already divided by num_heads
};

}  // namespace

absl::Status CpuAttentionMass(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  const HostBatchPlan& plan = args.plan;
  auto* mass = static_cast<float*>(out.data);
  std::fill(mass, mass + out.cols, 0.0f);
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    const int64_t begin = plan.row_begin(s), end = plan.row_end(s);
    if (begin == end) continue;
    std::vector<KvUnit> units;
    for (int32_t h = 0; h < args.pages.num_kv_heads; ++h) {
      units.push_back({.sequence = s,
                       .kv_head = h,
                       .begin = plan.FirstVisible(plan.position(begin)) / kKeyBlock * kKeyBlock,
                       .end = plan.position(end - 1) + 1});
    }
    ScratchPool::Lease lease;
    absl::Status status = PackKv(context, plan, args.pages, AttentionDtype(context, args.pages),
                                 /*with_values=*/false, units, lease);
    if (!status.ok()) return status;
    for (int64_t row = begin; row < end;) {
      int64_t count = std::min(kMaxRows, end - row);
      while (count > kRowStep &&
             MassOfRows(context, args, units, row, row + count).score_bytes() > kMaxScoreBytes) {
        count = std::max(kRowStep, count / 2);
      }
      status = MassOfRows(context, args, units, row, row + count).AddTo(mass + plan.kv_offset(s));
      if (!status.ok()) return status;
      row += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
