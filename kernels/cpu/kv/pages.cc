// KV on its way into pages of either layout: fresh, or from its stored form.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cpu/kv/section_rows.h"
#include "kernels/cpu/kv/sections.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/page_codec.h"

namespace kvblend::kernels {
namespace {

void ScatterRowToCodes(const KvTarget& target, int64_t row, const void* k, const void* v, DataType dtype) {
  const KvPagesView& pages = target.pages;
  const PageValues keys = PageValues::Keys(pages), values = PageValues::Values(pages);
  const int64_t head_dim = pages.head_dim, num_values = pages.num_kv_heads * head_dim;
  const int32_t position = target.plan.position(row), sequence = target.plan.sequence_of_row(row);
  auto* heads = ThreadScratch<float>(ScratchSlot::kHeads, 2 * num_values);
  simd::RotateHeadsTo(target.rope.layout(), target.rope.cos(position), target.rope.sin(position), head_dim,
                      pages.num_kv_heads, k, dtype, heads, DataType::kF32, head_dim);
  simd::ConvertRow(v, dtype, heads + num_values, DataType::kF32, num_values);
  for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
    const int64_t slot = target.plan.Slot(pages, sequence, h, position);
    const float* head = heads + h * head_dim;
    simd::QuantizeHead(head, head_dim, keys.CodesAt(slot), keys.StepsAt(slot));
    simd::QuantizeHead(head + num_values, head_dim, values.CodesAt(slot), values.StepsAt(slot));
  }
}

/// Into pages of layout kRows.
void ScatterRow(const KvTarget& target, int64_t row, const void* k, const void* v, DataType dtype) {
  const KvPagesView& pages = target.pages;
  if (pages.dtype == DataType::kInt8) return ScatterRowToCodes(target, row, k, v, dtype);
  const int32_t position = target.plan.position(row);
  const int64_t slot =
      target.plan.Slot(pages, target.plan.sequence_of_row(row), 0, position) * SizeOf(pages.dtype);
  const int64_t head_stride = int64_t{pages.page_size} * pages.head_dim;
  simd::RotateHeadsTo(target.rope.layout(), target.rope.cos(position), target.rope.sin(position),
                      pages.head_dim, pages.num_kv_heads, k, dtype, static_cast<std::byte*>(pages.k) + slot,
                      pages.dtype, head_stride);
  const auto* values = static_cast<const std::byte*>(v);
  auto* out = static_cast<std::byte*>(pages.v) + slot;
  for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
    simd::ConvertRow(values + h * pages.head_dim * SizeOf(dtype), dtype,
                     out + h * head_stride * SizeOf(pages.dtype), pages.dtype, pages.head_dim);
  }
}

/// Whether the fused loads take the section; others are decoded into rows of f32 first.
bool LoadsDirectly(const KvTarget& target, KvEncoding encoding) {
  const KvPagesView& pages = target.pages;
  const bool known = IsQuantized(encoding) || encoding == KvEncoding::kBF16;
  if (pages.dtype == DataType::kInt8) return known && simd::LoadsCodes(pages.head_dim, target.rope.layout());
  const auto in_lines = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 64 == 0; };
  return pages.dtype == DataType::kBF16 && simd::LoadsHeads(pages.head_dim) && in_lines(pages.k) &&
         in_lines(pages.v) && known;
}

/// Sections whose first row is row `first` of the batch. In layout kRows `first` is a multiple of kKvGroup.
class LoadedSections {
 public:
  /// Neither is owned. correction: applied on the way, without a map; null: none
  LoadedSections(const KvSectionView& k, const KvSectionView& v, int64_t first,
                 const CpuKvCorrection* correction = nullptr)
      : k_(k), v_(v), first_(first), is_corrected_(correction != nullptr) {
    if (!is_corrected_) return;
    k_correction_ = correction->scale_and_offset(KvPart::kKey);
    v_correction_ = correction->scale_and_offset(KvPart::kValue);
  }

