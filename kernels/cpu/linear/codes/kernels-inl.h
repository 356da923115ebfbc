// What the kernels of all instruction sets share (code_products.h): written once over `Ops`, which the
// including file defines in its own namespace, compiled for its instruction set. Included once by each of
// them, in an anonymous namespace within KVBLEND_CODES_NAMESPACE.
//
// Ops has:
//   Floats, Ints            vectors of kLanes floats and 32-bit words; kLanes divides kColumnOutputs
//   kRows, kVectors         of a tile whose sums stay in registers
//   kPairRows, kPairVectors the same for pairs of codes (pairs-inl.h)
//   kSignedBytes            whether codes of 8 bits are multiplied as -128 .. 127
//   Load, Store, ...        by their names
//   Dot<kBits, kWords>      sum over a group's words of four products each, for one row
//   Tile<kBits, kWords>     the same for a tile of rows

// Words of one group, of kLanes outputs.
template <int kWords>
struct GroupWords {
  Ops::Ints words[kWords];
};

// Words 2 * quad and 2 * quad + 1 of a chunk. planes: of the chunk, from the first of the outputs on
template <int kUpperBits, bool kSignedBytes = Ops::kSignedBytes>
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
    if constexpr (kSignedBytes) {
      const Ops::Ints sign = Ops::Set(static_cast<int>(0x80808080u));
      first = Ops::Xor(first, sign);
      second = Ops::Xor(second, sign);
    }
  }
}

// Steps and minima of a group's values; the minimum carries the zero point.
struct GroupScales {
  Ops::Floats step, minimum;
};

HWY_INLINE float ZeroPointOf(const QuantizedFormat& format, bool signed_bytes) {
  return static_cast<float>(format.zero_point - (signed_bytes && format.bits == 8 ? 128 : 0));
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

// The sums of one more group: the one place where they are rounded.
HWY_INLINE Ops::Floats AddGroup(Ops::Ints product, const GroupScales& scales, float step, float sum,
                                Ops::Floats total) {
  const Ops::Floats scaled = Ops::Mul(Ops::ToFloats(product), scales.step);
  return Ops::MulAdd(scales.minimum, Ops::SetFloats(sum), Ops::MulAdd(scaled, Ops::SetFloats(step), total));
}

// --- few rows, straight from a column ---

template <int kUpperBits, int kWords, int kRows>
void FewRowsOf(const QuantizedColumn& column, const RowCodes* rows, bool accumulate, float* const* out) {
  constexpr int kGroupsPerChunk = 8 / kWords, kQuadsPerGroup = kWords / 2;
  const int64_t bytes_per_chunk = column.bytes() / column.chunks, plane_bytes = column.plane_bytes();
  const int64_t chunk_scales = kChunkInputs / column.format.group;
  const Ops::Floats zero_point = Ops::SetFloats(ZeroPointOf(column.format, Ops::kSignedBytes));
  for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
    Ops::Floats totals[kRows];
    for (int r = 0; r < kRows; ++r) totals[r] = accumulate ? Ops::LoadFloats(out[r] + lane) : Ops::Zero();
    for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
      if (lane == 0) {  // every column fetches its successor, which lies behind it
        const std::byte* next = column.data + (column.chunks + chunk) * bytes_per_chunk;
        for (int64_t byte = 0; byte < bytes_per_chunk; byte += 64) hwy::Prefetch(next + byte);
      }
      const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * plane_bytes) + lane;
      for (int g = 0; g < kGroupsPerChunk; ++g) {
        GroupWords<kWords> weights;
        for (int quad = 0; quad < kQuadsPerGroup; ++quad) {
          UnpackQuad<kUpperBits>(planes, g * kQuadsPerGroup + quad, weights.words[2 * quad],
                                 weights.words[2 * quad + 1]);
        }
        const int64_t group = chunk * kGroupsPerChunk + g,
                      scale = chunk * chunk_scales + (chunk_scales == kGroupsPerChunk ? g : 0);
        const GroupScales scales = ScalesOf(column, scale, lane, zero_point);
        for (int r = 0; r < kRows; ++r) {
          const Ops::Ints product = Ops::template Dot<4 + kUpperBits, kWords>(
              weights.words, rows[r].codes + group * kWords * kCodesPerWord);
          totals[r] = AddGroup(product, scales, rows[r].steps[group], rows[r].sums[group], totals[r]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) Ops::StoreFloats(totals[r], out[r] + lane);
  }
}

// Rows beyond num_rows repeat the first and write where nobody reads.
template <int kUpperBits, int kWords, int kRows>
void FewRowsPadded(const QuantizedColumn& column, const RowCodes* rows, int64_t num_rows, bool accumulate,
                   float* const* out) {
  RowCodes padded[kRows];
  float* targets[kRows];
  alignas(64) float unused[kColumnOutputs] = {};
  for (int r = 0; r < kRows; ++r) {
    padded[r] = rows[r < num_rows ? r : 0];
    targets[r] = r < num_rows ? out[r] : unused;
  }
  FewRowsOf<kUpperBits, kWords, kRows>(column, padded, accumulate, targets);
}

template <int kUpperBits, int kWords>
void FewRowsIn(const QuantizedColumn& column, const RowCodes* rows, int64_t num_rows, bool accumulate,
               float* const* out) {
  if (num_rows == 1) {
    FewRowsOf<kUpperBits, kWords, 1>(column, rows, accumulate, out);
  } else if (num_rows == 2) {
    FewRowsOf<kUpperBits, kWords, 2>(column, rows, accumulate, out);
  } else if (num_rows <= 4) {
    FewRowsPadded<kUpperBits, kWords, 4>(column, rows, num_rows, accumulate, out);
  } else {
    FewRowsPadded<kUpperBits, kWords, 8>(column, rows, num_rows, accumulate, out);
  }
}

template <int kUpperBits>
void FewRowsWith(const QuantizedColumn& column, const RowCodes* rows, int64_t num_rows, bool accumulate,
                 float* const* out) {
  const auto few = rows[0].group == 32 ? &FewRowsIn<kUpperBits, 8> : &FewRowsIn<kUpperBits, 4>;
  few(column, rows, num_rows, accumulate, out);
}

void FewRows(const QuantizedColumn& column, const RowCodes* rows, int64_t num_rows, bool accumulate,
             float* const* out) {
  switch (column.upper_bits()) {
    case 0:
      return FewRowsWith<0>(column, rows, num_rows, accumulate, out);
    case 1:
      return FewRowsWith<1>(column, rows, num_rows, accumulate, out);
    case 2:
      return FewRowsWith<2>(column, rows, num_rows, accumulate, out);
    default:
      return FewRowsWith<4>(column, rows, num_rows, accumulate, out);
  }
}

// --- many rows, from a block ---

template <int kUpperBits>
void ExpandPlanes(const QuantizedColumn& column, const BlockCodes& out) {
  uint32_t* target = out.codes;
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
    const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * column.plane_bytes());
    for (int quad = 0; quad < 4; ++quad, target += 2 * kPackedBlock) {
      for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
        Ops::Ints first, second;
        UnpackQuad<kUpperBits>(planes + lane, quad, first, second);
        Ops::Store(first, target + lane);
        Ops::Store(second, target + kPackedBlock + lane);
      }
    }
  }
}

