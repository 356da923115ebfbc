// What the kernels of all instruction sets share (code_products.h): written once over `Ops`, which the
// including file defines in its own namespace, compiled for its instruction set. Included once by each of
// them, in an anonymous namespace within KVBLEND_CODES_NAMESPACE.
//
// Ops has:
//   Floats, Ints            vectors of kLanes floats and 32-bit words; kLanes divides kColumnOutputs
//   kRows, kVectors         of a tile whose sums stay in registers
//   kPairRows, kPairVectors the same for pairs of codes (pairs-inl.h)
//   kFewRows                2, 4 or 8; rows of a column's products whose sums, of two terms each, stay in registers
//   kFewPairRows            whether few rows of more than 4 bits are faster in pairs than in terms
//   kSignedBytes            whether codes of 8 bits are multiplied as -128 .. 127
//   Load, Store, ...        by their names
//   AddTwo<kBits>           adds the products of two words of weights with two of a row to sums, of which Total<kBits> makes
//                           sums of 32 bits; as many of them as a group has
//   Tile<kBits, kWords>     sums over a group's words of four products each, for a tile of rows, whose codes of the group
//                           lie behind each other

// Words 2 * quad and 2 * quad + 1 of a chunk. planes: of the chunk, from the first of the outputs on
template <int kUpperBits>
HWY_INLINE void UnpackQuad(const uint32_t* planes, int quad, Ops::Ints& first, Ops::Ints& second) {
  constexpr int kVectorWords = static_cast<int>(kColumnOutputs);
  const Ops::Ints nibbles = Ops::Set(0x0F0F0F0F), low = Ops::Load(planes + quad * kVectorWords);
  first = Ops::And(low, nibbles);
  second = Ops::And(Ops::ShiftRight16(low, 4), nibbles);
  // Planes of upper bits come behind the four of low nibbles.
  [[maybe_unused]] Ops::Ints plane;
  if constexpr (kUpperBits > 0) plane = Ops::Load(planes + (4 + quad * kUpperBits / 4) * kVectorWords);
  if constexpr (kUpperBits == 1) {
    const Ops::Ints bits = Ops::ShiftRight16(plane, 4 * quad), below = Ops::Set(0x00100010),
                    above = Ops::Set(0x10001000);
    first = Ops::Or(first, Ops::Or(Ops::And(Ops::ShiftLeft16(bits, 4), below),
                                   Ops::And(Ops::ShiftLeft16(bits, 10), above)));
    second = Ops::Or(second, Ops::Or(Ops::And(Ops::ShiftLeft16(bits, 3), below),
                                     Ops::And(Ops::ShiftLeft16(bits, 9), above)));
  } else if constexpr (kUpperBits == 2) {
    const Ops::Ints bits = Ops::ShiftRight16(plane, 8 * (quad % 2)), below = Ops::Set(0x00300030),
                    above = Ops::Set(0x30003000);
    first = Ops::Or(first, Ops::Or(Ops::And(Ops::ShiftLeft16(bits, 4), below),
                                   Ops::And(Ops::ShiftLeft16(bits, 8), above)));
    second = Ops::Or(second, Ops::Or(Ops::And(Ops::ShiftLeft16(bits, 2), below),
                                     Ops::And(Ops::ShiftLeft16(bits, 6), above)));
  } else if constexpr (kUpperBits == 4) {
    const Ops::Ints upper = Ops::Set(static_cast<int>(0xF0F0F0F0u));
    first = Ops::Or(first, Ops::And(Ops::ShiftLeft16(plane, 4), upper));
    second = Ops::Or(second, Ops::And(plane, upper));
    if constexpr (Ops::kSignedBytes) {
      const Ops::Ints sign = Ops::Set(static_cast<int>(0x80808080u));
      first = Ops::Xor(first, sign);
      second = Ops::Xor(second, sign);
    }
  }
}

