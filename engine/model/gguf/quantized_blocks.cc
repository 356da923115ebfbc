#include "engine/model/gguf/quantized_blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/host/float_convert.h"

namespace kvblend::model {
namespace {

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

float LoadHalf(const uint8_t* bytes) { return kernels::F16ToF32(Load<uint16_t>(bytes)); }

// Each function below reads one block.

// 64 bytes of bit pairs, 32 per half of 128 elements: element 32*g+i of a half takes pair g of byte i.
void BitPairs(const uint8_t* in, uint8_t* codes) {
  for (int i = 0; i < 256; ++i) codes[i] = in[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
}

// Codes become the values that a table gives them.
void LookUp(const uint8_t (&table)[16], int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) codes[i] = table[codes[i]];
}

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
  *out.super_scale = LoadHalf(in);
  *out.super_minimum = -LoadHalf(in + 2);
  for (int sub_block = 0; sub_block < 8; ++sub_block) {
    const SubBlockScale sub = UnpackScale(in + 4, sub_block);
    out.scale_codes[sub_block] = static_cast<int8_t>(sub.scale);
    out.minimum_codes[sub_block] = static_cast<int8_t>(sub.minimum);
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
  *out.super_scale = LoadHalf(in + 208);
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
  for (int i = 0; i < 16; ++i) out.scale_codes[i] = static_cast<int8_t>(in[192 + i]);
}

// 16 bytes of scales (low nibbles) and minima (high nibbles, subtracted), one per 16 elements; 64 bytes of
// bit pairs; f16 scale of scales, f16 scale of minima. Each half of 128 elements uses 32 pair bytes: element
// 32*g+i of a half takes the bit pair g of byte i.
void BlockQ2_K(const uint8_t* in, const BlockOut& out) {
  *out.super_scale = LoadHalf(in + 80);
  *out.super_minimum = -LoadHalf(in + 82);
  for (int i = 0; i < 16; ++i) {
    out.scale_codes[i] = static_cast<int8_t>(in[i] & 15);
    out.minimum_codes[i] = static_cast<int8_t>(in[i] >> 4);
  }
  BitPairs(in + 16, out.codes);
}

// 32 bytes of third bits (bit b of byte i is that of element 32*b+i), 64 bytes of bit pairs as in Q2_K, 16
// scales of 6 bits in 12 bytes, f16 scale. Of the 12 bytes the first 8 hold the low nibbles, scales 0..7
// below 8..15; the last 4 hold the upper bit pairs, scale j in pair j/4 of byte j%4.
void BlockQ3_K(const uint8_t* in, const BlockOut& out) {
  BitPairs(in + 32, out.codes);
  for (int i = 0; i < 256; ++i) out.codes[i] |= static_cast<uint8_t>((in[i % 32] >> i / 32 & 1) << 2);
  const uint8_t* packed = in + 96;
  *out.super_scale = LoadHalf(in + 108);
  for (int i = 0; i < 16; ++i) {
    const int sub = (packed[i % 8] >> (i < 8 ? 0 : 4) & 15) | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
    out.scale_codes[i] = static_cast<int8_t>(sub - 32);
  }
}

// The sixteen values of IQ4_NL and IQ4_XS, + 128: so they are codes of 8 bits, and nothing is lost.
constexpr uint8_t kUnevenCodes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                      129, 141, 153, 166, 181, 197, 217, 241};

// f16 scale, 16 bytes of nibbles.
void BlockIQ4_NL(const uint8_t* in, const BlockOut& out) {
  *out.scales = LoadHalf(in);
  Nibbles(in + 2, out.codes);
  LookUp(kUnevenCodes, 32, out.codes);
}

// f16 scale, the upper bit pairs of eight 6-bit scales, their low nibbles in 4 bytes, then for each 32
// elements 16 bytes of nibbles.
void BlockIQ4_XS(const uint8_t* in, const BlockOut& out) {
  *out.super_scale = LoadHalf(in);
  const uint16_t upper = Load<uint16_t>(in + 2);
  for (int i = 0; i < 8; ++i) {
    const int sub = (in[4 + i / 2] >> (4 * (i % 2)) & 15) | (upper >> (2 * i) & 3) << 4;
    out.scale_codes[i] = static_cast<int8_t>(sub - 32);
    Nibbles(in + 8 + 16 * i, out.codes + 32 * i);
  }
  LookUp(kUnevenCodes, 256, out.codes);
}

// Twice the sixteen numbers of FP4 E2M1, + 16: codes of 5 bits.
constexpr uint8_t kTwiceE2M1Codes[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

// The exponent of a power of two (E8M0), 16 bytes of nibbles. As the codes stand for twice the numbers, the
// scale is half that power.
void BlockMXFP4(const uint8_t* in, const BlockOut& out) {
  const uint32_t exponent = in[0];
  const uint32_t half = exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23;
  *out.scales = std::bit_cast<float>(half);
  Nibbles(in + 1, out.codes);
  LookUp(kTwiceE2M1Codes, 32, out.codes);
  // Writers give blocks of zeros the smallest exponent there is, which few formats of scales can hold.
  const auto is_zero = [](uint8_t code) { return code == 16; };
  if (std::all_of(out.codes, out.codes + 32, is_zero)) *out.scales = 0;
}

// Backends take codes of 4, 5, 6 and 8 bits. Codes of 2 and 3 bits are given as 4, and the codes of uneven
// values (IQ4, MXFP4) as the whole numbers that they stand for: what is computed stays the same, to the last
// bit.
constexpr QuantizedType kQuantizedTypes[] = {
    {TensorType::kQ4_0, {.bits = 4, .group = 32, .zero_point = 8, .has_minimum = false}, BlockQ4_0},
    {TensorType::kQ4_1, {.bits = 4, .group = 32, .zero_point = 0, .has_minimum = true}, BlockQ4_1},
    {TensorType::kQ5_0, {.bits = 5, .group = 32, .zero_point = 16, .has_minimum = false}, BlockQ5_0},
    {TensorType::kQ5_1, {.bits = 5, .group = 32, .zero_point = 0, .has_minimum = true}, BlockQ5_1},
    {TensorType::kQ8_0, {.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false}, BlockQ8_0},
    {TensorType::kQ4_K,
     {.bits = 4, .group = 32, .zero_point = 0, .has_minimum = true, .nested = true},
     BlockQ4_K},
    {TensorType::kQ5_K,
     {.bits = 5, .group = 32, .zero_point = 0, .has_minimum = true, .nested = true},
     BlockQ5_K},
    {TensorType::kQ6_K,
     {.bits = 6, .group = 16, .zero_point = 32, .has_minimum = false, .nested = true},
     BlockQ6_K},
    {TensorType::kQ2_K,
     {.bits = 4, .group = 16, .zero_point = 0, .has_minimum = true, .nested = true},
     BlockQ2_K},
    {TensorType::kQ3_K,
     {.bits = 4, .group = 16, .zero_point = 4, .has_minimum = false, .nested = true},
     BlockQ3_K},
    {TensorType::kIQ4_NL, {.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false}, BlockIQ4_NL},
    {TensorType::kIQ4_XS,
     {.bits = 8, .group = 32, .zero_point = 128, .has_minimum = false, .nested = true},
     BlockIQ4_XS},
    {TensorType::kMXFP4, {.bits = 5, .group = 32, .zero_point = 16, .has_minimum = false}, BlockMXFP4},
};

}  // namespace

const QuantizedType* FindQuantized(TensorType type) {
  for (const QuantizedType& quantized : kQuantizedTypes) {
    if (quantized.type == type) return &quantized;
  }
  return nullptr;
}

}  // namespace kvblend::model
