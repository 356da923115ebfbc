// Attention of few rows: keys and values are read once, straight from their pages, and the keys are split
// over the threads; the partial softmaxes are merged at the end.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory_resource>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/page_codec.h"

namespace kvblend::kernels {
namespace {

// K and V of one part: small enough that threads share a short row evenly.
constexpr int64_t kBytesPerPart = 96 << 10;
// Parts that one task reads, first all of their keys, then all of their values: where a task begins, and
// between keys and values, memory has to be waited for. Fewer where there would not be enough tasks.
constexpr int64_t kMaxPartsPerTask = 4;
constexpr int64_t kTasksPerThread = 4;

// Keys of one part: whole pages, mostly. They follow from the model's shape and nothing else, so that a row's
// result does not depend on what is computed beside it; tasks may, for they leave every part's sums alone.
int64_t KeysPerPart(const KvPagesView& pages) {
  const int64_t bytes_per_key = 2 * int64_t{pages.num_kv_heads} * pages.head_dim * SizeOf(pages.dtype);
  return RoundUp(std::clamp<int64_t>(kBytesPerPart / bytes_per_key, 1, 512), kPanelKeys);
}

// The keys [begin, end) of one row, of all heads: a page's heads lie one after the other, and so do pages
// that were allocated together, which the processor fetches ahead by itself. `begin` is a multiple of
// kPanelKeys; keys before `visible` are read, but have no weight.
struct Part {
  int64_t row;
  int64_t begin, end;
  int64_t visible;
};

// What a part computes, per query head: the largest score, the sum of the probabilities relative to it, and
// the values weighted with them, [num_heads, head_dim].
struct PartResult {
  PartResult(float* memory, int64_t num_heads) : max(memory), sum(max + num_heads), values(sum + num_heads) {}
  static int64_t Floats(int64_t num_heads, int64_t head_dim) { return num_heads * (head_dim + 2); }

  float* max;
  float* sum;
  float* values;
};

// Keys or values of one kv head: rows as they lie in one page or in working memory, or one tile.
struct Run {
  int64_t key, count;
  int32_t kv_head;
  const std::byte* data;  // [count, head_dim], or a tile
  DataType dtype;
  const std::byte* next;  // what is read after them, to be fetched meanwhile; null: what lies behind them
};

// The runs of the keys of neighbouring parts, or of their values: those of int8 pages as `dtype`.
class PageRuns {
 public:
  PageRuns(const AttentionArgs& args, absl::Span<const Part> parts, const PageValues& source, DataType dtype)
      : args_(args),
        end_(parts.back().end),
        source_(source),
        dtype_(dtype),
        run_keys_(source.layout == PageLayout::kTiles ? kPageTile : args.pages.page_size),
        sequence_(args.plan.sequence_of_row(parts.front().row)) {}

  template <typename Body>
  void ForEach(int64_t begin, int64_t end, const Body& body) const {
    for (int64_t key = begin; key < end;) {
      const int64_t count = std::min(end - key, run_keys_ - key % run_keys_);
      for (int32_t head = 0; head < args_.pages.num_kv_heads; ++head) {
        body(source_.dtype == DataType::kInt8 ? Decoded(key, count, head) : Stored(key, count, head));
      }
      key += count;
    }
  }

 private:
  int64_t Slot(int64_t key, int32_t head) const {
    return args_.plan.Slot(args_.pages, sequence_, head, static_cast<int32_t>(key));
  }
  const std::byte* At(int64_t slot) const {
    return static_cast<const std::byte*>(source_.data) + slot * SizeOf(source_.dtype);
  }
  // What is read after a run; null after the last.
  const std::byte* Next(int64_t key, int64_t count, int32_t head) const {
    if (head + 1 < args_.pages.num_kv_heads) return At(Slot(key, head + 1));
    return key + count < end_ ? At(Slot(key + count, 0)) : nullptr;
  }

  Run Stored(int64_t key, int64_t count, int32_t head) const {
    const std::byte* data = At(Slot(key, head));
    const std::byte* next = Next(key, count, head);
    // Rows are fetched some way ahead, so what follows them needs no help.
    const bool adjacent = next == data + count * args_.pages.head_dim * SizeOf(source_.dtype);
    if (source_.layout == PageLayout::kRows && adjacent) next = nullptr;
    return {key, count, head, data, source_.dtype, next};
  }

  Run Decoded(int64_t key, int64_t count, int32_t head) const {
    const int64_t head_dim = args_.pages.head_dim, slot = Slot(key, head);
    auto* rows = ThreadScratch<std::byte>(ScratchSlot::kHeads, count * head_dim * SizeOf(dtype_));
    simd::DequantizeHeads(source_.CodesAt(slot), source_.StepsAt(slot), count, head_dim, dtype_, rows,
                          reinterpret_cast<const int8_t*>(Next(key, count, head)));
    return {key, count, head, rows, dtype_, /*next=*/rows};
  }

