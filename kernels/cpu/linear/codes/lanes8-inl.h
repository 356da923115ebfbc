// Vectors of 32 bytes, which AVX2 and AVX-VNNI share: the base of their Ops (kernels-inl.h). Included once by
// each of them, in its namespace.

struct Lanes8 {
  using Floats = __m256;
  using Ints = __m256i;
  static constexpr int64_t kLanes = 8;
  // Eight sums, two vectors of weights and a row's word leave room for what is between.
  static constexpr int kRows = 4, kVectors = 2;
  // Twelve sums of pairs fit, as inline assembly adds them (AddPairs).
  static constexpr int kPairRows = 6, kPairVectors = 2;
  static constexpr int kFewRows = 2;

  static HWY_INLINE Ints Load(const uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static HWY_INLINE void Store(Ints v, uint32_t* p) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static HWY_INLINE Ints Set(int word) { return _mm256_set1_epi32(word); }
  static HWY_INLINE Ints And(Ints a, Ints b) { return _mm256_and_si256(a, b); }
  static HWY_INLINE Ints Or(Ints a, Ints b) { return _mm256_or_si256(a, b); }
  static HWY_INLINE Ints Xor(Ints a, Ints b) { return _mm256_xor_si256(a, b); }
  static HWY_INLINE Ints ShiftRight16(Ints v, int bits) { return _mm256_srli_epi16(v, bits); }
  static HWY_INLINE Ints ShiftLeft16(Ints v, int bits) { return _mm256_slli_epi16(v, bits); }

  static HWY_INLINE Ints ShiftRightSigned16(Ints v, int bits) { return _mm256_srai_epi16(v, bits); }
  static HWY_INLINE Ints ShiftLeft32(Ints v, int bits) { return _mm256_slli_epi32(v, bits); }
  static HWY_INLINE Ints ShiftRightSigned32(Ints v, int bits) { return _mm256_srai_epi32(v, bits); }
  static HWY_INLINE Ints ZeroInts() { return _mm256_setzero_si256(); }

  static HWY_INLINE Floats Zero() { return _mm256_setzero_ps(); }
  static HWY_INLINE Floats SetFloats(float x) { return _mm256_set1_ps(x); }
  static HWY_INLINE Floats LoadFloats(const float* p) { return _mm256_loadu_ps(p); }
  static HWY_INLINE void StoreFloats(Floats v, float* p) { _mm256_storeu_ps(p, v); }
  static HWY_INLINE Floats LoadHalves(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static HWY_INLINE Floats LoadBytes(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static HWY_INLINE Floats ToFloats(Ints v) { return _mm256_cvtepi32_ps(v); }
  static HWY_INLINE Ints ToInts(Floats v) { return _mm256_cvtps_epi32(v); }
  static HWY_INLINE Floats MaxMagnitude(Floats largest, Floats v) {
    return _mm256_max_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v), largest);
  }
  static HWY_INLINE Floats DivOrZero(Floats a, Floats b) {
    return _mm256_and_ps(_mm256_div_ps(a, b), _mm256_cmp_ps(b, _mm256_setzero_ps(), _CMP_NEQ_UQ));
  }
  static HWY_INLINE Floats Mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static HWY_INLINE Floats MulAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static HWY_INLINE Floats NegMulAdd(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
};
