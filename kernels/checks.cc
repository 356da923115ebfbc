#include "kernels/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace kvblend::kernels {
namespace {

// Bytes from the first element to one past the last.
uint64_t ExtentBytes(ConstMatrixView view) {
  if (view.rows == 0 || view.cols == 0) return 0;
  return static_cast<uint64_t>(((view.rows - 1) * view.row_stride + view.cols) * SizeOf(view.dtype));
}

bool Overlaps(ConstMatrixView a, ConstMatrixView b) {
  const uint64_t a_bytes = ExtentBytes(a), b_bytes = ExtentBytes(b);
  if (a_bytes == 0 || b_bytes == 0) return false;
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data), b_begin = reinterpret_cast<uintptr_t>(b.data);
  if (a_begin + a_bytes <= b_begin || b_begin + b_bytes <= a_begin) return false;
  const uint64_t stride = a.row_stride * SizeOf(a.dtype);
  if (stride != static_cast<uint64_t>(b.row_stride * SizeOf(b.dtype))) return true;
  // Equal strides: b starts `offset` bytes into a row of a's grid. The column ranges are disjoint when b
  // begins behind a's columns and ends before the next row's.
  const uint64_t offset =
      b_begin >= a_begin ? (b_begin - a_begin) % stride : (stride - (a_begin - b_begin) % stride) % stride;
  const uint64_t a_width = a.cols * SizeOf(a.dtype), b_width = b.cols * SizeOf(b.dtype);
  return offset < a_width || offset + b_width > stride;
}

