#include "engine/model/dequantize.h"

#include <bit>
#include <cstdint>
#include <cstring>

#include "engine/model/gguf_text.h"

namespace kvblend::model {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place and is little endian");

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float LoadHalf(const uint8_t* bytes) { return HalfToFloat(Load<uint16_t>(bytes)); }

// Each function below expands one block.

void BlockF32(const uint8_t* in, float* out) { *out = Load<float>(in); }

void BlockF16(const uint8_t* in, float* out) { *out = LoadHalf(in); }

void BlockBF16(const uint8_t* in, float* out) {
  *out = std::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(in)) << 16);
}

// f16 scale, 32 signed bytes.
void BlockQ8_0(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(in[2 + i]));
}

// f16 scale, 16 bytes: low nibbles are elements 0..15, high nibbles 16..31.
void BlockQ4_0(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in);
  for (int i = 0; i < 16; ++i) {
    const int byte = in[2 + i];
    out[i] = scale * static_cast<float>((byte & 15) - 8);
    out[i + 16] = scale * static_cast<float>((byte >> 4) - 8);
  }
}

// As Q4_0 without the offset of 8, but with an f16 minimum after the scale.
void BlockQ4_1(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in);
  const float minimum = LoadHalf(in + 2);
  for (int i = 0; i < 16; ++i) {
    const int byte = in[4 + i];
    out[i] = scale * static_cast<float>(byte & 15) + minimum;
    out[i + 16] = scale * static_cast<float>(byte >> 4) + minimum;
  }
}

// f16 scale, the 32 fifth bits, then nibbles as in Q4_0.
void BlockQ5_0(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in);
  const auto high_bits = Load<uint32_t>(in + 2);
  for (int i = 0; i < 16; ++i) {
    const int byte = in[6 + i];
    const int low = (byte & 15) | static_cast<int>(high_bits >> i & 1) << 4;
    const int high = (byte >> 4) | static_cast<int>(high_bits >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>(low - 16);
    out[i + 16] = scale * static_cast<float>(high - 16);
  }
}

void BlockQ5_1(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in);
  const float minimum = LoadHalf(in + 2);
  const auto high_bits = Load<uint32_t>(in + 4);
  for (int i = 0; i < 16; ++i) {
    const int byte = in[8 + i];
    const int low = (byte & 15) | static_cast<int>(high_bits >> i & 1) << 4;
    const int high = (byte >> 4) | static_cast<int>(high_bits >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>(low) + minimum;
    out[i + 16] = scale * static_cast<float>(high) + minimum;
  }
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

// f16 scale of scales, f16 scale of minima, 12 bytes of packed scales, 128 bytes of nibbles: each 32 bytes
// hold two sub-blocks of 32, the first in the low nibbles.
void BlockQ4_K(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in);
  const float minimum_scale = LoadHalf(in + 2);
  const uint8_t* nibbles = in + 16;
  for (int sub_block = 0; sub_block < 8; ++sub_block) {
    const SubBlockScale sub = UnpackScale(in + 4, sub_block);
    const float sub_scale = scale * static_cast<float>(sub.scale);
    const float minimum = minimum_scale * static_cast<float>(sub.minimum);
    const uint8_t* bytes = nibbles + 32 * (sub_block / 2);
    const int shift = 4 * (sub_block % 2);
    for (int i = 0; i < 32; ++i) {
      out[32 * sub_block + i] = sub_scale * static_cast<float>(bytes[i] >> shift & 15) - minimum;
    }
  }
}

// As Q4_K; bit b of byte i of the 32 bytes before the nibbles is the fifth bit of element i of sub-block b.
void BlockQ5_K(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in);
  const float minimum_scale = LoadHalf(in + 2);
  const uint8_t* high_bits = in + 16;
  const uint8_t* nibbles = in + 48;
  for (int sub_block = 0; sub_block < 8; ++sub_block) {
    const SubBlockScale sub = UnpackScale(in + 4, sub_block);
    const float sub_scale = scale * static_cast<float>(sub.scale);
    const float minimum = minimum_scale * static_cast<float>(sub.minimum);
    const uint8_t* bytes = nibbles + 32 * (sub_block / 2);
    const int shift = 4 * (sub_block % 2);
    for (int i = 0; i < 32; ++i) {
      const int value = (bytes[i] >> shift & 15) | (high_bits[i] >> sub_block & 1) << 4;
      out[32 * sub_block + i] = sub_scale * static_cast<float>(value) - minimum;
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed scales (one per 16 elements), f16 scale.
// Each half of 128 elements uses 64 nibble bytes and 32 pair bytes: element 32*g+i of a half takes the nibble
// of byte i (g even) or 32+i (g odd), low for g < 2, and the bit pair g of pair byte i.
void BlockQ6_K(const uint8_t* in, float* out) {
  const float scale = LoadHalf(in + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* nibbles = in + 64 * half;
    const uint8_t* pairs = in + 128 + 32 * half;
    const uint8_t* scales = in + 192 + 8 * half;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = nibbles[32 * (group % 2) + i] >> (group < 2 ? 0 : 4) & 15;
        const int value = (nibble | (pairs[i] >> (2 * group) & 3) << 4) - 32;
        const float sub_scale = scale * static_cast<float>(static_cast<int8_t>(scales[2 * group + i / 16]));
        out[128 * half + 32 * group + i] = sub_scale * static_cast<float>(value);
      }
    }
  }
}

using BlockFunction = void (*)(const uint8_t* in, float* out);

BlockFunction FunctionOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return BlockF32;
    case TensorType::kF16:
      return BlockF16;
    case TensorType::kQ4_0:
      return BlockQ4_0;
    case TensorType::kQ4_1:
      return BlockQ4_1;
    case TensorType::kQ5_0:
      return BlockQ5_0;
    case TensorType::kQ5_1:
      return BlockQ5_1;
    case TensorType::kQ8_0:
      return BlockQ8_0;
    case TensorType::kQ4_K:
      return BlockQ4_K;
    case TensorType::kQ5_K:
      return BlockQ5_K;
    case TensorType::kQ6_K:
      return BlockQ6_K;
    case TensorType::kBF16:
      return BlockBF16;
  }
  return nullptr;
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31;
  const uint32_t fraction = half & 1023;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

absl::Status DequantizeRow(TensorType type, absl::Span<const std::byte> row, absl::Span<float> out) {
  const BlockFunction expand = FunctionOf(type);
  if (expand == nullptr) return FindTensorType(static_cast<uint32_t>(type)).status();
  const TensorTypeTraits& traits = TraitsOf(type);
  const size_t blocks = row.size() / traits.block_bytes;
  if (row.size() % traits.block_bytes != 0 || out.size() != blocks * traits.block_elements) {
    return absl::InvalidArgumentError(Concat(
        "DequantizeRow: ", row.size(), " bytes of ", traits.name, " do not make ", out.size(), " elements (",
        traits.block_elements, " elements per block of ", traits.block_bytes, " bytes)"));
  }
  const auto* in = reinterpret_cast<const uint8_t*>(row.data());
  for (size_t block = 0; block < blocks; ++block) {
    expand(in + block * traits.block_bytes, out.data() + block * traits.block_elements);
  }
  return absl::OkStatus();
}

}  // namespace kvblend::model
