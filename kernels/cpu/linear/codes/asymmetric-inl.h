// Products of a prompt's rows in asymmetric codes (code_products.h), on AVX2; included by avx2.cc in place of
// kernels-inl.h.
//
// The bytes of a word are two even and two odd inputs, so vpmaddubsw adds products of the group's even inputs
// in every other sum of 16 bits, and of its odd ones in those between. vpmaddwd, which makes sums of 32 bits
// of them, multiplies by the multiple of each half meanwhile. Activations are -128 .. 127, so a half's
// products are at most
//    4 bits   16 * 15 * 128 = 30,720: all eight words of a group are added in 16 bits
//    5 bits    8 * 31 * 128 = 31,744 of four words, which are widened before the other four
// Sums of weights, at most 16 * 31, times zero points are one more vpmaddwd.

#include "kernels/cpu/linear/codes/kernels-inl.h"

// As in wide-inl.h, what a tile reads of the weights lies in one piece.
constexpr int kAsymmetricRows = Ops::kPairRows, kAsymmetricVectors = Ops::kPairVectors;
constexpr int64_t kAsymmetricWidth = kAsymmetricVectors * Ops::kLanes;
static_assert(kPackedBlock % kAsymmetricWidth == 0 && kAsymmetricWidth % kColumnOutputs == 0);
constexpr int64_t kAsymmetricWords = AsymmetricRows::BlockWords(AsymmetricGroup::kInputs);
constexpr int kGroupWords = int{AsymmetricGroup::kInputs / kCodesPerWord};

// Words whose products are added in 16 bits.
template <int kBits>
constexpr int kSummedWords = kBits <= 4 ? kGroupWords : kGroupWords / 2;
static_assert(kSummedWords<4> * 2 * 15 * 128 <= INT16_MAX);
static_assert(kSummedWords<AsymmetricGroup::kMostWeightBits> * 2 *
                  ((1 << AsymmetricGroup::kMostWeightBits) - 1) * 128 <=
              INT16_MAX);