// Every other byte, as 16 bits. Where bytes have signs only codes of 8 bits reach the highest bit, so that
// all may be extended by it.
HWY_INLINE Ops::Ints OddBytes(Ops::Ints v) {
  return Ops::kSignedBytes ? Ops::ShiftRightSigned16(v, 8) : Ops::ShiftRight16(v, 8);
}
HWY_INLINE Ops::Ints EvenBytes(Ops::Ints v) { return OddBytes(Ops::ShiftLeft16(v, 8)); }

// Steps and minima of a group's values; the minimum carries the zero point.
struct GroupScales {
  Ops::Floats step, minimum;
};

HWY_INLINE float ZeroPointOf(const QuantizedFormat& format) {
  return static_cast<float>(format.zero_point - (Ops::kSignedBytes && format.bits == 8 ? 128 : 0));
}

HWY_INLINE GroupScales ScalesOf(const QuantizedColumn& column, int64_t scale, int64_t lane,
                                Ops::Floats zero_point) {
  const int64_t index = scale * kColumnOutputs + lane;
  const bool has_minimum = column.format.has_minimum;
  Ops::Floats step, minimum = Ops::Zero();
  if (column.format.nested) {
    const int64_t super = scale * column.format.group / kSuperGroup * kColumnOutputs + lane;
    step = Ops::Mul(Ops::LoadHalves(column.super_scales() + super),
                    Ops::LoadBytes(column.scale_codes() + index));
    if (has_minimum) {
      minimum = Ops::Mul(Ops::LoadHalves(column.super_minimums() + super),
                         Ops::LoadBytes(column.minimum_codes() + index));
    }
  } else {
    step = Ops::LoadHalves(column.scales() + index);
    if (has_minimum) minimum = Ops::LoadHalves(column.minimums() + index);
  }
  return {step, Ops::NegMulAdd(step, zero_point, minimum)};
}

// Adds the sums of one more group to `total`. Sums are rounded here, and in their conversion to floats.
HWY_INLINE Ops::Floats AddGroup(Ops::Floats product, const GroupScales& scales, float step, float sum,
                                Ops::Floats total) {
  const Ops::Floats scaled = Ops::Mul(product, scales.step);
  return Ops::MulAdd(scales.minimum, Ops::SetFloats(sum), Ops::MulAdd(scaled, Ops::SetFloats(step), total));
}

#include "kernels/cpu/linear/codes/few_rows-inl.h"

// --- many rows, from a block ---

// The words of 32 inputs.
template <int kUpperBits, int64_t kWidth>
HWY_INLINE void ExpandChunk(const QuantizedColumn& column, int64_t chunk, uint32_t* target) {
  const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * column.plane_bytes());
  for (int quad = 0; quad < 4; ++quad, target += 2 * kWidth) {
    for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
      Ops::Ints first, second;
      UnpackQuad<kUpperBits>(planes + lane, quad, first, second);
      Ops::Store(first, target + lane);
      Ops::Store(second, target + kWidth + lane);
    }
  }
}

template <int kUpperBits>
void ExpandPlanes(const QuantizedColumn& column, const BlockCodes& out) {
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
    ExpandChunk<kUpperBits, kPackedBlock>(column, chunk,
                                          out.codes + chunk * kChunkInputs / kCodesPerWord * kPackedBlock);
  }
}

void ExpandScales(const QuantizedColumn& column, int64_t group, const BlockCodes& out) {
  const Ops::Floats zero_point = Ops::SetFloats(ZeroPointOf(column.format));
  const int64_t groups = column.chunks * kChunkInputs / group, groups_per_scale = column.format.group / group;
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
      const GroupScales scales = ScalesOf(column, g / groups_per_scale, lane, zero_point);
      Ops::StoreFloats(scales.step, out.steps + g * kPackedBlock + lane);
      Ops::StoreFloats(scales.minimum, out.minimums + g * kPackedBlock + lane);
    }
  }
}