  const AttentionArgs& args_;
  const int64_t end_;  // of the last part
  const PageValues source_;
  const DataType dtype_;
  const int64_t run_keys_;
  const int64_t sequence_;
};

// The two products, with operands of one type in one layout. queries: [num_heads, head_dim]
class Products {
 public:
  Products(const AttentionArgs& args, DataType dtype)
      : group_(args.group()), head_dim_(args.pages.head_dim), dtype_(dtype), layout_(args.pages.layout) {}

  void Scores(const std::byte* queries, const Run& run, float* scores, int64_t stride) const {
    const std::byte* query = queries + run.kv_head * group_ * head_dim_ * SizeOf(dtype_);
    if (layout_ == PageLayout::kTiles) {
      simd::TileKeyDotsBf16(query, group_, run.data, run.next, run.count, head_dim_, scores, stride);
    } else if (dtype_ == DataType::kBF16) {
      simd::KeyDotsBf16(query, group_, run.data, run.next, run.count, head_dim_, scores, stride);
    } else {
      simd::KeyDots(reinterpret_cast<const float*>(query), group_, run.data, run.dtype, run.next, run.count,
                    head_dim_, scores, stride);
    }
  }

  void AddValues(const float* weights, int64_t stride, const Run& run, float* out) const {
    if (layout_ == PageLayout::kTiles) {
      simd::AddWeightedTileBf16(weights, stride, group_, run.data, run.next, run.count, head_dim_, out);
    } else if (dtype_ == DataType::kBF16) {
      simd::AddWeightedValuesBf16(weights, stride, group_, run.data, run.next, run.count, head_dim_, out);
    } else {
      simd::AddWeightedValues(weights, stride, group_, run.data, run.dtype, run.next, run.count, head_dim_,
                              out);
    }
  }

