#include "engine/model/dequantize.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status_macros.h"
#include "engine/model/gguf_text.h"
#include "kernels/host/float_convert.h"

namespace kvblend::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place and is little endian");

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float LoadHalf(const uint8_t* bytes) { return kernels::F16ToF32(Load<uint16_t>(bytes)); }

// Where one block's codes, scales and minima go.
struct BlockOut {
  uint8_t* codes;
  float* scales;
  float* minimums;  // not written by formats that have none
};

// Each function below reads one block.

// f16 scale, 32 signed bytes.
void BlockQ8_0(const uint8_t* in, const BlockOut& out) {
  *out.scales = LoadHalf(in);
  for (int i = 0; i < 32; ++i) out.codes[i] = in[2 + i] ^ 0x80;  // + 128
}

// Low nibbles are elements 0..15, high nibbles 16..31.
void Nibbles(const uint8_t* in, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = in[i] & 15;
    codes[i + 16] = in[i] >> 4;
  }
}

// f16 scale, 16 bytes of nibbles.
void BlockQ4_0(const uint8_t* in, const BlockOut& out) {
  *out.scales = LoadHalf(in);
  Nibbles(in + 2, out.codes);
}

// As Q4_0, but with an f16 minimum after the scale.
void BlockQ4_1(const uint8_t* in, const BlockOut& out) {
  *out.scales = LoadHalf(in);
  *out.minimums = LoadHalf(in + 2);
  Nibbles(in + 4, out.codes);
}

void AddFifthBits(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

// f16 scale, the 32 fifth bits, then nibbles as in Q4_0.
void BlockQ5_0(const uint8_t* in, const BlockOut& out) {
  *out.scales = LoadHalf(in);
  Nibbles(in + 6, out.codes);
  AddFifthBits(Load<uint32_t>(in + 2), out.codes);
}

void BlockQ5_1(const uint8_t* in, const BlockOut& out) {
  *out.scales = LoadHalf(in);
  *out.minimums = LoadHalf(in + 2);
  Nibbles(in + 8, out.codes);
  AddFifthBits(Load<uint32_t>(in + 4), out.codes);
}

struct SubBlockScale {
  int scale;
  int minimum;
};

// The K types pack eight 6-bit scales and eight 6-bit minima into 12 bytes: bytes 0..3 and 4..7 hold the
// first four of each in their low 6 bits; bytes 8..11 hold the low nibbles of the last four, whose upper 2
// bits lie in the top of bytes 0..7.
SubBlockScale UnpackScale(const uint8_t* packed, int sub_block) {
  if (sub_block < 4) return {packed[sub_block] & 63, packed[sub_block + 4] & 63};
  return {(packed[sub_block + 4] & 15) | (packed[sub_block - 4] >> 6) << 4,
          (packed[sub_block + 4] >> 4) | (packed[sub_block] >> 6) << 4};
}

// f16 scale of scales, f16 scale of minima (which are subtracted), 12 bytes of packed scales.
void ReadSubScales(const uint8_t* in, const BlockOut& out) {
  const float scale = LoadHalf(in), minimum_scale = LoadHalf(in + 2);
  for (int sub_block = 0; sub_block < 8; ++sub_block) {
    const SubBlockScale sub = UnpackScale(in + 4, sub_block);
    out.scales[sub_block] = scale * static_cast<float>(sub.scale);
    out.minimums[sub_block] = -(minimum_scale * static_cast<float>(sub.minimum));
  }
}

// Each 32 bytes hold two sub-blocks of 32, the first in the low nibbles.
void SubBlockNibbles(const uint8_t* nibbles, uint8_t* codes) {
  for (int sub_block = 0; sub_block < 8; ++sub_block) {
    const uint8_t* bytes = nibbles + 32 * (sub_block / 2);
    const int shift = 4 * (sub_block % 2);
    for (int i = 0; i < 32; ++i) codes[32 * sub_block + i] = bytes[i] >> shift & 15;
  }
}

// Scales, 128 bytes of nibbles.
void BlockQ4_K(const uint8_t* in, const BlockOut& out) {
  ReadSubScales(in, out);
  SubBlockNibbles(in + 16, out.codes);
}

// As Q4_K; bit b of byte i of the 32 bytes before the nibbles is the fifth bit of element i of sub-block b.
void BlockQ5_K(const uint8_t* in, const BlockOut& out) {
  ReadSubScales(in, out);
  SubBlockNibbles(in + 48, out.codes);
  const uint8_t* high_bits = in + 16;
  for (int i = 0; i < 256; ++i) out.codes[i] |= static_cast<uint8_t>((high_bits[i % 32] >> i / 32 & 1) << 4);
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales (one per 16 elements), f16 scale.
// Each half of 128 elements uses 64 nibble bytes and 32 pair bytes: element 32*g+i of a half takes the nibble
// of byte i (g even) or 32+i (g odd), low for g < 2, and the bit pair g of pair byte i.
void BlockQ6_K(const uint8_t* in, const BlockOut& out) {
  const float scale = LoadHalf(in + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* nibbles = in + 64 * half;
    const uint8_t* pairs = in + 128 + 32 * half;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = nibbles[32 * (group % 2) + i] >> (group < 2 ? 0 : 4) & 15;
        out.codes[128 * half + 32 * group + i] =
            static_cast<uint8_t>(nibble | (pairs[i] >> (2 * group) & 3) << 4);
      }
    }
  }
  for (int i = 0; i < 16; ++i) out.scales[i] = scale * static_cast<float>(static_cast<int8_t>(in[192 + i]));
}