absl::Status CheckIndptr(absl::string_view name, absl::Span<const int32_t> indptr, size_t num_sequences,
                         size_t total) {
  constexpr absl::string_view kOp = "PlanBatch";
  if (indptr.size() != num_sequences + 1) {
    return Invalid(kOp, name, " has ", indptr.size(),
                   " entries; allowed: num_sequences + 1 = ", num_sequences + 1);
  }
  if (indptr[0] != 0) return Invalid(kOp, name, "[0] is ", indptr[0], "; allowed: 0");
  for (size_t s = 0; s < num_sequences; ++s) {
    if (indptr[s + 1] < indptr[s]) {
      return Invalid(kOp, name, "[", s + 1, "] is ", indptr[s + 1], "; allowed: at least ", indptr[s]);
    }
  }
  if (static_cast<size_t>(indptr[num_sequences]) != total) {
    return Invalid(kOp, name, " ends at ", indptr[num_sequences], "; allowed: ", total);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCopy(absl::string_view op, const void* dst, const void* src, int64_t bytes) {
  if (bytes < 0) return Invalid(op, "bytes is ", bytes, "; allowed: at least 0");
  if (bytes > 0 && (dst == nullptr || src == nullptr)) {
    return Invalid(op, dst == nullptr ? "dst" : "src", " is null with ", bytes, " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckMatrix(absl::string_view op, absl::string_view what, ConstMatrixView view, int64_t rows,
                         int64_t cols, std::initializer_list<DataType> dtypes) {
  bool dtype_ok = false;
  for (DataType dtype : dtypes) dtype_ok |= dtype == view.dtype;
  if (!dtype_ok) {
    const std::string allowed =
        absl::StrJoin(dtypes, ", ", [](std::string* out, DataType dtype) { out->append(Name(dtype)); });
    return Invalid(op, what, ".dtype is ", std::string(Name(view.dtype)), "; allowed: ", allowed);
  }
  if (view.rows != rows || view.rows < 0)
    return Invalid(op, what, ".rows is ", view.rows, "; allowed: ", rows);
  if (view.cols != cols || view.cols < 0)
    return Invalid(op, what, ".cols is ", view.cols, "; allowed: ", cols);
  if (view.row_stride < view.cols) {
    return Invalid(op, what, ".row_stride is ", view.row_stride, "; allowed: at least cols = ", view.cols);
  }
  if (rows == 0 || cols == 0) return absl::OkStatus();
  if (view.row_stride > std::numeric_limits<int64_t>::max() / SizeOf(view.dtype) / view.rows) {
    return Invalid(op, what, " of ", view.rows, " rows with row_stride ", view.row_stride,
                   " does not fit into the address space");
  }
  if (view.data == nullptr) return Invalid(op, what, ".data is null with ", rows, " rows");
  if (reinterpret_cast<uintptr_t>(view.data) % SizeOf(view.dtype) != 0) {
    return Invalid(op, what, ".data is not aligned to its element of ", SizeOf(view.dtype), " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckDisjoint(absl::string_view op, ConstMatrixView input, absl::string_view input_name,
                           ConstMatrixView out, absl::string_view out_name) {
  if (!Overlaps(input, out)) return absl::OkStatus();
  return Invalid(op, out_name, " overlaps ", input_name, "; allowed: separate memory");
}

absl::Status CheckDisjointOrInPlace(absl::string_view op, ConstMatrixView input, absl::string_view input_name,
                                    ConstMatrixView out) {
  const bool in_place = input.data == out.data && input.row_stride == out.row_stride &&
                        input.dtype == DataType::kF32 && out.dtype == DataType::kF32;
  if (in_place || !Overlaps(input, out)) return absl::OkStatus();
  return Invalid(op, "out overlaps ", input_name, "; allowed: separate memory, or exactly ", input_name,
                 " when both are f32");
}

absl::Status CheckSection(absl::string_view op, absl::string_view what, KvSectionView section, KvPart part,
                          int64_t rows, int64_t cols) {
  if (Name(section.encoding) == "?") {
    return Invalid(op, what, ".encoding is ", static_cast<int>(section.encoding),
                   "; allowed: f32, bf16, f16, int8, int4, fp8");
  }
  if (section.part != part || (part != KvPart::kKey && part != KvPart::kValue)) {
    return Invalid(op, what, ".part is ", static_cast<int>(section.part),
                   "; allowed: ", part == KvPart::kKey ? "kKey" : "kValue");
  }
  if (section.rows != rows || section.rows < 0)
    return Invalid(op, what, ".rows is ", section.rows, "; allowed: ", std::max<int64_t>(rows, 0));
  if (section.cols != cols || section.cols < 1)
    return Invalid(op, what, ".cols is ", section.cols, "; allowed: ", std::max<int64_t>(cols, 1));
  if (rows == 0) return absl::OkStatus();
  if (section.rows > (int64_t{1} << 58) / section.cols) {
    return Invalid(op, what, " of ", section.rows, " rows x ", section.cols,
                   " columns does not fit into the address space");
  }
  if (section.data == nullptr) return Invalid(op, what, ".data is null with ", rows, " rows");
  if (reinterpret_cast<uintptr_t>(section.data) % kKvSectionAlignment != 0) {
    return Invalid(op, what, ".data is not aligned to ", kKvSectionAlignment, " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckSectionDisjoint(absl::string_view op, KvSectionView section, absl::string_view section_name,
                                  ConstMatrixView matrix, absl::string_view matrix_name) {
  const auto section_begin = reinterpret_cast<uintptr_t>(section.data);
  const uintptr_t section_end =
      section_begin + static_cast<uintptr_t>(section.rows == 0 ? 0 : section.layout().size_bytes);
  const auto matrix_begin = reinterpret_cast<uintptr_t>(matrix.data);
  const uintptr_t matrix_end = matrix_begin + ExtentBytes(matrix);
  if (section_end <= matrix_begin || matrix_end <= section_begin) return absl::OkStatus();
  return Invalid(op, section_name, " overlaps ", matrix_name, "; allowed: separate memory");
}

absl::Status CheckColumns(absl::string_view op, absl::string_view what, absl::Span<const ColumnRange> ranges,
                          int64_t cols) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto& [begin, end] = ranges[i];
    if (begin < 0 || begin > end || end > cols) {
      return Invalid(op, what, "[", i, "] is columns ", begin, " to ", end, "; allowed: within 0 to ", cols);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSpreadRanges(absl::string_view op, absl::Span<const ColumnRange> ranges,
                               const BatchPlan& plan, const RopeTable& rope) {
  if (plan.num_sequences() != 1) {
    return Invalid(op, "the plan has ", plan.num_sequences(), " sequences; allowed: 1");
  }
  const int64_t end = std::min(plan.total_kv_len(), rope.max_position());
  KVBLEND_RETURN_IF_ERROR(CheckColumns(op, "ranges", ranges, end));
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin >= ranges[i - 1].end) continue;
    return Invalid(op, "ranges[", i, "] begins at ", ranges[i].begin, "; allowed: from ", ranges[i - 1].end,
                   " on, where the range before it ends");
  }
  return absl::OkStatus();
}

absl::Status CheckSpread(absl::string_view op, absl::string_view what, const DeviationSpread& spread) {
  const auto check = [&](absl::string_view field, float value, bool ok, absl::string_view allowed) {
    return ok && std::isfinite(value)
               ? absl::OkStatus()
               : Invalid(op, what, ".", field, " is ", value, "; allowed: finite, ", allowed);
  };
  absl::Status status = check("reach", spread.reach, spread.reach > 0 && spread.reach <= kMaxSpreadReach,
                              absl::StrCat("above 0, at most ", kMaxSpreadReach));
  status.Update(check("anywhere", spread.anywhere, spread.anywhere >= 0, "at least 0"));
  status.Update(check("reserve", spread.reserve, spread.reserve > 0, "above 0"));
  return status;
}

absl::Status CheckSamplingSpec(absl::string_view op, size_t index, const SamplingSpec& spec,
                               int64_t vocab_size) {
  const auto check = [&](absl::string_view field, auto value, bool ok, const auto&... allowed) {
    return ok ? absl::OkStatus()
              : Invalid(op, "specs[", index, "].", field, " is ", value, "; allowed: ", allowed...);
  };
  const auto [temperature, penalty] = std::pair(spec.temperature, spec.repetition_penalty);
  // These comparisons refuse NaN too.
  absl::Status status =
      check("temperature", temperature, temperature >= 0 && std::isfinite(temperature), "finite, at least 0");
  status.Update(check("top_k", spec.top_k, spec.top_k >= 0, "at least 0"));
  status.Update(check("top_p", spec.top_p, spec.top_p > 0 && spec.top_p <= 1, "above 0 to 1"));
  status.Update(check("min_p", spec.min_p, spec.min_p >= 0 && spec.min_p <= 1, "0 to 1"));
  status.Update(
      check("repetition_penalty", penalty, penalty > 0 && std::isfinite(penalty), "finite, above 0"));
  status.Update(check("uniform", spec.uniform, spec.uniform >= 0 && spec.uniform < 1, "0 to below 1"));
  status.Update(check("num_top", spec.num_top, spec.num_top >= -1 && spec.num_top <= kMaxTopTokens, "-1 to ",
                      kMaxTopTokens));
  status.Update(check("scored_token", spec.scored_token,
                      spec.scored_token >= -1 && spec.scored_token < vocab_size, "-1 to ", vocab_size - 1));
  for (const LogitChange& change : spec.changes) {
    const int32_t token = change.token_id;
    status.Update(
        check("changes.token_id", token, token >= 0 && token < vocab_size, "0 to ", vocab_size - 1));
    status.Update(check("changes.added", change.added, std::isfinite(change.added), "finite"));
  }
  return status;
}

absl::Status CheckPages(absl::string_view op, KvPagesView pages, bool int8, PageLayout best) {
  if (pages.dtype == DataType::kInt8 && !int8) {
    return Invalid(op, "pages.dtype is int8; allowed on this backend: f32, bf16, f16");
  }
  if (pages.num_pages < 0)
    return Invalid(op, "pages.num_pages is ", pages.num_pages, "; allowed: at least 0");
  if (pages.num_kv_heads <= 0)
    return Invalid(op, "pages.num_kv_heads is ", pages.num_kv_heads, "; allowed: at least 1");
  if (pages.page_size <= 0)
    return Invalid(op, "pages.page_size is ", pages.page_size, "; allowed: at least 1");
  if (pages.head_dim <= 0) return Invalid(op, "pages.head_dim is ", pages.head_dim, "; allowed: at least 1");
  if (pages.layout != PageLayout::kRows && pages.layout != best) {
    return Invalid(op, "pages.layout is ", std::string(Name(pages.layout)), " with ",
                   std::string(Name(pages.dtype)), " pages of ", pages.page_size, " tokens x ",
                   pages.head_dim, "; allowed on this backend: rows");
  }
  // Three int32 factors fit into 93 bits, so the product is checked factor by factor.
  int64_t limit = std::numeric_limits<int64_t>::max() / SizeOf(pages.dtype);
  for (int64_t factor : {int64_t{pages.num_kv_heads}, int64_t{pages.page_size}, int64_t{pages.head_dim}})
    limit /= factor;
  if (pages.num_pages > limit) {
    return Invalid(op, "pages of ", pages.num_pages, " x ", pages.num_kv_heads, " heads x ", pages.page_size,
                   " tokens x ", pages.head_dim, " do not fit into the address space");
  }
  if (pages.num_pages > 0 && (pages.k == nullptr || pages.v == nullptr)) {
    return Invalid(op, "pages.", pages.k == nullptr ? "k" : "v", " is null with ", pages.num_pages, " pages");
  }
  const auto align = static_cast<uintptr_t>(SizeOf(pages.dtype));
  if (reinterpret_cast<uintptr_t>(pages.k) % align != 0 ||
      reinterpret_cast<uintptr_t>(pages.v) % align != 0) {
    return Invalid(op, "pages.k or pages.v is not aligned to its element of ", align, " bytes");
  }
  if (pages.dtype == DataType::kInt8 && pages.num_pages > 0) {
    if (pages.k_steps == nullptr || pages.v_steps == nullptr) {
      return Invalid(op, "pages.", pages.k_steps == nullptr ? "k_steps" : "v_steps",
                     " is null; int8 pages have steps");
    }
    if (reinterpret_cast<uintptr_t>(pages.k_steps) % 2 != 0 ||
        reinterpret_cast<uintptr_t>(pages.v_steps) % 2 != 0) {
      return Invalid(op, "pages.k_steps or pages.v_steps is not aligned to its element of 2 bytes");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlanFitsPages(absl::string_view op, const BatchPlan& plan, KvPagesView pages) {
  if (plan.page_size() != pages.page_size) {
    return Invalid(op, "pages.page_size is ", pages.page_size, "; allowed: the plan's ", plan.page_size());
  }
  if (plan.max_page_index() >= pages.num_pages) {
    return Invalid(op, "the plan uses page ", plan.max_page_index(),
                   "; allowed: below pages.num_pages = ", pages.num_pages);
  }
  if (pages.page_list < 0 || pages.page_list >= plan.num_page_lists()) {
    return Invalid(op, "pages.page_list is ", pages.page_list, "; allowed: 0 .. ", plan.num_page_lists() - 1,
                   ", the plan's");
  }
  return absl::OkStatus();
}

absl::Status CheckPlanFitsRope(absl::string_view op, const BatchPlan& plan, const RopeTable& rope) {
  if (plan.max_position() >= rope.max_position()) {
    return Invalid(op, "the plan has position ", plan.max_position(), "; allowed: below the rope table's ",
                   rope.max_position());
  }
  return absl::OkStatus();
}

absl::Status CheckSoftCap(absl::string_view op, absl::string_view what, float cap) {
  constexpr float kSmallest = 1e-3f;
  if (std::isfinite(cap) && cap >= kSmallest) return absl::OkStatus();
  return Invalid(op, what, " is ", cap, "; allowed: finite numbers of at least ", kSmallest);
}

absl::Status CheckAttentionSpec(absl::string_view op, const AttentionSpec& spec, KvPagesView pages) {
  if (spec.num_heads <= 0 || spec.num_heads % pages.num_kv_heads != 0) {
    return Invalid(op, "num_heads is ", spec.num_heads,
                   "; allowed: a positive multiple of num_kv_heads = ", pages.num_kv_heads);
  }
  if (!std::isfinite(spec.scale)) return Invalid(op, "scale is ", spec.scale, "; allowed: finite numbers");
  if (spec.sliding_window < 0) {
    return Invalid(op, "sliding_window is ", spec.sliding_window, "; allowed: at least 0");
  }
  if (spec.logit_soft_cap != 0) {
    if (absl::Status status = CheckSoftCap(op, "logit_soft_cap", spec.logit_soft_cap); !status.ok())
      return status;
  }
  if (spec.sinks.data != nullptr) {
    return CheckMatrix(op, "sinks", spec.sinks, 1, spec.num_heads, {DataType::kF32});
  }
  return absl::OkStatus();
}

absl::Status CheckBatchSpec(const BatchSpec& spec) {
  constexpr absl::string_view kOp = "PlanBatch";
  if (spec.page_size <= 0) return Invalid(kOp, "page_size is ", spec.page_size, "; allowed: at least 1");
  const size_t num_sequences = spec.kv_len.size();
  KVBLEND_RETURN_IF_ERROR(CheckIndptr("row_indptr", spec.row_indptr, num_sequences, spec.positions.size()));
  if (spec.num_page_lists < 1 || spec.page_indices.size() % spec.num_page_lists != 0) {
    return Invalid(kOp, "num_page_lists is ", spec.num_page_lists,
                   "; allowed: at least 1, and a divisor of the ", spec.page_indices.size(), " page_indices");
  }
  KVBLEND_RETURN_IF_ERROR(CheckIndptr("page_indptr", spec.page_indptr, num_sequences,
                                      spec.page_indices.size() / spec.num_page_lists));
  for (size_t i = 0; i < spec.page_indices.size(); ++i) {
    if (spec.page_indices[i] < 0) {
      return Invalid(kOp, "page_indices[", i, "] is ", spec.page_indices[i], "; allowed: at least 0");
    }
  }
  for (size_t s = 0; s < num_sequences; ++s) {
    const int64_t capacity = int64_t{spec.page_indptr[s + 1] - spec.page_indptr[s]} * spec.page_size;
    if (spec.kv_len[s] < 0 || spec.kv_len[s] > capacity) {
      return Invalid(kOp, "kv_len[", s, "] is ", spec.kv_len[s], "; allowed: 0 .. ", capacity,
                     ", what its pages hold");
    }
    int64_t previous = -1;
    for (int32_t i = spec.row_indptr[s]; i < spec.row_indptr[s + 1]; ++i) {
      const int64_t position = spec.positions[i];
      if (position <= previous || position >= spec.kv_len[s]) {
        return Invalid(kOp, "positions[", i, "] is ", position, "; allowed: ", previous + 1, " .. ",
                       spec.kv_len[s] - 1, " (strictly increasing, below kv_len[", s, "])");
      }
      previous = position;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRopeSpec(const RopeSpec& spec) {
  constexpr absl::string_view kOp = "CreateRopeTable";
  if (spec.layout != RopeLayout::kInterleaved && spec.layout != RopeLayout::kSplitHalf) {
    return Invalid(kOp, "layout is ", static_cast<int>(spec.layout), "; allowed: kInterleaved, kSplitHalf");
  }
  if (spec.head_dim <= 0 || spec.head_dim % 2 != 0 || spec.head_dim > 65536) {
    return Invalid(kOp, "head_dim is ", spec.head_dim, "; allowed: even, 2 .. 65536");
  }
  // Positions are int32 everywhere.
  if (spec.max_position <= 0 || spec.max_position > std::numeric_limits<int32_t>::max()) {
    return Invalid(kOp, "max_position is ", spec.max_position, "; allowed: 1 .. ",
                   std::numeric_limits<int32_t>::max());
  }
  if (static_cast<int64_t>(spec.inv_freq.size()) != spec.head_dim / 2) {
    return Invalid(kOp, "inv_freq has ", spec.inv_freq.size(),
                   " entries; allowed: head_dim / 2 = ", spec.head_dim / 2);
  }
  for (size_t i = 0; i < spec.inv_freq.size(); ++i) {
    if (!std::isfinite(spec.inv_freq[i])) {
      return Invalid(kOp, "inv_freq[", i, "] is ", spec.inv_freq[i], "; allowed: finite numbers");
    }
  }
  if (!std::isfinite(spec.magnitude) || spec.magnitude <= 0) {
    return Invalid(kOp, "magnitude is ", spec.magnitude, "; allowed: finite and above 0");
  }
  return absl::OkStatus();
}

absl::Status CheckWeightShape(int64_t rows, int64_t cols) {
  // oneDNN and cuBLAS count rows and columns in 32 bits.
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (rows <= 0 || rows > kMax) return Invalid("PackWeights", "rows is ", rows, "; allowed: 1 .. ", kMax);
  if (cols <= 0 || cols > kMax) return Invalid("PackWeights", "cols is ", cols, "; allowed: 1 .. ", kMax);
  return absl::OkStatus();
}

absl::Status CheckKvCorrectionSpec(const KvCorrectionSpec& spec) {
  constexpr absl::string_view kOp = "CreateKvCorrection";
  if (spec.cols < 1 || spec.cols > (int64_t{1} << 24)) {
    return Invalid(kOp, "cols is ", spec.cols, "; allowed: 1 to ", int64_t{1} << 24);
  }
  if (spec.rank < 0 || spec.rank > kMaxKvCorrectionRank) {
    return Invalid(kOp, "rank is ", spec.rank, "; allowed: 0 to ", kMaxKvCorrectionRank);
  }
  const int64_t channels = 2 * spec.cols;
  const struct {
    absl::string_view name;
    absl::Span<const float> values;
    int64_t size;
  } parts[] = {{"scale", spec.scale, channels},
               {"offset", spec.offset, kNumKvCorrectionPlaces * channels},
               {"down", spec.down, channels * spec.rank},
               {"up", spec.up, channels * spec.rank}};
  for (const auto& part : parts) {
    if (static_cast<int64_t>(part.values.size()) != part.size) {
      return Invalid(kOp, part.name, " has ", part.values.size(), " values; allowed: ", part.size);
    }
    for (size_t i = 0; i < part.values.size(); ++i) {
      if (std::isfinite(part.values[i])) continue;
      return Invalid(kOp, part.name, "[", i, "] is ", part.values[i], "; allowed: finite");
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