template <int kUpperBits>
void ExpandAsymmetricWords(const QuantizedColumn& column, const BlockCodes& out) {
  const Ops::Ints ones = Ops::Set(0x01010101);
  uint32_t* target = out.codes;
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk, target += kAsymmetricWords * kAsymmetricWidth) {
    ExpandChunk<kUpperBits, kAsymmetricWidth>(column, chunk, target);
    for (int64_t lane = 0; lane < kColumnOutputs; lane += Ops::kLanes) {
      Ops::Ints sums = Ops::ZeroInts();
      for (int word = 0; word < kGroupWords; ++word) {
        sums = Ops::AddBytePairs(sums, Ops::Load(target + word * kAsymmetricWidth + lane), ones);
      }
      Ops::Store(sums, target + kGroupWords * kAsymmetricWidth + lane);
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

// sums = the products of some of a group's words, in 16 bits. weights, codes: the first word's; rows a group
// apart
template <int kWords>
HWY_INLINE void SumWords(const uint32_t* weights, const int8_t* codes,
                         Ops::Ints (&sums)[kAsymmetricRows][kAsymmetricVectors]) {
  constexpr int kRows = kAsymmetricRows, kVectors = kAsymmetricVectors;
#pragma GCC unroll 8
  for (int word = 0; word < kWords; ++word) {
    Ops::Ints columns[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = Ops::Load(weights + word * kAsymmetricWidth + v * Ops::kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const auto stride = static_cast<int64_t>(sizeof(AsymmetricGroup));
      const Ops::Ints row = Ops::Set(WordOfCodes(codes + r * stride + word * kCodesPerWord));
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] =
            word == 0 ? Ops::BytePairs(columns[v], row) : Ops::AddBytePairs(sums[r][v], columns[v], row);
      }
    }
  }
}

// block, out: of the first output
template <int kBits>
void MultiplyAsymmetricVectors(const AsymmetricRows& rows, const BlockCodes& block, int64_t first_group,
                               int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  constexpr int kRows = kAsymmetricRows, kVectors = kAsymmetricVectors, kSummed = kSummedWords<kBits>;
  // Registers are full of sums: totals (in steps of their row) and the first words' products lie in memory.
  alignas(32) float totals[kRows][kAsymmetricWidth];
  for (auto& row : totals) {
    for (int v = 0; v < kVectors; ++v) Ops::StoreFloats(Ops::Zero(), row + v * Ops::kLanes);
  }
  [[maybe_unused]] alignas(32) uint32_t products[kRows][kAsymmetricWidth];
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    const uint32_t* weights = block.codes + group * kAsymmetricWords * kAsymmetricWidth;
    const AsymmetricGroup* codes = rows.codes + group * kRows;
    Ops::Ints sums[kRows][kVectors];
    SumWords<kSummed>(weights, codes->codes, sums);
    if constexpr (kSummed < kGroupWords) {
      for (int r = 0; r < kRows; ++r) {
        const Ops::Ints multiples = Ops::Set(WordOfCodes(codes[r].multiples));
        for (int v = 0; v < kVectors; ++v) {
          Ops::Store(Ops::MultiplyPairs(sums[r][v], multiples), products[r] + v * Ops::kLanes);
        }
      }
      SumWords<kGroupWords - kSummed>(weights + kSummed * kAsymmetricWidth,
                                      codes->codes + kSummed * kCodesPerWord, sums);
    }
    GroupScales scales[kVectors];
    for (int v = 0; v < kVectors; ++v) scales[v] = ScalesOf(block, group, v);
    for (int r = 0; r < kRows; ++r) {
      const Ops::Ints multiples = Ops::Set(WordOfCodes(codes[r].multiples)),
                      zeros = Ops::Set(WordOfCodes(codes[r].zeros));
      const Ops::Floats sum = Ops::SetFloats(rows.sums[group * kRows + r]);
      for (int v = 0; v < kVectors; ++v) {
        float* total = totals[r] + v * Ops::kLanes;
        Ops::Ints product;
        if constexpr (kSummed < kGroupWords) {
          product = Ops::AddPairs(Ops::Load(products[r] + v * Ops::kLanes), sums[r][v], multiples);
        } else {
          product = Ops::MultiplyPairs(sums[r][v], multiples);
        }
        const Ops::Ints code_sums = Ops::Load(weights + kGroupWords * kAsymmetricWidth + v * Ops::kLanes);
        const Ops::Floats scaled = Ops::MulAdd(Ops::ToFloats(Ops::AddPairs(product, code_sums, zeros)),
                                               scales[v].step, Ops::LoadFloats(total));
        Ops::StoreFloats(Ops::MulAdd(scales[v].minimum, sum, scaled), total);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const Ops::Floats step = Ops::SetFloats(rows.steps[r]);
    for (int v = 0; v < kVectors; ++v) {
      float* target = out + r * out_stride + v * Ops::kLanes;
      const Ops::Floats before = accumulate ? Ops::LoadFloats(target) : Ops::Zero();
      Ops::StoreFloats(Ops::MulAdd(Ops::LoadFloats(totals[r] + v * Ops::kLanes), step, before), target);
    }
  }
}

void MultiplyAsymmetric(const AsymmetricRows& rows, const BlockCodes& block, int64_t first_group,
                        int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  const auto multiply = block.bits <= 4 ? &MultiplyAsymmetricVectors<4> : &MultiplyAsymmetricVectors<5>;
  for (int64_t output = 0; output < kPackedBlock; output += kAsymmetricWidth) {
    multiply(rows, block.Output(output), first_group, num_groups, accumulate, out + output, out_stride);
  }
}

constexpr CodeKernels kKernelsAndAsymmetric = [] {
  CodeKernels kernels = kKernels;
  kernels.asymmetric = {.rows = kAsymmetricRows,
                        .width = kAsymmetricWidth,
                        .quantize = &QuantizeAsymmetric,
                        .expand = &ExpandAsymmetric,
                        .multiply = &MultiplyAsymmetric};
  return kernels;
}();
