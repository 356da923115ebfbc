// Attention of few rows: keys and values are read once, straight from their pages, and the keys are split
// over the threads; the partial softmaxes are merged at the end.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles.h"
#include "kernels/host/page_codec.h"

namespace kvblend::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr int64_t kKeysPerStep = 128;  // a multiple of kKeyStep; a step stays in the first-level cache
// Some ten microseconds of work. The same whatever else is computed, so that a row's result does not depend
// on the others.
constexpr int64_t kKeysPerPart = 512;

// The keys [begin, end) of one row and one kv head.
struct Part {
  int64_t row;
  int32_t kv_head;
  int64_t begin, end;
};

// Keys or values as they lie in one page, or in working memory.
struct Run {
  int64_t key, count;
  const std::byte* rows;  // [count, head_dim]
  DataType dtype;
  const std::byte* next;  // what follows, where it is not fetched already
};

// The runs of one part's keys, or of its values: those of int8 pages as `dtype`.
class PageRuns {
 public:
  PageRuns(const AttentionArgs& args, const Part& part, const PageValues& source, DataType dtype)
      : args_(args),
        part_(part),
        source_(source),
        dtype_(dtype),
        sequence_(args.plan.sequence_of_row(part.row)) {}

  template <typename Body>
  void ForEach(int64_t begin, int64_t end, const Body& body) const {
    for (int64_t key = begin; key < end;) {
      const int64_t count = std::min(end - key, args_.pages.page_size - key % args_.pages.page_size);
      body(source_.dtype == DataType::kInt8 ? Decoded(key, count)
                                            : Run{key, count, At(key), source_.dtype, After(key + count)});
      key += count;
    }
  }

 private:
  int64_t Slot(int64_t key) const {
    return args_.plan.Slot(args_.pages, sequence_, part_.kv_head, static_cast<int32_t>(key));
  }
  const std::byte* At(int64_t key) const {
    return static_cast<const std::byte*>(source_.data) + Slot(key) * SizeOf(source_.dtype);
  }
  // Runs lie apart in memory: what comes after one is fetched while that is multiplied.
  const std::byte* After(int64_t key) const { return key < part_.end ? At(key) : nullptr; }

  Run Decoded(int64_t key, int64_t count) const {
    const int64_t head_dim = args_.pages.head_dim, slot = Slot(key);
    auto* rows = ThreadScratch<std::byte>(ScratchSlot::kHeads, count * head_dim * SizeOf(dtype_));
    simd::DequantiseHeads(source_.CodesAt(slot), source_.StepsAt(slot), count, head_dim, dtype_, rows,
                          reinterpret_cast<const int8_t*>(After(key + count)));
    return {key, count, rows, dtype_, nullptr};
  }

  const AttentionArgs& args_;
  const Part& part_;
  const PageValues source_;
  const DataType dtype_;
  const int64_t sequence_;
};

// Per head of the group: maximum, sum, and head_dim weighted values not yet divided by the sum. `dtype`: of
// the products' operands
void RunPart(const AttentionArgs& args, DataType dtype, const Part& part, float* max, float* sum,
             float* values) {
  const int64_t group = args.group(), head_dim = args.pages.head_dim;
  const PageRuns keys_of_part(args, part, PageValues::Keys(args.pages), dtype),
      values_of_part(args, part, PageValues::Values(args.pages), dtype);
  const Tiles& tiles = simd::GetTiles(DataType::kF32);
  std::byte* queries = ThreadScratch<std::byte>(ScratchSlot::kQuery, group * head_dim * SizeOf(dtype));
  float* scores = ThreadScratch<float>(ScratchSlot::kScores, group * kKeysPerStep);
  for (int64_t g = 0; g < group; ++g) {
    simd::ScaleRow(args.query(part.row, part.kv_head * group + g), args.scale * kLog2E,
                   queries + g * head_dim * SizeOf(dtype), dtype, head_dim);
  }
  std::fill(max, max + group, -std::numeric_limits<float>::infinity());
  std::fill(sum, sum + group, 0.0f);
  std::fill(values, values + group * head_dim, 0.0f);
  for (int64_t step = part.begin; step < part.end; step += kKeysPerStep) {
    const int64_t step_end = std::min(part.end, step + kKeysPerStep), keys = step_end - step;
    keys_of_part.ForEach(step, step_end, [&](const Run& run) {
      float* target = scores + (run.key - step);
      if (dtype == DataType::kBF16) {
        simd::KeyDotsBf16(queries, group, run.rows, run.next, run.count, head_dim, target, kKeysPerStep);
      } else {
        simd::KeyDots(reinterpret_cast<const float*>(queries), group, run.rows, run.dtype, run.count,
                      head_dim, target, kKeysPerStep);
      }
    });
    for (int64_t g = 0; g < group; ++g) {
      float* row = scores + g * kKeysPerStep;
      const float alpha =
          tiles.softmax(row, {0, keys}, RoundUp(keys, kKeyStep), max + g, sum + g, /*probabilities=*/row);
      float* value = values + g * head_dim;
      if (alpha != 1.0f) simd::ScaleRow(value, alpha, value, DataType::kF32, head_dim);
    }
    values_of_part.ForEach(step, step_end, [&](const Run& run) {
      const float* weights = scores + (run.key - step);
      if (dtype == DataType::kBF16) {
        simd::AddWeightedValuesBf16(weights, kKeysPerStep, group, run.rows, run.next, run.count, head_dim,
                                    values);
      } else {
        simd::AddWeightedValues(weights, kKeysPerStep, group, run.rows, run.dtype, run.count, head_dim,
                                values);
      }
    });
  }
}

}  // namespace

