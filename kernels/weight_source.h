// Where the values of a weight matrix come from when a backend packs it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace kvblend::kernels {

/// Columns that share the numbers that nested scales and minima are multiplied by.
inline constexpr int64_t kSuperGroup = 256;

/// How the values of a row are quantized: value = scale * (code - zero_point) + minimum, with a scale and a
/// minimum for every `group` columns. These may be small whole numbers, multiplied by one number each for
/// kSuperGroup columns: they are nested.
struct QuantizedFormat {
  int32_t bits = 0;         // 4, 5, 6 or 8: codes are 0 .. 2^bits - 1
  int32_t group = 0;        // columns: 16 or 32; divides the number of columns
  int32_t zero_point = 0;   // a code
  bool has_minimum = true;  // otherwise minima are 0
  bool nested = false;      // kSuperGroup divides the number of columns

  friend bool operator==(const QuantizedFormat&, const QuantizedFormat&) = default;
};

/// What nested scales and minima are made of: scales[g] is super_scales[g's super group] * scale_codes[g],
/// exactly, and so are minima. Each span is as long as told, or empty where it is not wanted.
struct NestedScales {
  absl::Span<int8_t> scale_codes;    // [cols / group]
  absl::Span<int8_t> minimum_codes;  // [cols / group]
  absl::Span<float> super_scales;    // [cols / kSuperGroup]
  absl::Span<float> super_minimums;  // [cols / kSuperGroup]
};

/// One row as it is stored.
struct QuantizedRow {
  absl::Span<uint8_t> codes;   // [cols]
  absl::Span<float> scales;    // [cols / group]
  absl::Span<float> minimums;  // [cols / group]; 0 where the format has none
  NestedScales nested = {};    // written where the format is nested; minima where it has any
};

/// Rows of a weight, dequantized or as they are stored. Used from one thread at a time.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  /// Writes a row, dequantized, into `out` [cols].
  virtual absl::Status ReadRow(int64_t row, absl::Span<float> out) const = 0;

  /// How a row is stored, where that is a format that a backend may keep; rows may differ.
  virtual std::optional<QuantizedFormat> FormatOf(int64_t /*row*/) const { return std::nullopt; }

  /// Writes a row as it is stored. REQUIRES: FormatOf(row).
  virtual absl::Status ReadCodes(int64_t /*row*/, const QuantizedRow& /*out*/) const {
    return absl::UnimplementedError("the rows of this weight are not quantized");
  }
};

}  // namespace kvblend::kernels
