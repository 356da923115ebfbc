// Products of a prompt's rows in asymmetric codes (code_products.h) on AVX2; included by avx2.cc behind kernels-inl.h.
//
// Activations are -128 .. 127 and weights at most 31, so a pair of products is at most 2 * 31 * 128 = 7,936: the four words of
// half a group, 31,744, are added in 16 bits. vpmaddwd, which makes sums of 32 bits of them, multiplies by the half's multiple
// of the group's step meanwhile. Sums of weights, at most 16 * 31, times zero points are one more vpmaddwd for both halves.

// As of wide groups, what a tile reads of the weights lies in one piece.
constexpr int64_t kAsymmetricWidth = Ops::kPairVectors * Ops::kLanes;
constexpr int64_t kAsymmetricWords = AsymmetricRows::BlockWords(AsymmetricGroup::kInputs);
constexpr int kHalfWords = int{AsymmetricGroup::kHalfInputs / kCodesPerWord};
static_assert(kHalfWords * 2 * ((1 << AsymmetricGroup::kMostWeightBits) - 1) * 128 <= INT16_MAX);

// The sums of both halves' codes, beside each other. words: of a group, for kLanes outputs
HWY_INLINE Ops::Ints SumsOfHalves(const uint32_t* words) {
  const Ops::Ints ones = Ops::Set(0x01010101);
  Ops::Ints sums[2];
  for (int half = 0; half < 2; ++half, words += kHalfWords * kAsymmetricWidth) {
    Ops::Ints pairs = Ops::ZeroInts();
    for (int word = 0; word < kHalfWords; ++word) {
      pairs = Ops::Add16(pairs, Ops::Pairs<4>(Ops::Load(words + word * kAsymmetricWidth), ones));
    }
    sums[half] = Ops::SumPairs(pairs);
  }
  return Ops::Or(sums[0], Ops::ShiftLeft32(sums[1], 16));
}

template <int kUpperBits>
void ExpandAsymmetricWords(const QuantizedColumn& column, const BlockCodes& out) {
  uint32_t* target = out.codes;
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk, target += kAsymmetricWords * kAsymmetricWidth) {
    ExpandChunk<kUpperBits, kAsymmetricWidth>(column, chunk, target);
    for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
      Ops::Store(SumsOfHalves(target + lane), target + (kAsymmetricWords - 1) * kAsymmetricWidth + lane);
    }
  }
}

void ExpandAsymmetric(const QuantizedColumn& column, int64_t group, const BlockCodes& out) {
  if (column.upper_bits() == 0) {
    ExpandAsymmetricWords<0>(column, out);
  } else {
    ExpandAsymmetricWords<1>(column, out);
  }
  ExpandScales(column, group, out);
}

// sums = the products of half a group, in 16 bits. weights, codes: of its first word; rows are a group apart
HWY_INLINE void HalfTile(const uint32_t* weights, const int8_t* codes,
                         Ops::Ints (&sums)[Ops::kPairRows][Ops::kPairVectors]) {
  constexpr int kRows = Ops::kPairRows, kVectors = Ops::kPairVectors;
#pragma GCC unroll 4
  for (int word = 0; word < kHalfWords; ++word) {
    Ops::Ints columns[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = Ops::Load(weights + word * kAsymmetricWidth + v * Ops::kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto stride = static_cast<int64_t>(sizeof(AsymmetricGroup));
      const Ops::Ints row = Ops::Set(WordOfCodes(codes + r * stride + word * kCodesPerWord));
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] =
            word == 0 ? Ops::Pairs<4>(columns[v], row) : Ops::AddBytePairs(sums[r][v], columns[v], row);
      }
    }
  }
}

// block, out: of the first output
void MultiplyAsymmetricVectors(const AsymmetricRows& rows, const BlockCodes& block, int64_t first_group,
                               int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  constexpr int kRows = Ops::kPairRows, kVectors = Ops::kPairVectors;
  if (!accumulate) ClearPairTile(out, out_stride);
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    const uint32_t* weights = block.codes + group * kAsymmetricWords * kAsymmetricWidth;
    const AsymmetricGroup* codes = rows.codes + group * kRows;
    Ops::Ints sums[kRows][kVectors];
    // Registers are full of sums, so what the first half makes, and the totals, lie in memory meanwhile.
    alignas(32) uint32_t products[kRows][kVectors * Ops::kLanes];
    HalfTile(weights, codes->codes, sums);
    for (int r = 0; r < kRows; ++r) {
      const Ops::Ints multiple = Ops::Set(WordOfCodes(codes[r].multiples[0])),
                      zeros = Ops::Set(WordOfCodes(codes[r].zeros));
      for (int v = 0; v < kVectors; ++v) {
        const Ops::Ints code_sums =
            Ops::Load(weights + (kAsymmetricWords - 1) * kAsymmetricWidth + v * Ops::kLanes);
        Ops::Store(Ops::AddPairs(Ops::MultiplyPairs(sums[r][v], multiple), code_sums, zeros),
                   products[r] + v * Ops::kLanes);
      }
    }
    HalfTile(weights + kHalfWords * kAsymmetricWidth, codes->codes + AsymmetricGroup::kHalfInputs, sums);
    GroupScales scales[kVectors];
    for (int v = 0; v < kVectors; ++v) scales[v] = ScalesOf(block, group, v);
    for (int r = 0; r < kRows; ++r) {
      const float step = rows.steps[group * kRows + r], sum = rows.sums[group * kRows + r];
      const Ops::Ints multiple = Ops::Set(WordOfCodes(codes[r].multiples[1]));
      for (int v = 0; v < kVectors; ++v) {
        float* total = out + r * out_stride + v * Ops::kLanes;
        const Ops::Ints product =
            Ops::AddPairs(Ops::Load(products[r] + v * Ops::kLanes), sums[r][v], multiple);
        Ops::StoreFloats(AddGroup(Ops::ToFloats(product), scales[v], step, sum, Ops::LoadFloats(total)),
                         total);
      }
    }
  }
}

void MultiplyAsymmetric(const AsymmetricRows& rows, const BlockCodes& block, int64_t first_group,
                        int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  for (int64_t output = 0; output < kPackedBlock; output += kAsymmetricWidth) {
    MultiplyAsymmetricVectors(rows, block.Output(output), first_group, num_groups, accumulate, out + output,
                              out_stride);
  }
}

constexpr BlockKernels<AsymmetricGroup> kAsymmetricKernels = {.rows = Ops::kPairRows,
                                                              .width = kAsymmetricWidth,
                                                              .expand = &ExpandAsymmetric,
                                                              .multiply = &MultiplyAsymmetric};