// signed_bytes: how the codes were written
void ExpandScales(const QuantizedColumn& column, int64_t group, bool signed_bytes, const BlockCodes& out) {
  const Ops::Floats zero_point = Ops::SetFloats(ZeroPointOf(column.format, signed_bytes));
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
  ExpandScales(column, group, Ops::kSignedBytes, out);
}

// block, out: of the first output
template <int kBits, int kWords>
void MultiplyVectors(const RowCodes& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
                     bool accumulate, float* out, int64_t out_stride) {
  constexpr int kRows = Ops::kRows, kVectors = Ops::kVectors;
  const int64_t groups = rows.groups();
  Ops::Floats totals[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      totals[r][v] = accumulate ? Ops::LoadFloats(out + r * out_stride + v * Ops::kLanes) : Ops::Zero();
    }
  }
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    Ops::Ints products[kRows][kVectors];
    Ops::template Tile<kBits, kWords>(block.codes + group * kWords * kPackedBlock,
                                      rows.codes + group * kWords * kCodesPerWord, rows.cols, products);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t index = group * kPackedBlock + v * Ops::kLanes;
      const GroupScales scales{Ops::LoadFloats(block.steps + index), Ops::LoadFloats(block.minimums + index)};
      for (int r = 0; r < kRows; ++r) {
        totals[r][v] = AddGroup(products[r][v], scales, rows.steps[r * groups + group],
                                rows.sums[r * groups + group], totals[r][v]);
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

constexpr CodeKernels kKernels = {
    .name = Ops::kName,
    .bytes = {.rows = Ops::kRows, .expand = &Expand, .multiply = &Multiply},
    .pairs = {.rows = Ops::kPairRows, .expand = &ExpandPairs, .multiply = &MultiplyPairs},
    .few_rows = &FewRows};
