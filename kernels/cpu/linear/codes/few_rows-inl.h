// Products of a few rows of activations, straight from a column (code_products.h); included by kernels-inl.h.

// Vectors of a column's outputs.
constexpr int kColumnVectors = static_cast<int>(kColumnOutputs / Ops::kLanes);

// How rows of a kind of codes are multiplied: in how many terms, how many rows at a time so that most sums
// and totals stay in registers, and how a group's sums become a float.
template <class Code>
struct FewRowsOfCodes;

template <>
struct FewRowsOfCodes<int8_t> {
  static constexpr int kTerms = 1, kRows = Ops::kFewRows;
  template <int kBits>
  static HWY_INLINE Ops::Floats Product(const Ops::Ints (&sums)[kTerms]) {
    return Ops::ToFloats(Ops::template Total<kBits>(sums[0]));
  }
};

template <>
struct FewRowsOfCodes<CodeTerms> {
  static constexpr int kTerms = 2, kRows = Ops::kFewRows;
  // Floats hold either term's sum, below 2^20, exactly, and their sum is rounded once: as the whole number is
  // when it is converted.
  template <int kBits>
  static HWY_INLINE Ops::Floats Product(const Ops::Ints (&sums)[kTerms]) {
    return Ops::MulAdd(Ops::ToFloats(Ops::template Total<kBits>(sums[0])),
                       Ops::SetFloats(static_cast<float>(kTermBase)),
                       Ops::ToFloats(Ops::template Total<kBits>(sums[1])));
  }
};

template <>
struct FewRowsOfCodes<int16_t> {
  static constexpr int kTerms = 1, kRows = 2 * Ops::kFewRows;
  template <int kBits>
  static HWY_INLINE Ops::Floats Product(const Ops::Ints (&sums)[kTerms]) {
    return Ops::ToFloats(sums[0]);
  }
};

// Adds the products of eight inputs, which lie `offset` bytes behind each row's first code.
template <int kBits, int kRows, class Code>
HWY_INLINE void AddQuad(const Ops::Ints (&first)[kColumnVectors], const Ops::Ints (&second)[kColumnVectors],
                        const CodedRows<Code>* rows, int64_t offset,
                        Ops::Ints (&sums)[kRows][kColumnVectors][FewRowsOfCodes<Code>::kTerms]) {
  if constexpr (std::is_same_v<Code, int16_t>) {
    for (int pair = 0; pair < 4; ++pair) {
      Ops::Ints columns[kColumnVectors];
      for (int v = 0; v < kColumnVectors; ++v) {
        const Ops::Ints bytes = pair % 2 == 0 ? first[v] : second[v];
        columns[v] = pair < 2 ? EvenBytes(bytes) : OddBytes(bytes);
      }
      for (int r = 0; r < kRows; ++r) {
        const auto* codes = reinterpret_cast<const std::byte*>(rows[r].codes) + offset;
        const Ops::Ints word = Ops::Set(WordOfCodes(codes + pair * static_cast<int64_t>(sizeof(uint32_t))));
        for (int v = 0; v < kColumnVectors; ++v) {
          sums[r][v][0] = Ops::AddPairs(sums[r][v][0], columns[v], word);
        }
      }
    }
  } else {
    constexpr int kTerms = FewRowsOfCodes<Code>::kTerms;
    for (int r = 0; r < kRows; ++r) {
      const auto* codes = reinterpret_cast<const std::byte*>(rows[r].codes) + offset;
      for (int t = 0; t < kTerms; ++t) {
        const auto word = Ops::Set(WordOfCodes(codes + t * kCodesPerWord)),
                   next = Ops::Set(WordOfCodes(codes + (kTerms + t) * kCodesPerWord));
        for (int v = 0; v < kColumnVectors; ++v) {
          Ops::template AddTwo<kBits>(first[v], second[v], word, next, sums[r][v][t]);
        }
      }
    }
  }
}

// The products of one group. A word of a row is read once for all outputs, and a word of weights for all
// rows. planes: of the chunk; the group's begin with quad `first_quad`
template <int kUpperBits, int kWords, int kRows, class Code>
HWY_INLINE void AddGroupOfRows(const QuantizedColumn& column, const uint32_t* planes, int first_quad,
                               const CodedRows<Code>* rows, int64_t group, int64_t scale,
                               Ops::Floats zero_point, Ops::Floats (&totals)[kRows][kColumnVectors]) {
  using Few = FewRowsOfCodes<Code>;
  constexpr int kBits = 4 + kUpperBits;
  constexpr auto kQuadBytes = static_cast<int64_t>(8 / CodedRows<Code>::kInputs * sizeof(Code));
  Ops::Ints sums[kRows][kColumnVectors][Few::kTerms];
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
    AddQuad<kBits, kRows, Code>(first, second, rows, (group * (kWords / 2) + quad) * kQuadBytes, sums);
  }
  for (int v = 0; v < kColumnVectors; ++v) {
    const GroupScales scales = ScalesOf(column, scale, v * Ops::kLanes, zero_point);
    for (int r = 0; r < kRows; ++r) {
      totals[r][v] = AddGroup(Few::template Product<kBits>(sums[r][v]), scales, rows[r].steps[group],
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
  constexpr int64_t kMost = FewRowsOfCodes<Code>::kRows;
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