  /// How many rows from `row` on, `limit` at most, one StoredRows can describe.
  int64_t KeysOfOneKind(int64_t row, int64_t limit) const {
    const int64_t token = row - first_, of_group = std::min(limit, kKvGroup - token % kKvGroup);
    return is_corrected_ ? std::min(of_group, KvCorrectionPlaceEnd(token) - token) : of_group;
  }
  simd::StoredRows Keys(int64_t row, int64_t count) const { return Rows(k_, k_correction_, row, count); }
  simd::StoredRows Values(int64_t row, int64_t count) const { return Rows(v_, v_correction_, row, count); }

 private:
  simd::StoredRows Rows(const KvSectionView& section, const simd::ScaleAndOffset& correction, int64_t row,
                        int64_t count) const {
    simd::StoredRows rows = StoredRowsOf(section, row - first_, count);
    if (is_corrected_) rows.correction = &correction;
    rows.first_token = row - first_;
    return rows;
  }

  const KvSectionView &k_, &v_;
  const int64_t first_;
  const bool is_corrected_;
  simd::ScaleAndOffset k_correction_, v_correction_;
};

/// Calls load(first, rows) for rows of K that are of one kind, `first` of them behind `row`, until all
/// `count` were.
template <typename Load>
void ForKeysOfOneKind(const LoadedSections& from, int64_t row, int64_t count, const Load& load) {
  for (int64_t i = 0; i < count;) {
    const int64_t rows = from.KeysOfOneKind(row + i, count - i);
    load(i, from.Keys(row + i, rows));
    i += rows;
  }
}

/// Rows [row, row + count) of one group of tokens, into pages of layout kRows.
void LoadGroup(const KvTarget& target, int64_t row, int64_t count, const LoadedSections& from) {
  const KvPagesView& pages = target.pages;
  std::array<int64_t, kKvGroup> slots;
  std::array<const float*, kKvGroup> cos;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t position = target.plan.position(row + i);
    slots[i] = target.plan.Slot(pages, target.plan.sequence_of_row(row + i), 0, position);
    cos[i] = target.rope.cos(position);
  }
  if (pages.dtype == DataType::kInt8) {
    simd::PageCodes out{.codes = static_cast<int8_t*>(pages.k),
                        .steps = static_cast<uint16_t*>(pages.k_steps),
                        .slots = slots.data(),
                        .head_stride = int64_t{pages.page_size} * pages.head_dim,
                        .num_heads = pages.num_kv_heads,
                        .head_dim = pages.head_dim};
    ForKeysOfOneKind(from, row, count, [&](int64_t first, const simd::StoredRows& rows) {
      out.slots = slots.data() + first;
      simd::LoadKeyCodes(rows, target.rope.layout(), cos.data() + first, out);
    });
    out.codes = static_cast<int8_t*>(pages.v);
    out.steps = static_cast<uint16_t*>(pages.v_steps);
    out.slots = slots.data();
    return simd::LoadValueCodes(from.Values(row, count), out);
  }
  simd::PageRows out{.pages = static_cast<uint16_t*>(pages.k),
                     .slots = slots.data(),
                     .head_stride = int64_t{pages.page_size} * pages.head_dim,
                     .num_heads = pages.num_kv_heads,
                     .head_dim = pages.head_dim};
  ForKeysOfOneKind(from, row, count, [&](int64_t first, const simd::StoredRows& rows) {
    out.slots = slots.data() + first;
    simd::LoadKeys(rows, target.rope.layout(), cos.data() + first, out);
  });
  out.pages = static_cast<uint16_t*>(pages.v);
  out.slots = slots.data();
  simd::LoadValues(from.Values(row, count), out);
}

// --- pages of layout kTiles ---

/// Where a head's token lies in a tile of K, and its pair of tokens in V.
uint32_t* KeyColumn(const KvPagesView& pages, int64_t head_slot, int64_t token) {
  const int64_t tile = token / kPageTile * kPageTile * pages.head_dim;
  return reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(pages.k) + head_slot + tile) + token % kPageTile;
}
uint32_t* ValuePair(const KvPagesView& pages, int64_t head_slot, int64_t token) {
  return reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(pages.v) + head_slot) +
         token / 2 * pages.head_dim;
}

