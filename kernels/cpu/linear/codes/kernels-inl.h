// What the kernels of all instruction sets share (code_products.h): written once over `Ops`, which the
// including file defines in its own namespace, compiled for its instruction set. Included once by each of
// them, in an anonymous namespace within KVBLEND_CODES_NAMESPACE.
//
// Ops has:
//   Floats, Ints            vectors of kLanes floats and 32-bit words; kLanes divides kColumnOutputs
//   kRows, kVectors         of a tile whose sums stay in registers
//   kPairRows, kPairVectors the same for pairs of codes (pairs-inl.h)
//   kFewRows                at least 2; rows of a column's products whose sums, of two terms each, stay in registers
//   kSignedBytes            whether codes of 8 bits are multiplied as -128 .. 127
//   Load, Store, ...        by their names
//   AddTwo<kBits>           adds the products of two words of weights with two of a row to sums, of which Total<kBits> makes
//                           sums of 32 bits; as many of them as a group has
//   Tile<kBits, kWords>     sums over a group's words of four products each, for a tile of rows

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

// The sums of one more group: the one place where they are rounded, but for their own conversion.
HWY_INLINE Ops::Floats AddGroup(Ops::Floats product, const GroupScales& scales, float step, float sum,
                                Ops::Floats total) {
  const Ops::Floats scaled = Ops::Mul(product, scales.step);
  return Ops::MulAdd(scales.minimum, Ops::SetFloats(sum), Ops::MulAdd(scaled, Ops::SetFloats(step), total));
}

// --- few rows, straight from a column ---

// How a row's codes are read: the words of either of its terms, and what their sums become.
template <class Code>
struct CodeTermsOf;
template <>
struct CodeTermsOf<int8_t> {
  static constexpr int kTerms = 1;
  static HWY_INLINE Ops::Floats Product(const Ops::Ints (&sums)[kTerms]) { return Ops::ToFloats(sums[0]); }
};
template <>
struct CodeTermsOf<CodeTerms> {
  static constexpr int kTerms = 2;
  // Floats hold either term's sum, below 2^20, exactly, and their sum is rounded once: as the whole number is when it is
  // converted.
  static HWY_INLINE Ops::Floats Product(const Ops::Ints (&sums)[kTerms]) {
    return Ops::MulAdd(Ops::ToFloats(sums[0]), Ops::SetFloats(static_cast<float>(kTermBase)),
                       Ops::ToFloats(sums[1]));
  }
};

// Vectors of a column's outputs.
constexpr int kColumnVectors = static_cast<int>(kColumnOutputs / Ops::kLanes);

// The products of one group. A word of a row is read once for all outputs, and a word of weights for all rows. planes: of the
// chunk; the group's begin with quad `first_quad`
template <int kUpperBits, int kWords, int kRows, class Code>
HWY_INLINE void AddGroupOfRows(const QuantizedColumn& column, const uint32_t* planes, int first_quad,
                               const CodedRows<Code>* rows, int64_t group, int64_t scale,
                               Ops::Floats zero_point, Ops::Floats (&totals)[kRows][kColumnVectors]) {
  constexpr int kBits = 4 + kUpperBits, kTerms = CodeTermsOf<Code>::kTerms;
  constexpr int64_t kWordBytes = kTerms * kCodesPerWord, kGroupBytes = kWords * kWordBytes;
  Ops::Ints sums[kRows][kColumnVectors][kTerms];
  for (auto& row : sums) {
    for (auto& vector : row) {
      for (Ops::Ints& sum : vector) sum = Ops::ZeroInts();
    }
  }
  for (int quad = 0; quad < kWords / 2; ++quad) {
    Ops::Ints first[kColumnVectors], second[kColumnVectors];
    for (int v = 0; v < kColumnVectors; ++v) {
      UnpackQuad<kUpperBits>(planes + v * Ops::kLanes, first_quad + quad, first[v], second[v]);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto* words =
          reinterpret_cast<const int8_t*>(rows[r].codes) + group * kGroupBytes + 2 * quad * kWordBytes;
      for (int t = 0; t < kTerms; ++t) {
        const auto word = Ops::Set(WordOfCodes(words + t * kCodesPerWord)),
                   next = Ops::Set(WordOfCodes(words + kWordBytes + t * kCodesPerWord));
        for (int v = 0; v < kColumnVectors; ++v) {
          Ops::template AddTwo<kBits>(first[v], second[v], word, next, sums[r][v][t]);
        }
      }
    }
  }
  for (int v = 0; v < kColumnVectors; ++v) {
    const GroupScales scales = ScalesOf(column, scale, v * Ops::kLanes, zero_point);
    for (int r = 0; r < kRows; ++r) {
      for (Ops::Ints& sum : sums[r][v]) sum = Ops::template Total<kBits>(sum);
      totals[r][v] = AddGroup(CodeTermsOf<Code>::Product(sums[r][v]), scales, rows[r].steps[group],
                              rows[r].sums[group], totals[r][v]);
    }
  }
}