absl::Status DecodeAttention(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  const HostBatchPlan& plan = args.plan;
  const int64_t group = args.group(), head_dim = args.pages.head_dim;
  ListMemory lists(context.scratch);
  std::pmr::vector<int64_t> rows(lists.resource());
  rows.reserve(plan.num_rows());
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    if (plan.row_end(s) - plan.row_begin(s) > kMaxDecodeRows) continue;
    for (int64_t row = plan.row_begin(s); row < plan.row_end(s); ++row) {
      rows.push_back(row);
    }
  }
  if (rows.empty()) return absl::OkStatus();

  std::pmr::vector<Part> parts(lists.resource());
  for (const int64_t row : rows) {
    const int64_t begin = plan.FirstVisible(plan.position(row)), end = int64_t{plan.position(row)} + 1;
    for (int32_t h = 0; h < args.pages.num_kv_heads; ++h) {
      for (int64_t key = begin; key < end; key += kKeysPerPart) {
        parts.push_back({row, h, key, std::min(end, key + kKeysPerPart)});
      }
    }
  }
  const int64_t part_floats = group * (head_dim + 2);
  ScratchPool::Lease lease = context.scratch.Borrow(parts.size() * part_floats * sizeof(float));
  if (!lease) {
    return absl::ResourceExhaustedError(
        absl::StrCat("SelectiveAttention: no memory for ", parts.size(), " parts"));
  }
  auto* results = reinterpret_cast<float*>(lease.data());
  const bool bf16 = (args.pages.dtype == DataType::kBF16 || args.pages.dtype == DataType::kInt8) &&
                    AttentionDtype(context, args.pages) == DataType::kBF16 && head_dim % 32 == 0 &&
                    simd::HasBf16Dots();
  const DataType dtype = bf16 ? DataType::kBF16 : DataType::kF32;
  context.pool.ParallelFor(static_cast<int64_t>(parts.size()), [&](int64_t i) {
    float* result = results + i * part_floats;
    RunPart(args, dtype, parts[i], result, result + group, result + 2 * group);
  });

  // Parts of one row and kv head are neighbours.
  float* merged = ThreadScratch<float>(ScratchSlot::kOutput, head_dim);
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    while (end < parts.size() && parts[end].row == parts[begin].row &&
           parts[end].kv_head == parts[begin].kv_head) {
      ++end;
    }
    for (int64_t g = 0; g < group; ++g) {
      float max = -std::numeric_limits<float>::infinity(), sum = 0;
      for (size_t p = begin; p < end; ++p) max = std::max(max, results[p * part_floats + g]);
      std::fill(merged, merged + head_dim, 0.0f);
      for (size_t p = begin; p < end; ++p) {
        const float* result = results + p * part_floats;
        const float weight = std::exp2(result[g] - max);
        sum += result[group + g] * weight;
        simd::AddScaledRow(result + 2 * group + g * head_dim, weight, merged, head_dim);
      }
      const int64_t head = parts[begin].kv_head * group + g;
      std::byte* target = static_cast<std::byte*>(out.data) +
                          (parts[begin].row * out.row_stride + head * head_dim) * SizeOf(out.dtype);
      simd::ScaleRow(merged, 1.0f / sum, target, out.dtype, head_dim);
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
