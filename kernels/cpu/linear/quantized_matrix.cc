#include "kernels/cpu/linear/quantized_matrix.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/host/float_convert.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kWordsPerVector = 2 * kColumnOutputs;  // 16-bit words of one shift
constexpr int64_t kStepsPerChunk = kChunkInputs / 2;

bool Known(const QuantizedFormat& format) {
  return (format.bits == 4 || format.bits == 5 || format.bits == 6 || format.bits == 8) &&
         (format.group == 16 || format.group == 32);
}

// Where input 2 * step + parity of a chunk has its `bits` bits of a plane.
struct BitPlace {
  int64_t word;  // of the plane, for output 0
  int shift;
};
BitPlace PlaceOf(int bits, int64_t step) {
  const int64_t steps_per_word = 16 / bits;
  return {step / steps_per_word * kWordsPerVector, static_cast<int>(step % steps_per_word) * bits};
}

// Adds one output's codes to its column.
void PackCodes(absl::Span<const uint8_t> codes, const QuantizedColumn& column, int64_t output,
               std::byte* data) {
  const int upper_bits = column.upper_bits();
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
    auto* low = reinterpret_cast<uint16_t*>(data + chunk * column.plane_bytes()) + 2 * output;
    uint16_t* upper = low + 4 * kWordsPerVector;
    const uint8_t* in = codes.data() + chunk * kChunkInputs;
    for (int64_t step = 0; step < kStepsPerChunk; ++step) {
      const BitPlace place = PlaceOf(4, step);
      for (int parity = 0; parity < 2; ++parity) {
        const unsigned code = in[2 * step + parity];
        low[place.word + parity] |= static_cast<uint16_t>((code & 15) << place.shift);
        if (upper_bits == 0) continue;
        const BitPlace upper_place = PlaceOf(upper_bits, step);
        upper[upper_place.word + parity] |= static_cast<uint16_t>(code >> 4 << upper_place.shift);
      }
    }
  }
}

// False where one of them is too large for f16, or so small that it would become 0.
bool PackHalves(absl::Span<const float> values, int64_t output, uint16_t* out) {
  for (size_t group = 0; group < values.size(); ++group) {
    const uint16_t half = F32ToF16(values[group]);
    if ((half & 0x7C00) == 0x7C00 || ((half & 0x7FFF) == 0 && values[group] != 0)) return false;
    out[group * kColumnOutputs + output] = half;
  }
  return true;
}

void PackScaleCodes(absl::Span<const int8_t> codes, int64_t output, int8_t* out) {
  for (size_t group = 0; group < codes.size(); ++group) out[group * kColumnOutputs + output] = codes[group];
}

/// Room for one row as its source stores it, and the way from there into its column.
class ColumnPacker {
 public:
  explicit ColumnPacker(int64_t cols)
      : codes_(cols),
        scales_(cols),
        minimums_(cols),
        supers_(2 * cols / kSuperGroup),
        scale_codes_(cols),
        minimum_codes_(cols) {}

  QuantizedRow RowOf(const QuantizedColumn& column) {
    const int64_t groups = column.groups(), supers = column.format.nested ? column.super_groups() : 0;
    const absl::Span<float> all_supers = absl::MakeSpan(supers_);
    row_ = {.codes = absl::MakeSpan(codes_),
            .scales = absl::MakeSpan(scales_.data(), groups),
            .minimums = absl::MakeSpan(minimums_.data(), groups)};
    if (column.format.nested) {
      row_.nested.scale_codes = absl::MakeSpan(scale_codes_.data(), groups);
      row_.nested.super_scales = all_supers.first(supers);
    }
    if (column.format.nested && column.format.has_minimum) {
      row_.nested.minimum_codes = absl::MakeSpan(minimum_codes_.data(), groups);
      row_.nested.super_minimums = all_supers.subspan(supers, supers);
    }
    return row_;
  }

  /// Packs the row that was read into RowOf(column), which begins at `data`. False where f16 cannot hold it.
  bool Pack(const QuantizedColumn& column, int64_t output, std::byte* data) const {
    PackCodes(row_.codes, column, output, data);
    const auto halves = [](const uint16_t* at) { return const_cast<uint16_t*>(at); };
    const auto bytes = [](const int8_t* at) { return const_cast<int8_t*>(at); };
    const bool has_minimum = column.format.has_minimum;
    if (!column.format.nested) {
      return PackHalves(row_.scales, output, halves(column.scales())) &&
             (!has_minimum || PackHalves(row_.minimums, output, halves(column.minimums())));
    }
    PackScaleCodes(row_.nested.scale_codes, output, bytes(column.scale_codes()));
    if (has_minimum) PackScaleCodes(row_.nested.minimum_codes, output, bytes(column.minimum_codes()));
    return PackHalves(row_.nested.super_scales, output, halves(column.super_scales())) &&
           (!has_minimum || PackHalves(row_.nested.super_minimums, output, halves(column.super_minimums())));
  }