struct QuantizedType {
  TensorType type;
  kernels::QuantizedFormat format;
  void (*read_block)(const uint8_t* in, const BlockOut& out);
};

constexpr QuantizedType kQuantizedTypes[] = {
    {TensorType::kQ4_0, {.bits = 4, .group = 32, .zero_point = 8, .has_minimum = false}, BlockQ4_0},
    {TensorType::kQ4_1, {.bits = 4, .group = 32, .zero_point = 0, .has_minimum = true}, BlockQ4_1},
    {TensorType::kQ5_0, {.bits = 5, .group = 32, .zero_point = 16, .has_minimum = false}, BlockQ5_0},
    {TensorType::kQ5_1, {.bits = 5, .group = 32, .zero_point = 0, .has_minimum = true}, BlockQ5_1},
    {TensorType::kQ8_0, {.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false}, BlockQ8_0},
    {TensorType::kQ4_K, {.bits = 4, .group = 32, .zero_point = 0, .has_minimum = true}, BlockQ4_K},
    {TensorType::kQ5_K, {.bits = 5, .group = 32, .zero_point = 0, .has_minimum = true}, BlockQ5_K},
    {TensorType::kQ6_K, {.bits = 6, .group = 16, .zero_point = 32, .has_minimum = false}, BlockQ6_K},
};

const QuantizedType* FindQuantized(TensorType type) {
  for (const QuantizedType& quantized : kQuantizedTypes) {
    if (quantized.type == type) return &quantized;
  }
  return nullptr;
}

constexpr int64_t kMaxBlockElements = 256;

// One block, dequantized.
void ExpandBlock(const QuantizedType& type, const uint8_t* in, int64_t elements, float* out) {
  uint8_t codes[kMaxBlockElements];
  float scales[kMaxBlockElements / 16], minimums[kMaxBlockElements / 16];
  type.read_block(in, {codes, scales, minimums});
  const kernels::QuantizedFormat& format = type.format;
  for (int64_t i = 0; i < elements; ++i) {
    const int64_t group = i / format.group;
    out[i] = scales[group] * static_cast<float>(codes[i] - format.zero_point);
    if (format.has_minimum) out[i] += minimums[group];
  }
}

float ReadElement(TensorType type, const uint8_t* in) {
  switch (type) {
    case TensorType::kF16:
      return LoadHalf(in);
    case TensorType::kBF16:
      return kernels::Bf16ToF32(Load<uint16_t>(in));
    default:
      return Load<float>(in);
  }
}

absl::Status CheckSizes(std::string_view operation, const TensorTypeTraits& traits, size_t bytes,
                        size_t elements) {
  const size_t blocks = bytes / traits.block_bytes;
  if (bytes % traits.block_bytes == 0 && elements == blocks * traits.block_elements) return absl::OkStatus();
  return absl::InvalidArgumentError(Concat(operation, ": ", bytes, " bytes of ", traits.name, " do not make ",
                                           elements, " elements (", traits.block_elements,
                                           " elements per block of ", traits.block_bytes, " bytes)"));
}

}  // namespace

absl::Status DequantizeRow(TensorType type, absl::Span<const std::byte> row, absl::Span<float> out) {
  KVBLEND_RETURN_IF_ERROR(FindTensorType(static_cast<uint32_t>(type)).status());
  const TensorTypeTraits& traits = TraitsOf(type);
  KVBLEND_RETURN_IF_ERROR(CheckSizes("DequantizeRow", traits, row.size(), out.size()));
  const auto* in = reinterpret_cast<const uint8_t*>(row.data());
  const QuantizedType* quantized = FindQuantized(type);
  for (size_t begin = 0; begin < out.size(); begin += traits.block_elements, in += traits.block_bytes) {
    if (quantized != nullptr) {
      ExpandBlock(*quantized, in, traits.block_elements, out.data() + begin);
    } else {
      out[begin] = ReadElement(type, in);
    }
  }
  return absl::OkStatus();
}

std::optional<kernels::QuantizedFormat> QuantizedFormatOf(TensorType type) {
  const QuantizedType* quantized = FindQuantized(type);
  if (quantized == nullptr) return std::nullopt;
  return quantized->format;
}

absl::Status ReadQuantizedRow(TensorType type, absl::Span<const std::byte> row,
                              const kernels::QuantizedRow& out) {
  const QuantizedType* quantized = FindQuantized(type);
  if (quantized == nullptr) {
    return absl::InvalidArgumentError(Concat("ReadQuantizedRow: type ", static_cast<uint32_t>(type),
                                             "; allowed: the quantized types (Q4_0, ..., Q6_K)"));
  }
  const TensorTypeTraits& traits = TraitsOf(type);
  KVBLEND_RETURN_IF_ERROR(CheckSizes("ReadQuantizedRow", traits, row.size(), out.codes.size()));
  const size_t groups = out.codes.size() / quantized->format.group;
  if (out.scales.size() != groups || out.minimums.size() != groups) {
    return absl::InvalidArgumentError(Concat("ReadQuantizedRow: room for ", out.scales.size(), " scales and ",
                                             out.minimums.size(), " minima; allowed: ", groups));
  }
  if (!quantized->format.has_minimum) std::fill(out.minimums.begin(), out.minimums.end(), 0.0f);
  const auto* in = reinterpret_cast<const uint8_t*>(row.data());
  for (size_t begin = 0; begin < out.codes.size(); begin += traits.block_elements, in += traits.block_bytes) {
    const size_t group = begin / quantized->format.group;
    quantized->read_block(in,
                          {out.codes.data() + begin, out.scales.data() + group, out.minimums.data() + group});
  }
  return absl::OkStatus();
}

}  // namespace kvblend::model