 private:
  const int64_t group_, head_dim_;
  const DataType dtype_;
  const PageLayout layout_;
};

// The type of both products' operands. bf16 saves widening what pages hold, so it is taken wherever the pages
// and the choice of arithmetic allow it, also where products of matrices are faster in codes.
DataType ProductsDtype(const CpuContext& context, const KvPagesView& pages) {
  const bool of_pages = pages.dtype == DataType::kBF16 || pages.dtype == DataType::kInt8;
  const bool of_choice = context.value_dtype == DataType::kBF16;
  return of_pages && of_choice && pages.head_dim % 32 == 0 && simd::HasBf16Dots() ? DataType::kBF16
                                                                                  : DataType::kF32;
}

// Neighbouring parts of one row. `dtype`: of the products' operands
void RunParts(const AttentionArgs& args, DataType dtype, absl::Span<const Part> parts,
              absl::Span<const PartResult> results) {
  const int64_t group = args.group(), head_dim = args.pages.head_dim, num_heads = args.spec.num_heads;
  const PageRuns keys_of_parts(args, parts, PageValues::Keys(args.pages), dtype),
      values_of_parts(args, parts, PageValues::Values(args.pages), dtype);
  const Tiles& tiles = simd::GetTiles(DataType::kF32);
  const int64_t row = parts.front().row;
  std::byte* queries = ThreadScratch<std::byte>(ScratchSlot::kQuery, num_heads * head_dim * SizeOf(dtype));
  // Parts but a row's last have whole vectors of keys, so no other part's scores lie in this one's.
  const int64_t begin = parts.front().begin, end = parts.back().end;
  const int64_t stride = RoundUp(end - begin, kKeyStep);
  float* scores = ThreadScratch<float>(ScratchSlot::kScores, num_heads * stride);
  const auto scores_of = [&](const Run& run) {
    return scores + run.kv_head * group * stride + (run.key - begin);
  };
  simd::ScaleRow(args.query(row, 0), args.spec.scale * kLog2E, queries, dtype, num_heads * head_dim);
  const Products products(args, dtype);
  keys_of_parts.ForEach(begin, end,
                        [&](const Run& run) { products.Scores(queries, run, scores_of(run), stride); });
  for (size_t i = 0; i < parts.size(); ++i) {
    const PartResult& out = results[i];
    const int64_t keys = parts[i].end - parts[i].begin;
    std::fill(out.max, out.max + num_heads, -std::numeric_limits<float>::infinity());
    std::fill(out.sum, out.sum + num_heads, 0.0f);
    for (int64_t head = 0; head < num_heads; ++head) {
      float* of_head = scores + head * stride + (parts[i].begin - begin);
      args.CapScores(of_head, keys);
      tiles.softmax(of_head, {parts[i].visible - parts[i].begin, keys}, RoundUp(keys, kKeyStep),
                    out.max + head, out.sum + head,
                    /*probabilities=*/of_head);
    }
    std::fill(out.values, out.values + num_heads * head_dim, 0.0f);
    values_of_parts.ForEach(parts[i].begin, parts[i].end, [&](const Run& run) {
      products.AddValues(scores_of(run), stride, run, out.values + run.kv_head * group * head_dim);
    });
  }
}

// One head of one row from the results of the row's parts. merged: [head_dim] of working memory
void MergeHead(const AttentionArgs& args, absl::Span<const PartResult> parts, int64_t head, float* merged,
               std::byte* out, DataType dtype) {
  const int64_t head_dim = args.pages.head_dim;
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
  for (const PartResult& part : parts) max = std::max(max, part.max[head]);
  std::fill(merged, merged + head_dim, 0.0f);
  for (const PartResult& part : parts) {
    const float weight = std::exp2(part.max[head] - max);
    sum += part.sum[head] * weight;
    simd::AddScaledRow(part.values + head * head_dim, weight, merged, head_dim);
  }
  simd::ScaleRow(merged, 1.0f / args.Denominator(head, max, sum), out, dtype, head_dim);
}

}  // namespace

absl::Status DecodeAttention(CpuContext& context, const AttentionArgs& args, MatrixView out) {
  const HostBatchPlan& plan = args.plan;
  const int64_t head_dim = args.pages.head_dim, num_heads = args.spec.num_heads;
  const int64_t keys_per_part = KeysPerPart(args.pages);
  ListMemory lists(context.scratch);
  std::pmr::vector<Part> parts(lists.resource());
  std::pmr::vector<int64_t> first_part(lists.resource());  // of each row, and where the last one's end
  for (int64_t s = 0; s < plan.num_sequences(); ++s) {
    if (plan.row_end(s) - plan.row_begin(s) > kMaxDecodeRows) continue;
    for (int64_t row = plan.row_begin(s); row < plan.row_end(s); ++row) {
      first_part.push_back(static_cast<int64_t>(parts.size()));
      const int64_t first = args.spec.FirstVisible(plan.position(row)), end = int64_t{plan.position(row)} + 1;
      for (int64_t key = first / kPanelKeys * kPanelKeys; key < end; key += keys_per_part) {
        parts.push_back({row, key, std::min(end, key + keys_per_part), std::max(first, key)});
      }
    }
  }
  if (parts.empty()) return absl::OkStatus();
  const auto num_parts = static_cast<int64_t>(parts.size()),
             num_rows = static_cast<int64_t>(first_part.size());
  first_part.push_back(num_parts);

  const int64_t part_floats = PartResult::Floats(num_heads, head_dim);
  ScratchPool::Lease lease = context.scratch.Borrow(num_parts * part_floats * sizeof(float));
  if (!lease) {
    return absl::ResourceExhaustedError(
        absl::StrCat("SelectiveAttention: no memory for ", num_parts, " parts"));
  }
  std::pmr::vector<PartResult> results(lists.resource());
  results.reserve(num_parts);
  for (int64_t i = 0; i < num_parts; ++i) {
    results.emplace_back(reinterpret_cast<float*>(lease.data()) + i * part_floats, num_heads);
  }
  const DataType dtype = ProductsDtype(context, args.pages);

  const int64_t parts_per_task =
      std::clamp<int64_t>(num_parts / (kTasksPerThread * context.pool.num_threads()), 1, kMaxPartsPerTask);
  std::pmr::vector<int64_t> tasks(lists.resource());  // the first part of each, and where the last one's end
  for (int64_t i = 0; i < num_rows; ++i) {
    for (int64_t part = first_part[i]; part < first_part[i + 1]; part += parts_per_task)
      tasks.push_back(part);
  }
  tasks.push_back(num_parts);
  context.pool.ForStreams(static_cast<int64_t>(tasks.size()) - 1, [&](int64_t i) {
    const int64_t count = tasks[i + 1] - tasks[i];
    RunParts(args, dtype, absl::MakeConstSpan(parts).subspan(tasks[i], count),
             absl::MakeConstSpan(results).subspan(tasks[i], count));
  });

  const int64_t bytes_per_row = num_parts / num_rows * part_floats * static_cast<int64_t>(sizeof(float));
  ForRows(context.pool, num_rows, bytes_per_row, [&](int64_t begin, int64_t end) {
    float* merged = ThreadScratch<float>(ScratchSlot::kOutput, head_dim);
    for (int64_t i = begin; i < end; ++i) {
      const auto of_row =
          absl::MakeConstSpan(results).subspan(first_part[i], first_part[i + 1] - first_part[i]);
      std::byte* target =
          static_cast<std::byte*>(out.data) + parts[first_part[i]].row * out.row_stride * SizeOf(out.dtype);
      for (int64_t head = 0; head < num_heads; ++head) {
        MergeHead(args, of_row, head, merged, target + head * head_dim * SizeOf(out.dtype), out.dtype);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