/// Rows of a batch whose tokens follow each other in one page.
struct TokenRun {
  int64_t row, count;
  int64_t slot;   // of the page, head 0
  int64_t token;  // in the page

  /// The longest that begins with `row`, ends before `end` and does not cross a multiple of `unit` tokens,
  /// which divides the page's.
  static TokenRun At(const KvTarget& target, int64_t row, int64_t end, int64_t unit) {
    const HostBatchPlan& plan = target.plan;
    const int32_t sequence = plan.sequence_of_row(row), position = plan.position(row);
    int64_t next = row + 1;
    while (next < end && plan.sequence_of_row(next) == sequence &&
           plan.position(next) == position + (next - row) && plan.position(next) % unit != 0) {
      ++next;
    }
    const int64_t token = position % target.pages.page_size;
    return {row, next - row, plan.Slot(target.pages, sequence, 0, static_cast<int32_t>(position - token)),
            token};
  }
};

constexpr int64_t kScatterTokens = 4;  // that are brought into the layout at once

/// At most kScatterTokens tokens that do not cross a multiple of it. k, v: of the run's first row
void ScatterRun(const KvTarget& target, const TokenRun& run, ConstMatrixView k, ConstMatrixView v) {
  const KvPagesView& pages = target.pages;
  const int64_t head_dim = pages.head_dim, head_rows = kScatterTokens * head_dim,
                head_stride = pages.page_size * head_dim;
  auto* keys = ThreadScratch<uint16_t>(ScratchSlot::kHeads, 2 * pages.num_kv_heads * head_rows);
  uint16_t* values = keys + pages.num_kv_heads * head_rows;  // both [heads, kScatterTokens, head_dim]
  for (int64_t i = 0; i < run.count; ++i) {
    const int32_t position = target.plan.position(run.row + i);
    simd::RotateHeadsTo(target.rope.layout(), target.rope.cos(position), target.rope.sin(position), head_dim,
                        pages.num_kv_heads, k.Rows(i, 1).data, k.dtype, keys + i * head_dim, pages.dtype,
                        head_rows);
    for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
      simd::ConvertRow(static_cast<const std::byte*>(v.Rows(i, 1).data) + h * head_dim * SizeOf(v.dtype),
                       v.dtype, values + h * head_rows + i * head_dim, pages.dtype, head_dim);
    }
  }
  for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
    uint32_t* tile = KeyColumn(pages, run.slot + h * head_stride, run.token / kPageTile * kPageTile);
    simd::PackKeys(keys + h * head_rows, run.count, head_dim, /*elements_per_word=*/2, tile,
                   run.token % kPageTile);
    for (int64_t i = 0; i < run.count;) {
      const uint16_t* row = values + h * head_rows + i * head_dim;
      const int64_t token = run.token + i;
      uint32_t* pair = ValuePair(pages, run.slot + h * head_stride, token);
      if (token % 2 == 0 && i + 1 < run.count) {
        simd::PackValues(row, 2, head_dim, /*elements_per_word=*/2, pair, head_dim);
        i += 2;
        continue;
      }
      // Its neighbour may be written by another thread meanwhile.
      uint16_t* halves = reinterpret_cast<uint16_t*>(pair) + token % 2;
      for (int64_t d = 0; d < head_dim; ++d) halves[2 * d] = row[d];
      ++i;
    }
  }
}

