// AVX512-VNNI: vpdpbusd in vectors of 64 bytes, sixteen outputs each. It adds four products in 32 bits, which
// cannot overflow: codes have no sign and are at most 255.
#include <cmath>

#include "kernels/cpu/linear/codes/intrinsics.h"

#if defined(__x86_64__)
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
namespace kvblend::kernels {
namespace codes_avx512_vnni {
namespace {

struct Ops {
  using Floats = __m512;
  using Ints = __m512i;
  static constexpr char kName[] = "avx512_vnni";
  static constexpr bool kSignedBytes = false;
  static constexpr bool kFewPairRows = false;
  static constexpr int64_t kLanes = 16;
  // Sums of codes and sums of groups take 24 of 32 registers.
  static constexpr int kRows = 6, kVectors = 2;
  // With pairs, sums of codes alone take 24.
  static constexpr int kPairRows = 6, kPairVectors = 4;
  static constexpr int kFewRows = 8;

  static HWY_INLINE Ints Load(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static HWY_INLINE void Store(Ints v, uint32_t* p) { _mm512_storeu_si512(p, v); }
  static HWY_INLINE Ints Set(int word) { return _mm512_set1_epi32(word); }
  static HWY_INLINE Ints And(Ints a, Ints b) { return _mm512_and_si512(a, b); }
  static HWY_INLINE Ints Or(Ints a, Ints b) { return _mm512_or_si512(a, b); }
  static HWY_INLINE Ints Xor(Ints a, Ints b) { return _mm512_xor_si512(a, b); }
  static HWY_INLINE Ints ShiftRight16(Ints v, unsigned bits) { return _mm512_srli_epi16(v, bits); }
  static HWY_INLINE Ints ShiftLeft16(Ints v, unsigned bits) { return _mm512_slli_epi16(v, bits); }

  static HWY_INLINE Ints ShiftRightSigned16(Ints v, unsigned bits) { return _mm512_srai_epi16(v, bits); }
  static HWY_INLINE Ints ShiftLeft32(Ints v, unsigned bits) { return _mm512_slli_epi32(v, bits); }
  static HWY_INLINE Ints ShiftRightSigned32(Ints v, unsigned bits) { return _mm512_srai_epi32(v, bits); }

  static HWY_INLINE Floats Zero() { return _mm512_setzero_ps(); }
  static HWY_INLINE Floats SetFloats(float x) { return _mm512_set1_ps(x); }
  static HWY_INLINE Floats LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
  static HWY_INLINE void StoreFloats(Floats v, float* p) { _mm512_storeu_ps(p, v); }
  static HWY_INLINE Floats LoadHalves(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static HWY_INLINE Floats LoadBytes(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static HWY_INLINE Floats ToFloats(Ints v) { return _mm512_cvtepi32_ps(v); }
  static HWY_INLINE Ints ToInts(Floats v) { return _mm512_cvtps_epi32(v); }
  static HWY_INLINE Floats MaxMagnitude(Floats largest, Floats v) {
    return _mm512_max_ps(_mm512_abs_ps(v), largest);
  }
  static HWY_INLINE Floats DivOrZero(Floats a, Floats b) {
    return _mm512_maskz_div_ps(_mm512_cmp_ps_mask(b, _mm512_setzero_ps(), _CMP_NEQ_UQ), a, b);
  }
  static HWY_INLINE Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static HWY_INLINE Floats MulAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static HWY_INLINE Floats NegMulAdd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }

  static HWY_INLINE Ints AddProducts(Ints sums, Ints weights, Ints row) {
    return _mm512_dpbusd_epi32(sums, weights, row);
  }
  static HWY_INLINE void Settle(Ints& sum) { asm("" : "+v"(sum)); }  // as AddPairs
  static HWY_INLINE Ints AddPairs(Ints sum, Ints weights, Ints row) {
    sum = _mm512_dpwssd_epi32(sum, weights, row);
    asm("" : "+v"(sum));  // kept as it is: g++ would store every sum, and compute on with a copy
    return sum;
  }
  static HWY_INLINE Ints ZeroInts() { return _mm512_setzero_si512(); }

#include "kernels/cpu/linear/codes/vnni-inl.h"
};

#include "kernels/cpu/linear/codes/kernels-inl.h"
#include "kernels/cpu/linear/codes/whole_groups-inl.h"

}  // namespace
}  // namespace codes_avx512_vnni

const CodeKernels& CodeKernelsAvx512Vnni() { return codes_avx512_vnni::kKernelsAndWholeGroups; }

}  // namespace kvblend::kernels
HWY_POP_ATTRIBUTES
#endif
