// Products of a few rows of activations, straight from a column (code_products.h); included by kernels-inl.h.

// Vectors of a column's outputs.
constexpr int kColumnVectors = static_cast<int>(kColumnOutputs / Ops::kLanes);

// How rows of a kind of codes are multiplied: in how many terms, how many rows at a time so that sums and
// totals stay in registers, and how a group's sums become a float.
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
  static constexpr int kTerms = 1, kRows = std::min(2 * Ops::kFewRows, int{kMaxColumnRows});
  template <int kBits>
  static HWY_INLINE Ops::Floats Product(const Ops::Ints (&sums)[kTerms]) {
    return Ops::ToFloats(sums[0]);
  }
};

// Adds the products of eight inputs. planes: of the chunk; codes: of the first row, `stride` bytes behind
// them lie the next one's
template <int kUpperBits, int kRows, class Code>
HWY_INLINE void AddQuad(const uint32_t* planes, int quad, const std::byte* codes, int64_t stride,
                        Ops::Ints (&sums)[kRows][kColumnVectors][FewRowsOfCodes<Code>::kTerms]) {
  Ops::Ints first[kColumnVectors], second[kColumnVectors];
  for (int v = 0; v < kColumnVectors; ++v) {
    UnpackQuad<kUpperBits>(planes + v * Ops::kLanes, quad, first[v], second[v]);
  }
  if constexpr (std::is_same_v<Code, int16_t>) {
    for (int pair = 0; pair < 4; ++pair) {
      Ops::Ints columns[kColumnVectors];
      for (int v = 0; v < kColumnVectors; ++v) {
        const Ops::Ints bytes = pair % 2 == 0 ? first[v] : second[v];
        columns[v] = pair < 2 ? EvenBytes(bytes) : OddBytes(bytes);
      }
      for (int r = 0; r < kRows; ++r) {
        const Ops::Ints word =
            Ops::Set(WordOfCodes(codes + r * stride + pair * static_cast<int64_t>(sizeof(uint32_t))));
        for (int v = 0; v < kColumnVectors; ++v) {
          sums[r][v][0] = Ops::AddPairs(sums[r][v][0], columns[v], word);
        }
      }
    }
  } else {
    constexpr int kTerms = FewRowsOfCodes<Code>::kTerms;
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTerms; ++t) {
        const auto word = Ops::Set(WordOfCodes(codes + r * stride + t * kCodesPerWord)),
                   next = Ops::Set(WordOfCodes(codes + r * stride + (kTerms + t) * kCodesPerWord));
        for (int v = 0; v < kColumnVectors; ++v) {
          Ops::template AddTwo<4 + kUpperBits>(first[v], second[v], word, next, sums[r][v][t]);
          // Of more rows g++ would keep two copies of every sum, for which there are no registers.
          if constexpr (kRows > 2) Ops::Settle(sums[r][v][t]);
        }
      }
    }
  }
}

// The products of one group. A word of a row is read once for all outputs, and a word of weights for all
// rows. planes: of the chunk; the group's begin with quad `first_quad`. codes, steps, row_sums: of the tile's
// group
template <int kUpperBits, int kWords, int kRows, class Code>
HWY_INLINE void AddGroupOfRows(const QuantizedColumn& column, const uint32_t* planes, int first_quad,
                               const Code* codes, const float* steps, const float* row_sums, int64_t scale,
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
  // As a loop, sums would be copied from one set of registers to another each time.
#pragma GCC unroll 4
  for (int quad = 0; quad < kWords / 2; ++quad) {
    AddQuad<kUpperBits, kRows, Code>(planes, first_quad + quad,
                                     reinterpret_cast<const std::byte*>(codes) + quad * kQuadBytes,
                                     /*stride=*/kWords / 2 * kQuadBytes, sums);
  }
  for (int v = 0; v < kColumnVectors; ++v) {
    const GroupScales scales = ScalesOf(column, scale, v * Ops::kLanes, zero_point);
    for (int r = 0; r < kRows; ++r) {
      totals[r][v] =
          AddGroup(Few::template Product<kBits>(sums[r][v]), scales, steps[r], row_sums[r], totals[r][v]);
    }
  }
}