/// Tokens of one page.
void LoadRun(const KvTarget& target, const TokenRun& run, const LoadedSections& from) {
  const KvPagesView& pages = target.pages;
  const int64_t head_stride = pages.page_size * pages.head_dim / 2;  // words
  simd::LoadValuePairs(from.Values(run.row, run.count), {.pair = ValuePair(pages, run.slot, run.token),
                                                         .odd = run.token % 2 != 0,
                                                         .head_stride = head_stride,
                                                         .num_heads = pages.num_kv_heads,
                                                         .head_dim = pages.head_dim});
  std::array<const float*, simd::kTileColumns> cos;
  for (int64_t i = 0; i < run.count;) {
    const int64_t first = (run.token + i) % simd::kTileColumns,
                  count = std::min(run.count - i, simd::kTileColumns - first);
    std::array<simd::StoredRows, 3> parts;  // a tile is of two groups at most, and of three places
    size_t num_parts = 0;
    const int64_t row = run.row + i;
    ForKeysOfOneKind(from, row, count,
                     [&](int64_t, const simd::StoredRows& rows) { parts[num_parts++] = rows; });
    for (int64_t j = 0; j < count; ++j) cos[j] = target.rope.cos(target.plan.position(row + j));
    simd::LoadKeyTile(absl::MakeConstSpan(parts.data(), num_parts), target.rope.layout(), cos.data(),
                      {.column = KeyColumn(pages, run.slot, run.token + i - first),
                       .first = first,
                       .head_stride = head_stride,
                       .num_heads = pages.num_kv_heads,
                       .head_dim = pages.head_dim});
    i += count;
  }
}

// Rows that a thread loads at a time: the end of a part waits for its writes.
constexpr int64_t kPartRows = 4 * kKvGroup;

/// Rows [begin, end) of the batch. FinishLoads() ends a part. REQUIRES: LoadsDirectly
void LoadRows(const KvTarget& target, int64_t begin, int64_t end, const LoadedSections& from) {
  if (target.pages.layout == PageLayout::kTiles) {
    for (int64_t i = begin; i < end;) {
      const TokenRun run = TokenRun::At(target, i, end, target.pages.page_size);
      LoadRun(target, run, from);
      i += run.count;
    }
  } else {
    for (int64_t i = begin; i < end; i += kKvGroup) {
      LoadGroup(target, i, std::min(kKvGroup, end - i), from);
    }
  }
}

/// How many of rows [row, end) are best loaded at once where few are: those of one tile, or of one group.
int64_t FewRows(const KvTarget& target, int64_t row, int64_t end) {
  if (target.pages.layout == PageLayout::kRows) return std::min(kKvGroup, end - row);
  return TokenRun::At(target, row, end, simd::kTileColumns).count;
}

/// Rows before the first that begins a part. Parts end where tiles end: two threads that share a tile would
/// have to read each other's words before they add their tokens.
int64_t RowsBeforeTile(const KvTarget& target) {
  if (target.pages.layout != PageLayout::kTiles) return 0;
  const int64_t in_tile = target.plan.position(0) % simd::kTileColumns;
  return in_tile == 0 ? 0 : simd::kTileColumns - in_tile;
}

/// load(begin, end) for every part of `rows`, as many parts for each thread. Parts but the first begin `lead`
/// rows behind a whole number of groups.
template <typename Load>
void ForParts(CpuContext& context, int64_t rows, int64_t lead, const Load& load) {
  const int64_t groups = (std::max<int64_t>(rows - lead, 1) + kKvGroup - 1) / kKvGroup;
  const int64_t parts =
      std::min(RoundUp((rows + kPartRows - 1) / kPartRows, context.pool.num_threads()), groups);
  const auto boundary = [&](int64_t part) {
    return part == 0 ? 0 : std::min(rows, lead + part * groups / parts * kKvGroup);
  };
  context.pool.ParallelFor(parts, [&](int64_t part) { load(boundary(part), boundary(part + 1)); });
}

/// Rows [begin, end) of the batch. k, v: these rows
void ScatterRows(const KvTarget& target, int64_t begin, int64_t end, ConstMatrixView k, ConstMatrixView v) {
  if (target.pages.layout == PageLayout::kRows) {
    for (int64_t i = begin; i < end; ++i) {
      ScatterRow(target, i, k.Rows(i - begin, 1).data, v.Rows(i - begin, 1).data, k.dtype);
    }
    return;
  }
  for (int64_t i = begin; i < end;) {
    const TokenRun run = TokenRun::At(target, i, end, kScatterTokens);
    ScatterRun(target, run, k.Rows(i - begin, run.count), v.Rows(i - begin, run.count));
    i += run.count;
  }
}