template <int kUpperBits, int kWords, int kRows, class Code>
void FewRowsOf(const QuantizedColumn& column, const CodedRows<Code>* rows, bool accumulate,
               float* const* out) {
  constexpr int kGroupsPerChunk = 8 / kWords, kQuadsPerGroup = kWords / 2;
  const int64_t bytes_per_chunk = column.bytes() / column.chunks, plane_bytes = column.plane_bytes();
  const int64_t chunk_scales = kChunkInputs / column.format.group;
  const Ops::Floats zero_point = Ops::SetFloats(ZeroPointOf(column.format));
  Ops::Floats totals[kRows][kColumnVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kColumnVectors; ++v) {
      totals[r][v] = accumulate ? Ops::LoadFloats(out[r] + v * Ops::kLanes) : Ops::Zero();
    }
  }
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
    // Every column fetches its successor, which lies behind it.
    const std::byte* next = column.data + (column.chunks + chunk) * bytes_per_chunk;
    for (int64_t byte = 0; byte < bytes_per_chunk; byte += 64) hwy::Prefetch(next + byte);
    const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * plane_bytes);
    for (int g = 0; g < kGroupsPerChunk; ++g) {
      const int64_t scale = chunk * chunk_scales + (chunk_scales == kGroupsPerChunk ? g : 0);
      AddGroupOfRows<kUpperBits, kWords>(column, planes, g * kQuadsPerGroup, rows,
                                         chunk * kGroupsPerChunk + g, scale, zero_point, totals);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kColumnVectors; ++v) Ops::StoreFloats(totals[r][v], out[r] + v * Ops::kLanes);
  }
}

// Rows beyond num_rows repeat the first and write where nobody reads.
template <int kUpperBits, int kWords, int kRows, class Code>
void FewRowsPadded(const QuantizedColumn& column, const CodedRows<Code>* rows, int64_t num_rows,
                   bool accumulate, float* const* out) {
  CodedRows<Code> padded[kRows];
  float* targets[kRows];
  alignas(64) float unused[kColumnOutputs] = {};
  for (int r = 0; r < kRows; ++r) {
    padded[r] = rows[r < num_rows ? r : 0];
    targets[r] = r < num_rows ? out[r] : unused;
  }
  FewRowsOf<kUpperBits, kWords, kRows>(column, padded, accumulate, targets);
}

// As many rows at a time as have room for their sums: a column stays in the first-level cache.
template <int kUpperBits, int kWords, class Code>
void FewRowsIn(const QuantizedColumn& column, const CodedRows<Code>* rows, int64_t num_rows, bool accumulate,
               float* const* out) {
  constexpr int64_t kMost = Ops::kFewRows;
  for (; num_rows > 0; rows += kMost, out += kMost, num_rows -= kMost) {
    const int64_t count = std::min(num_rows, kMost);
    if (count == 1) {
      FewRowsOf<kUpperBits, kWords, 1>(column, rows, accumulate, out);
    } else if (count == 2) {
      FewRowsOf<kUpperBits, kWords, 2>(column, rows, accumulate, out);
    } else if constexpr (kMost > 2) {
      FewRowsPadded<kUpperBits, kWords, kMost>(column, rows, count, accumulate, out);
    }
  }
}

template <int kUpperBits, class Code>
void FewRowsWith(const QuantizedColumn& column, const CodedRows<Code>* rows, int64_t num_rows,
                 bool accumulate, float* const* out) {
  const auto few = rows[0].group == 32 ? &FewRowsIn<kUpperBits, 8, Code> : &FewRowsIn<kUpperBits, 4, Code>;
  few(column, rows, num_rows, accumulate, out);
}

template <class Code>
void FewRows(const QuantizedColumn& column, const CodedRows<Code>* rows, int64_t num_rows, bool accumulate,
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
        totals[r][v] = AddGroup(Ops::ToFloats(products[r][v]), scales, rows.steps[r * groups + group],
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
    .few_rows = &FewRows<int8_t>,
    .few_term_rows = &FewRows<CodeTerms>};
