#include "kernels/cpu/linear/quantized_matrix.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
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

}  // namespace

int64_t QuantizedColumn::bytes() const {
  const int64_t halves = groups() * kColumnOutputs * (format.has_minimum ? 2 : 1);
  return RoundUp(chunks * plane_bytes() + halves * static_cast<int64_t>(sizeof(uint16_t)), 64);
}

bool QuantizedMatrix::LayOut(int64_t rows, int64_t cols, const WeightSource& source) {
  if (cols % kChunkInputs != 0) return false;
  for (int64_t row = 0; row < rows; ++row) {
    const std::optional<QuantizedFormat> format = source.FormatOf(row);
    if (!format.has_value() || !Known(*format)) return false;
    if (row % kColumnOutputs == 0) {
      smallest_group_ = std::min<int64_t>(smallest_group_, format->group);
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
  matrix->bytes_ = arena.Allocate(total_bytes);
  if (matrix->bytes_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("PackWeights: no memory for ", rows, " x ", cols,
                                                     " quantized weights (", total_bytes, " bytes)"));
  }
  std::vector<uint8_t> codes(cols);
  std::vector<float> scales(cols), minimums(cols);
  std::byte* data = matrix->bytes_.get();
  for (int64_t c = 0; c < matrix->num_columns(); ++c) {
    QuantizedColumn& column = matrix->columns_[c];
    column.data = data;
    std::memset(data, 0, column.bytes());
    const int64_t end = std::min(kColumnOutputs, rows - c * kColumnOutputs);
    for (int64_t output = 0; output < end; ++output) {
      const QuantizedRow row{absl::MakeSpan(codes), absl::MakeSpan(scales.data(), column.groups()),
                             absl::MakeSpan(minimums.data(), column.groups())};
      if (absl::Status status = source.ReadCodes(c * kColumnOutputs + output, row); !status.ok())
        return status;
      PackCodes(codes, column, output, data);
      const bool fits = PackHalves(row.scales, output, const_cast<uint16_t*>(column.scales())) &&
                        (!column.format.has_minimum ||
                         PackHalves(row.minimums, output, const_cast<uint16_t*>(column.minimums())));
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
      const int64_t input = chunk * kChunkInputs + i,
                    half = input / column.format.group * kColumnOutputs + output;
      const float minimum = column.format.has_minimum ? F16ToF32(column.minimums()[half]) : 0.0f;
      out[input] =
          F16ToF32(column.scales()[half]) * static_cast<float>(code - column.format.zero_point) + minimum;
    }
  }
}

}  // namespace kvblend::kernels
