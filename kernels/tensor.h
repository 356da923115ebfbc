// Views of tensors in a backend's memory. Views never own; see Buffer in kernels/backend.h for ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvblend::kernels {

/// kInt8 is a type of KV pages only, which hold the codes' steps beside them.
enum class DataType : uint8_t { kF32, kBF16, kF16, kInt8 };

constexpr int64_t SizeOf(DataType type) {
  return type == DataType::kF32 ? 4 : type == DataType::kInt8 ? 1 : 2;
}

constexpr std::string_view Name(DataType type) {
  switch (type) {
    case DataType::kF32:
      return "f32";
    case DataType::kBF16:
      return "bf16";
    case DataType::kF16:
      return "f16";
    case DataType::kInt8:
      return "int8";
  }
  return "?";
}

/// A read-only row-major matrix. `row_stride` counts elements, not bytes, and is >= cols.
/// A tensor [n, heads, head_dim] is passed as the matrix [n, heads * head_dim].
struct ConstMatrixView {
  const void* data = nullptr;
  DataType dtype = DataType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  ConstMatrixView Rows(int64_t begin, int64_t count) const {
    return {static_cast<const std::byte*>(data) + begin * row_stride * SizeOf(dtype), dtype, count, cols,
            row_stride};
  }
};

/// A writable row-major matrix; converts to its read-only form.
struct MatrixView {
  void* data = nullptr;
  DataType dtype = DataType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  MatrixView Rows(int64_t begin, int64_t count) const {
    return {static_cast<std::byte*>(data) + begin * row_stride * SizeOf(dtype), dtype, count, cols,
            row_stride};
  }
  MatrixView Columns(int64_t begin, int64_t count) const {
    return {static_cast<std::byte*>(data) + begin * SizeOf(dtype), dtype, rows, count, row_stride};
  }
  operator ConstMatrixView() const { return {data, dtype, rows, cols, row_stride}; }  // NOLINT: deliberate
};

/// Row or column numbers in a backend's memory.
struct IndicesView {
  int32_t* data = nullptr;
  int64_t size = 0;
};

/// Columns begin .. end-1 of a matrix.
struct ColumnRange {
  int32_t begin = 0;
  int32_t end = 0;
};

/// Channels of a head that share a step in int8 pages.
inline constexpr int64_t kPageGroup = 32;

/// How the elements of a page lie. Either way the KV of one head is contiguous.
///   kRows    k, v: [num_pages, num_kv_heads, page_size, head_dim]
///   kTiles   the order in which attention reads KV on processors that multiply pairs of bf16. Only where
///            HasTiles() is true.
///            k: [num_pages, num_kv_heads, page_size / kPageTile, head_dim / 2, kPageTile, 2]: pairs of
///               channels, of kPageTile tokens each
///            v: [num_pages, num_kv_heads, page_size / 2, head_dim, 2]: channels of pairs of tokens
enum class PageLayout : uint8_t { kRows, kTiles };

constexpr std::string_view Name(PageLayout layout) {
  switch (layout) {
    case PageLayout::kRows:
      return "rows";
    case PageLayout::kTiles:
      return "tiles";
  }
  return "?";
}

/// Tokens of one tile of K.
inline constexpr int32_t kPageTile = 64;

/// The KV of one layer, all pages, in a backend's memory. K is stored here *rotated* to its absolute position
/// (chunk entries in the store hold it un-rotated).
///
/// int8 pages hold codes -127 .. 127 of one step per kPageGroup channels of a token and head, value = step *
/// code; a group whose values are not all finite has a NaN as its step:
///   k_steps, v_steps: bf16 [num_pages, num_kv_heads, page_size, StepsPerHead]; null for other types
struct KvPagesView {
  void* k = nullptr;
  void* v = nullptr;
  void* k_steps = nullptr;
  void* v_steps = nullptr;
  DataType dtype = DataType::kF32;
  PageLayout layout = PageLayout::kRows;
  int64_t num_pages = 0;
  int32_t num_kv_heads = 0;
  int32_t page_size = 0;  // tokens
  int32_t head_dim = 0;
  int32_t page_list = 0;  // of a plan's lists the one that has these pages; see BatchSpec

  /// Whether pages with these properties can have the layout kTiles.
  static constexpr bool HasTiles(DataType dtype, int32_t page_size, int32_t head_dim) {
    return dtype == DataType::kBF16 && page_size % kPageTile == 0 && head_dim % 32 == 0;
  }
  static constexpr int64_t StepsPerHead(int64_t head_dim) { return (head_dim + kPageGroup - 1) / kPageGroup; }
};

}  // namespace kvblend::kernels