/// REQUIRES: LoadsDirectly
void LoadDirectly(CpuContext& context, const KvTarget& target, int64_t rows, const LoadedSections& from) {
  ForParts(context, rows, RowsBeforeTile(target), [&](int64_t begin, int64_t end) {
    LoadRows(target, begin, end, from);
    simd::FinishLoads();
  });
}

}  // namespace

void CpuKvScatter(CpuContext& context, const KvTarget& target, ConstMatrixView k, ConstMatrixView v) {
  ForRows(context.pool, k.rows, k.cols * 8, [&](int64_t begin, int64_t end) {
    ScatterRows(target, begin, end, k.Rows(begin, end - begin), v.Rows(begin, end - begin));
  });
}

void CpuKvLoad(CpuContext& context, const KvTarget& target, KvSectionView k, KvSectionView v) {
  if (LoadsDirectly(target, k.encoding)) return LoadDirectly(context, target, k.rows, {k, v, 0});
  if (!IsQuantized(k.encoding)) return CpuKvScatter(context, target, DenseMatrix(k), DenseMatrix(v));
  ForRows(context.pool, k.rows, k.cols * 8, [&](int64_t begin, int64_t end) {
    const RowDecoder keys(k), values(v);
    // As many tokens at a time as ScatterRun brings into the layout at once.
    auto* decoded = ThreadScratch<float>(ScratchSlot::kDecoded, 2 * kScatterTokens * k.cols);
    for (int64_t i = begin; i < end; i += kScatterTokens) {
      const int64_t count = std::min(kScatterTokens, end - i);
      const MatrixView k_rows = {decoded, DataType::kF32, count, k.cols, k.cols},
                       v_rows = {decoded + count * k.cols, DataType::kF32, count, k.cols, k.cols};
      for (int64_t j = 0; j < count; ++j) {
        keys.Decode(i + j, static_cast<float*>(k_rows.Rows(j, 1).data));
        values.Decode(i + j, static_cast<float*>(v_rows.Rows(j, 1).data));
      }
      ScatterRows(target, i, i + count, k_rows, v_rows);
    }
  });
}

void CpuKvLoadCorrected(CpuContext& context, const KvTarget& target, KvSectionView k, KvSectionView v,
                        const CpuKvCorrection& correction, MutableKvSectionView k_memory,
                        MutableKvSectionView v_memory) {
  if (!correction.has_map() && k_memory.encoding == KvEncoding::kBF16 && LoadsDirectly(target, k.encoding)) {
    return LoadDirectly(context, target, k.rows, {k, v, 0, &correction});
  }
  if (!CorrectsStoredRows(context, correction, k, k_memory.encoding) ||
      !LoadsDirectly(target, KvEncoding::kBF16)) {
    CpuCorrectKv(context, k, v, correction, k_memory, v_memory);
    return CpuKvLoad(context, target, k_memory, v_memory);
  }
  // What a thread corrects it loads itself, a few rows at a time, while they are in its first cache.
  ForParts(context, k.rows, RowsBeforeTile(target), [&](int64_t begin, int64_t end) {
    auto* keys = ThreadScratch<uint16_t>(ScratchSlot::kCorrected, 2 * kKvGroup * k.cols);
    uint16_t* values = keys + kKvGroup * k.cols;
    for (int64_t i = begin; i < end;) {
      const int64_t count = FewRows(target, i, end);
      CorrectStoredRows(k, v, correction, i, count, keys, values);
      const KvSectionView k_rows{keys, KvEncoding::kBF16, KvPart::kKey, count, k.cols},
          v_rows{values, KvEncoding::kBF16, KvPart::kValue, count, k.cols};
      LoadRows(target, i, i + count, {k_rows, v_rows, i});
      i += count;
    }
    simd::FinishLoads();
  });
}

}  // namespace kvblend::kernels
