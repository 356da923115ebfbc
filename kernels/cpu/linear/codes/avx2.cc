// AVX2. vpmaddubsw multiplies bytes without a sign by bytes with one and adds pairs of products in 16 bits,
// where sums beyond 32,767 are cut off. None comes there. Activations are at most 127 in magnitude, so a pair
// of products with codes of b bits is at most 2 (2^b - 1) 127:
//    4 bits   3,810: all eight words of a group, 30,480, are added in 16 bits
//    5, 6    16,002: two words, 32,004, are added in 16 bits, the rest in 32
//    8       64,770: too large. Codes are taken as -128 .. 127, their magnitudes multiplied, at most 128, and
//            the activations given their signs: 2 * 128 * 127 = 32,512
#include <utility>

#include "kernels/cpu/linear/codes/intrinsics.h"

#if defined(__x86_64__)
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
namespace kvblend::kernels {
namespace codes_avx2 {
namespace {

#include "kernels/cpu/linear/codes/lanes8-inl.h"

struct Ops : Lanes8 {
  static constexpr char kName[] = "avx2";
  static constexpr bool kSignedBytes = true;
  // Terms would need their signs moved and their sums widened, twice for each word of activations.
  static constexpr bool kFewPairRows = true;

  // Sums of two products of bytes each, in 16 bits; weights have no sign.
  static HWY_INLINE Ints BytePairs(Ints weights, Ints row) { return _mm256_maddubs_epi16(weights, row); }
  static HWY_INLINE Ints AddBytePairs(Ints sum, Ints weights, Ints row) {
    const Ints pairs = BytePairs(weights, row);
    asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(pairs));  // as Settle
    return sum;
  }
  static HWY_INLINE Ints MultiplyPairs(Ints a, Ints b) { return _mm256_madd_epi16(a, b); }

  // The same for codes of any number of bits.
  template <int kBits>
  static HWY_INLINE Ints Pairs(Ints weights, Ints row) {
    if constexpr (kBits < 8) return BytePairs(weights, row);
    return _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(row, weights));
  }
  static HWY_INLINE Ints SumPairs(Ints pairs) { return MultiplyPairs(pairs, _mm256_set1_epi16(1)); }
  static HWY_INLINE Ints Add16(Ints a, Ints b) { return _mm256_add_epi16(a, b); }

  // Keeps a sum as it is: g++ takes sums of integers apart, computes all products first, and has no registers
  // for them.
  static HWY_INLINE void Settle(Ints& sum) { asm("" : "+x"(sum)); }

  static HWY_INLINE Ints AddPairs(Ints sum, Ints weights, Ints row) {
    const Ints pairs = _mm256_madd_epi16(weights, row);
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(pairs));  // as Settle
    return sum;
  }

  template <int kBits>
  static HWY_INLINE void AddTwo(Ints weights, Ints next_weights, Ints row, Ints next_row, Ints& sum) {
    const Ints pairs = Pairs<kBits>(weights, row), next = Pairs<kBits>(next_weights, next_row);
    if constexpr (kBits == 4) {
      sum = _mm256_add_epi16(_mm256_add_epi16(sum, pairs), next);
    } else if constexpr (kBits <= 6) {
      sum = _mm256_add_epi32(sum, SumPairs(_mm256_add_epi16(pairs, next)));
    } else {
      sum = _mm256_add_epi32(_mm256_add_epi32(sum, SumPairs(pairs)), SumPairs(next));
    }
    Settle(sum);
  }
  template <int kBits>
  static HWY_INLINE Ints Total(Ints sum) {
    return kBits == 4 ? SumPairs(sum) : sum;
  }

  // Codes of 4 bits are summed in 16 bits to the end, of others two words at most before they are widened.
  template <int kBits>
  static constexpr int StepOf() {
    return kBits == 4 || kBits == 8 ? 1 : 2;
  }

  // Adds the words of one step. Rows have kWords of a group each.
  template <int kBits, int kWords>
  static HWY_INLINE void AddStep(const uint32_t* weights, const int8_t* codes,
                                 Ints (&sums)[kRows][kVectors]) {
    constexpr int kStep = StepOf<kBits>();
    Ints columns[kStep][kVectors];
    for (int s = 0; s < kStep; ++s) {
      for (int v = 0; v < kVectors; ++v) columns[s][v] = Load(weights + s * kPackedBlock + v * kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const int8_t* row = codes + r * kWords * kCodesPerWord;
      const Ints first = Set(WordOfCodes(row));
      for (int v = 0; v < kVectors; ++v) {
        Ints pairs = Pairs<kBits>(columns[0][v], first);
        if constexpr (kStep == 2) {
          const Ints next = Set(WordOfCodes(row + kCodesPerWord));
          pairs = _mm256_add_epi16(pairs, Pairs<kBits>(columns[1][v], next));
        }
        sums[r][v] =
            kBits == 4 ? _mm256_add_epi16(sums[r][v], pairs) : _mm256_add_epi32(sums[r][v], SumPairs(pairs));
        Settle(sums[r][v]);
      }
    }
  }

  template <int kBits, int kWords, int... kStep>
  static HWY_INLINE void AddSteps(std::integer_sequence<int, kStep...>, const uint32_t* weights,
                                  const int8_t* codes, Ints (&sums)[kRows][kVectors]) {
    constexpr int kStepWords = StepOf<kBits>();
    (AddStep<kBits, kWords>(weights + kStep * kStepWords * kPackedBlock,
                            codes + kStep * kStepWords * kCodesPerWord, sums),
     ...);
  }

  template <int kBits, int kWords>
  static HWY_INLINE void Tile(const uint32_t* weights, const int8_t* codes, Ints (&sums)[kRows][kVectors]) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sums[r][v] = _mm256_setzero_si256();
    }
    AddSteps<kBits, kWords>(std::make_integer_sequence<int, kWords / StepOf<kBits>()>(), weights, codes,
                            sums);
    if constexpr (kBits == 4) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sums[r][v] = SumPairs(sums[r][v]);
      }
    }
  }
};

#include "kernels/cpu/linear/codes/asymmetric-inl.h"

}  // namespace
}  // namespace codes_avx2

const CodeKernels& CodeKernelsAvx2() { return codes_avx2::kKernelsAndAsymmetric; }

}  // namespace kvblend::kernels
HWY_POP_ATTRIBUTES
#endif