 private:
  std::vector<uint8_t> codes_;
  std::vector<float> scales_, minimums_, supers_;
  std::vector<int8_t> scale_codes_, minimum_codes_;
  QuantizedRow row_;
};

// Scale and minimum of one output's group.
std::pair<float, float> ScaleOf(const QuantizedColumn& column, int64_t group, int64_t output) {
  const int64_t at = group * kColumnOutputs + output;
  const bool has_minimum = column.format.has_minimum;
  if (!column.format.nested) {
    return {F16ToF32(column.scales()[at]), has_minimum ? F16ToF32(column.minimums()[at]) : 0.0f};
  }
  const int64_t super = group * column.format.group / kSuperGroup * kColumnOutputs + output;
  const auto product = [](uint16_t half, int8_t code) { return F16ToF32(half) * static_cast<float>(code); };
  return {product(column.super_scales()[super], column.scale_codes()[at]),
          has_minimum ? product(column.super_minimums()[super], column.minimum_codes()[at]) : 0.0f};
}

}  // namespace

int64_t QuantizedColumn::bytes() const {
  constexpr auto kHalf = static_cast<int64_t>(sizeof(uint16_t));
  const int64_t per_output = format.nested ? groups() + super_groups() * kHalf : groups() * kHalf;
  return RoundUp(chunks * plane_bytes() + per_output * kColumnOutputs * (format.has_minimum ? 2 : 1), 64);
}

bool QuantizedMatrix::LayOut(int64_t rows, int64_t cols, const WeightSource& source) {
  if (cols % kChunkInputs != 0) return false;
  for (int64_t row = 0; row < rows; ++row) {
    std::optional<QuantizedFormat> format = source.FormatOf(row);
    if (format.has_value() && cols % kSuperGroup != 0) format->nested = false;
    if (!format.has_value() || !Known(*format)) return false;
    if (row % kColumnOutputs == 0) {
      smallest_group_ = std::min<int64_t>(smallest_group_, format->group);
      smallest_bits_ = std::min(smallest_bits_, format->bits);
      largest_bits_ = std::max(largest_bits_, format->bits);
      columns_.push_back({.format = *format, .data = nullptr, .chunks = cols / kChunkInputs});
    } else if (columns_.back().format != *format) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<std::unique_ptr<QuantizedMatrix>> QuantizedMatrix::Create(WeightArena& arena, int64_t rows,
                                                                         int64_t cols,
                                                                         const WeightSource& source) {
  std::unique_ptr<QuantizedMatrix> matrix(new QuantizedMatrix());
  if (!matrix->LayOut(rows, cols, source)) return nullptr;
  int64_t total_bytes = 0;
  for (const QuantizedColumn& column : matrix->columns_) total_bytes += column.bytes();
  KVBLEND_ASSIGN_OR_RETURN(matrix->bytes_, arena.Allocate(total_bytes));
  ColumnPacker packer(cols);
  std::byte* data = matrix->bytes_.get();
  for (int64_t c = 0; c < matrix->num_columns(); ++c) {
    QuantizedColumn& column = matrix->columns_[c];
    column.data = data;
    std::memset(data, 0, column.bytes());
    const int64_t end = std::min(kColumnOutputs, rows - c * kColumnOutputs);
    for (int64_t output = 0; output < end; ++output) {
      const QuantizedRow row = packer.RowOf(column);
      if (absl::Status status = source.ReadCodes(c * kColumnOutputs + output, row); !status.ok())
        return status;
      const bool fits = packer.Pack(column, output, data);
      if (!fits) return nullptr;
    }
    data += column.bytes();
  }
  return matrix;
}

void QuantizedMatrix::ReadRow(int64_t index, float* out) const {
  const QuantizedColumn& column = columns_[index / kColumnOutputs];
  const int64_t output = index % kColumnOutputs;
  const int upper_bits = column.upper_bits();
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
    const auto* low =
        reinterpret_cast<const uint16_t*>(column.data + chunk * column.plane_bytes()) + 2 * output;
    const uint16_t* upper = low + 4 * kWordsPerVector;
    for (int64_t i = 0; i < kChunkInputs; ++i) {
      const BitPlace place = PlaceOf(4, i / 2);
      int code = low[place.word + i % 2] >> place.shift & 15;
      if (upper_bits > 0) {
        const BitPlace upper_place = PlaceOf(upper_bits, i / 2);
        code |= (upper[upper_place.word + i % 2] >> upper_place.shift & ((1 << upper_bits) - 1)) << 4;
      }
      const int64_t input = chunk * kChunkInputs + i;
      const auto [scale, minimum] = ScaleOf(column, input / column.format.group, output);
      out[input] = scale * static_cast<float>(code - column.format.zero_point) + minimum;
    }
  }
}

}  // namespace kvblend::kernels