void Expand(const QuantizedColumn& column, int64_t group, const BlockCodes& out) {
  switch (column.upper_bits()) {
    case 0:
      ExpandPlanes<0>(column, out);
      break;
    case 1:
      ExpandPlanes<1>(column, out);
      break;
    case 2:
      ExpandPlanes<2>(column, out);
      break;
    default:
      ExpandPlanes<4>(column, out);
  }
  ExpandScales(column, group, out);
}

// v: which vector of outputs
HWY_INLINE GroupScales ScalesOf(const BlockCodes& block, int64_t group, int v) {
  const int64_t index = group * kPackedBlock + v * Ops::kLanes;
  return {Ops::LoadFloats(block.steps + index), Ops::LoadFloats(block.minimums + index)};
}

// block, out: of the first output
template <int kBits, int kWords>
void MultiplyVectors(const RowCodes& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
                     bool accumulate, float* out, int64_t out_stride) {
  constexpr int kRows = Ops::kRows, kVectors = Ops::kVectors;
  Ops::Floats totals[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      totals[r][v] = accumulate ? Ops::LoadFloats(out + r * out_stride + v * Ops::kLanes) : Ops::Zero();
    }
  }
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    Ops::Ints products[kRows][kVectors];
    Ops::template Tile<kBits, kWords>(block.codes + group * kWords * kPackedBlock,
                                      rows.codes + group * kRows * kWords * kCodesPerWord, products);
    for (int v = 0; v < kVectors; ++v) {
      const GroupScales scales = ScalesOf(block, group, v);
      for (int r = 0; r < kRows; ++r) {
        totals[r][v] = AddGroup(Ops::ToFloats(products[r][v]), scales, rows.steps[group * kRows + r],
                                rows.sums[group * kRows + r], totals[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      Ops::StoreFloats(totals[r][v], out + r * out_stride + v * Ops::kLanes);
    }
  }
}

void Multiply(const RowCodes& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
              bool accumulate, float* out, int64_t out_stride) {
  constexpr int64_t kOutputs = Ops::kVectors * Ops::kLanes;
  auto* multiply = rows.group == 32 ? &MultiplyVectors<8, 8> : &MultiplyVectors<8, 4>;
  if (block.bits == 4) {
    multiply = rows.group == 32 ? &MultiplyVectors<4, 8> : &MultiplyVectors<4, 4>;
  } else if (block.bits <= 6) {
    multiply = rows.group == 32 ? &MultiplyVectors<6, 8> : &MultiplyVectors<6, 4>;
  }
  for (int64_t output = 0; output < kPackedBlock; output += kOutputs) {
    multiply(rows, block.Output(output), first_group, num_groups, accumulate, out + output, out_stride);
  }
}

#include "kernels/cpu/linear/codes/pairs-inl.h"
#include "kernels/cpu/linear/codes/wide-inl.h"

constexpr CodeKernels kKernels = {
    .name = Ops::kName,
    .bytes = {.rows = Ops::kRows,
              .width = kPackedBlock,
              .quantize = &simd::QuantizeActivations,
              .expand = &Expand,
              .multiply = &Multiply},
    .pairs = {.rows = Ops::kPairRows,
              .width = kPackedBlock,
              .quantize = &simd::QuantizeActivations,
              .expand = &ExpandPairs,
              .multiply = &MultiplyPairs},
    .wide = {.rows = Ops::kPairRows,
             .width = kWideWidth,
             .quantize = &simd::QuantizeActivations,
             .expand = &ExpandWide,
             .multiply = &MultiplyWide},
    .few_rows = FewRowsKernels<int8_t>(&simd::QuantizeActivations),
    .few_term_rows = FewRowsKernels<CodeTerms>(&QuantizeTerms),
    .few_pair_rows =
        Ops::kFewPairRows ? FewRowsKernels<int16_t>(&simd::QuantizeActivations) : ColumnKernels<int16_t>{},
};