// rows: a tile
template <int kUpperBits, int kWords, int kRows, class Code>
void FewRowsOf(const QuantizedColumn& column, const CodedRows<Code>& rows, bool accumulate,
               float* const* out) {
  constexpr int kGroupsPerChunk = 8 / kWords, kQuadsPerGroup = kWords / 2;
  constexpr int64_t kGroupCodes = kRows * kWords * kCodesPerWord / CodedRows<Code>::kInputs;
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
      const int64_t group = chunk * kGroupsPerChunk + g;
      AddGroupOfRows<kUpperBits, kWords, kRows, Code>(
          column, planes, g * kQuadsPerGroup, rows.codes + group * kGroupCodes, rows.steps + group * kRows,
          rows.sums + group * kRows, scale, zero_point, totals);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kColumnVectors; ++v) Ops::StoreFloats(totals[r][v], out[r] + v * Ops::kLanes);
  }
}

// Rows beyond num_rows write where nobody reads.
template <int kUpperBits, int kWords, int kRows, class Code>
void FewRowsPadded(const QuantizedColumn& column, const CodedRows<Code>& rows, int64_t num_rows,
                   bool accumulate, float* const* out) {
  float* targets[kRows];
  alignas(64) float unused[kColumnOutputs] = {};
  for (int r = 0; r < kRows; ++r) targets[r] = r < num_rows ? out[r] : unused;
  FewRowsOf<kUpperBits, kWords, kRows>(column, rows, accumulate, targets);
}

// Tile by tile: the column stays in the first-level cache.
template <int kUpperBits, int kWords, class Code>
void FewRowsIn(const QuantizedColumn& column, const CodedRows<Code>& rows, int64_t num_rows, bool accumulate,
               float* const* out) {
  constexpr int kMost = FewRowsOfCodes<Code>::kRows;
  for (int64_t row = 0; row < num_rows;) {
    const int64_t left = num_rows - row, tile_rows = FirstTileRows(left, kMost);
    const CodedRows<Code> tile = rows.Tile(row, tile_rows);
    if (tile_rows == 1) {
      FewRowsOf<kUpperBits, kWords, 1>(column, tile, accumulate, out + row);
    } else if (tile_rows == 2) {
      FewRowsOf<kUpperBits, kWords, 2>(column, tile, accumulate, out + row);
    } else if constexpr (kMost > 2) {
      if (tile_rows == 4) {
        FewRowsPadded<kUpperBits, kWords, 4>(column, tile, left, accumulate, out + row);
      } else if constexpr (kMost > 4) {
        FewRowsPadded<kUpperBits, kWords, 8>(column, tile, left, accumulate, out + row);
      }
    }
    row += tile_rows;
  }
}

template <int kUpperBits, class Code>
void FewRowsWith(const QuantizedColumn& column, const CodedRows<Code>& rows, int64_t num_rows,
                 bool accumulate, float* const* out) {
  const auto few = rows.group == 32 ? &FewRowsIn<kUpperBits, 8, Code> : &FewRowsIn<kUpperBits, 4, Code>;
  few(column, rows, num_rows, accumulate, out);
}

template <class Code>
void FewRows(const QuantizedColumn& column, const CodedRows<Code>& rows, int64_t num_rows, bool accumulate,
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

template <class Code>
constexpr ColumnKernels<Code> FewRowsKernels(RowQuantizer<Code> quantize) {
  constexpr int kRows = FewRowsOfCodes<Code>::kRows;
  static_assert(kRows == 2 || kRows == 4 || kRows == kMaxColumnRows);
  return {.tile_rows = kRows, .quantize = quantize, .multiply = &FewRows<Code>};
}
