// Rows of activations as terms and as asymmetric codes (code_products.h), in AVX2's vectors, which every
// processor has that multiplies codes.
#include "kernels/cpu/linear/codes/intrinsics.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

#if defined(__x86_64__)
#include <cmath>
#include <limits>

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
namespace kvblend::kernels {
namespace {

constexpr int kLanes = 8;

// A row of f32 in whole groups: itself, or a copy with zeros behind it in the thread's memory.
const float* PaddedRow(const void* x, DataType dtype, int64_t n, int64_t cols) {
  if (dtype == DataType::kF32 && n == cols) return static_cast<const float*>(x);
  auto* row = ThreadScratch<float>(ScratchSlot::kCodes, cols);
  simd::ConvertRow(x, dtype, row, DataType::kF32, n);
  std::fill(row + n, row + cols, 0.0f);
  return row;
}

// `op` over lanes 0, 2, .. in the lowest lane of the result, over lanes 1, 3, .. in the next one.
template <class Op>
HWY_INLINE __m128 OfHalves(__m256 v, Op op) {
  const __m128 four = op(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  return op(four, _mm_movehl_ps(four, four));
}

// `op` over all lanes.
template <class Op>
HWY_INLINE float OfLanes(__m256 v, Op op) {
  const __m128 two = OfHalves(v, op);
  return _mm_cvtss_f32(op(two, _mm_movehdup_ps(two)));
}
HWY_INLINE int32_t SumOfLanes(__m256i v) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)),
                two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

// Bytes of four vectors, in the order of words: of every eight 0 4 1 5 2 6 3 7.
HWY_INLINE void PackInOrder(const __m256i (&v)[4], __m128i& first_two, __m128i& last_two) {
  // Packing takes both halves of vectors by themselves, so the lower half has the first four of each eight,
  // and the upper half the others.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  const __m128i lower = _mm256_castsi256_si128(bytes), upper = _mm256_extracti128_si256(bytes, 1);
  first_two = _mm_unpacklo_epi8(lower, upper);
  last_two = _mm_unpackhi_epi8(lower, upper);
}

// --- terms ---

// kVectors: of a group
template <int kVectors>
HWY_INLINE void EncodeTerms(const float* x, CodeTerms* out, float* step, float* sum) {
  constexpr auto kLimit = static_cast<float>(kLargestRowCode<CodeTerms>);
  __m256 values[kVectors], most = _mm256_setzero_ps(), not_finite = _mm256_setzero_ps();
  for (int v = 0; v < kVectors; ++v) {
    values[v] = _mm256_loadu_ps(x + v * kLanes);
    most = _mm256_max_ps(most, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), values[v]));
    not_finite = _mm256_fmadd_ps(values[v], _mm256_setzero_ps(), not_finite);  // NaN where one is not finite
  }
  const float largest = OfLanes(most, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
  const bool finite = _mm256_movemask_ps(_mm256_cmp_ps(not_finite, not_finite, _CMP_UNORD_Q)) == 0;
  const __m256 inverse = _mm256_set1_ps(finite && largest >= kSmallestCoded ? kLimit / largest : 0.0f);
  __m256i total = _mm256_setzero_si256();
  for (int v = 0; v < kVectors; v += 2, out += 2 * kLanes / kCodesPerWord) {
    __m256i terms[4];  // two of upper ones, two of lower ones
    for (int i = 0; i < 2; ++i) {
      const __m256i code = _mm256_cvtps_epi32(_mm256_mul_ps(values[v + i], inverse));
      total = _mm256_add_epi32(total, code);
      // The nearest multiple: what is left is at most 127 in magnitude.
      const __m256i upper =
          _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(1.0f / kTermBase)));
      static_assert(kTermBase == 255);
      terms[i] = upper;
      terms[2 + i] = _mm256_add_epi32(_mm256_sub_epi32(code, _mm256_slli_epi32(upper, 8)), upper);
    }
    __m128i high, low;
    PackInOrder(terms, high, low);
    auto* target = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(target, _mm_unpacklo_epi32(high, low));
    _mm_storeu_si128(target + 1, _mm_unpackhi_epi32(high, low));
  }
  *step = finite ? largest * (1.0f / kLimit) : std::numeric_limits<float>::quiet_NaN();
  *sum = *step * static_cast<float>(SumOfLanes(total));
}

}  // namespace

void QuantizeTerms(const void* x, DataType dtype, int64_t n, const RowTerms& out) {
  const float* row = PaddedRow(x, dtype, n, out.cols);
  const auto encode = out.group == 32 ? &EncodeTerms<4> : &EncodeTerms<2>;
  for (int64_t g = 0; g < out.groups(); ++g) {
    encode(row + g * out.group, out.codes + g * out.group_stride(), out.steps + g * out.tile_rows,
           out.sums + g * out.tile_rows);
  }
}

namespace {

// --- asymmetric codes ---
//
// A row is read twice: for the ranges of its groups' halves, the largest of which gives the row its step, and
// to be encoded. A group's even inputs lie in every other lane, its odd ones in those between, so that both
// halves are encoded at once.

// One step less than 256 codes span, as the zero point is rounded too. The ends of a range are divided first:
// their difference might overflow.
constexpr float kInverseCodes = 1.0f / 254.0f;
constexpr int kGroupVectors = int{AsymmetricGroup::kInputs / kLanes};

// The ranges of a group's halves, kept in place of its codes until these are known.
struct HalfRanges {
  float least[2];  // 0 or less
  float steps[2];  // the smallest that their ranges allow
};
static_assert(sizeof(HalfRanges) <= sizeof(AsymmetricGroup::codes));

// not_finite: becomes NaN in lanes with a value that is not finite
HWY_INLINE HalfRanges RangesOf(const float* x, __m128& largest_step, __m256& not_finite) {
  __m256 least = _mm256_setzero_ps(), most = _mm256_setzero_ps();
  for (int i = 0; i < kGroupVectors; ++i) {
    const __m256 v = _mm256_loadu_ps(x + i * kLanes);
    least = _mm256_min_ps(least, v);
    most = _mm256_max_ps(most, v);
    not_finite = _mm256_fmadd_ps(v, _mm256_setzero_ps(), not_finite);
  }
  const __m128 low = OfHalves(least, [](__m128 a, __m128 b) { return _mm_min_ps(a, b); }),
               high = OfHalves(most, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
  const __m128 inverse = _mm_set1_ps(kInverseCodes);
  const __m128 steps = _mm_sub_ps(_mm_mul_ps(high, inverse), _mm_mul_ps(low, inverse));
  largest_step = _mm_max_ps(largest_step, steps);
  HalfRanges ranges;
  static_assert(sizeof(ranges) == sizeof(__m128));
  _mm_storeu_ps(ranges.least, _mm_movelh_ps(low, steps));
  return ranges;
}

// Each half's number in the lanes of its inputs.
HWY_INLINE __m256 ByHalves(const float* numbers) {
  double both;
  std::memcpy(&both, numbers, sizeof(both));
  return _mm256_castpd_ps(_mm256_set1_pd(both));
}

// Returns the sum of the group's values, in steps of the row, `unit`.
HWY_INLINE float EncodeGroup(const float* x, const HalfRanges& ranges, float unit, float inverse_unit,
                             AsymmetricGroup* out) {
  const __m256 wanted = _mm256_ceil_ps(_mm256_mul_ps(ByHalves(ranges.steps), _mm256_set1_ps(inverse_unit)));
  const __m256 multiple =
      _mm256_min_ps(_mm256_max_ps(wanted, _mm256_set1_ps(1.0f)),
                    _mm256_set1_ps(static_cast<float>(AsymmetricGroup::kLargestMultiple)));
  const __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), _mm256_mul_ps(multiple, _mm256_set1_ps(unit)));
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const __m256 zero_point = _mm256_sub_ps(
      _mm256_round_ps(_mm256_mul_ps(_mm256_xor_ps(ByHalves(ranges.least), _mm256_set1_ps(-0.0f)), inverse),
                      kNearest),
      _mm256_set1_ps(128.0f));
  __m256i codes[kGroupVectors];
  __m256i sums = _mm256_setzero_si256();
  for (int i = 0; i < kGroupVectors; ++i) {
    codes[i] = _mm256_cvtps_epi32(_mm256_fmadd_ps(_mm256_loadu_ps(x + i * kLanes), inverse, zero_point));
    sums = _mm256_add_epi32(sums, codes[i]);
  }
  static_assert(kGroupVectors == 4);
  __m128i first, second;
  PackInOrder(codes, first, second);
  auto* target = reinterpret_cast<__m128i*>(out->codes);
  _mm_storeu_si128(target, first);
  _mm_storeu_si128(target + 1, second);
  const __m256 in_steps =
      _mm256_fnmadd_ps(zero_point, _mm256_set1_ps(kGroupVectors), _mm256_cvtepi32_ps(sums));
  const __m128 products = OfHalves(_mm256_mul_ps(in_steps, multiple), [](__m128 a, __m128 b) {
    return _mm_add_ps(a, b);  // whole numbers below 2^24
  });
  // The two lowest lanes of each, as multiples and zeros lie behind each other.
  const __m128 factor = _mm256_castps256_ps128(multiple),
               zeros = _mm_mul_ps(factor, _mm256_castps256_ps128(zero_point));
  const __m128i both = _mm_cvtps_epi32(_mm_movelh_ps(factor, _mm_xor_ps(zeros, _mm_set1_ps(-0.0f))));
  static_assert(offsetof(AsymmetricGroup, zeros) == offsetof(AsymmetricGroup, multiples) + sizeof(int32_t));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out->multiples), _mm_packs_epi32(both, both));
  return _mm_cvtss_f32(_mm_add_ss(products, _mm_movehdup_ps(products)));
}

}  // namespace

void QuantizeAsymmetric(const void* x, DataType dtype, int64_t n, const AsymmetricRows& out) {
  const float* row = PaddedRow(x, dtype, n, out.cols);
  const int64_t groups = out.groups(), stride = out.group_stride();
  __m128 largest_step = _mm_setzero_ps();
  __m256 not_finite = _mm256_setzero_ps();
  for (int64_t g = 0; g < groups; ++g) {
    const HalfRanges ranges = RangesOf(row + g * AsymmetricGroup::kInputs, largest_step, not_finite);
    std::memcpy(out.codes[g * stride].codes, &ranges, sizeof(ranges));
  }
  const float bad = OfLanes(not_finite, [](__m128 a, __m128 b) { return _mm_add_ps(a, b); }),
              largest = std::max(_mm_cvtss_f32(largest_step), _mm_cvtss_f32(_mm_movehdup_ps(largest_step)));
  const float unit = largest * (1.0f / AsymmetricGroup::kLargestMultiple), inverse_unit = 1.0f / unit;
  const bool encodable = largest >= kSmallestCoded && bad == 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    AsymmetricGroup& group = out.codes[g * stride];
    out.steps[g * out.tile_rows] = unit + bad;
    if (!encodable) {
      group = {};
      out.sums[g * out.tile_rows] = 0.0f;
      continue;
    }
    HalfRanges ranges;
    std::memcpy(&ranges, group.codes, sizeof(ranges));
    out.sums[g * out.tile_rows] =
        EncodeGroup(row + g * AsymmetricGroup::kInputs, ranges, unit, inverse_unit, &group);
  }
}

namespace {

// --- asymmetric codes of whole groups ---

HWY_INLINE void EncodeWholeGroup(const float* x, AsymmetricWholeGroup* out, float* step) {
  __m256 values[kGroupVectors], least = _mm256_setzero_ps(), most = _mm256_setzero_ps(), not_finite = least;
  for (int i = 0; i < kGroupVectors; ++i) {
    values[i] = _mm256_loadu_ps(x + i * kLanes);
    least = _mm256_min_ps(least, values[i]);
    most = _mm256_max_ps(most, values[i]);
    not_finite = _mm256_fmadd_ps(values[i], _mm256_setzero_ps(), not_finite);
  }
  const float low = OfLanes(least, [](__m128 a, __m128 b) { return _mm_min_ps(a, b); }),
              high = OfLanes(most, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
  const float wanted = high * kInverseCodes - low * kInverseCodes;
  const bool finite = _mm256_movemask_ps(_mm256_cmp_ps(not_finite, not_finite, _CMP_UNORD_Q)) == 0;
  if (!finite || wanted < kSmallestCoded) {
    *out = {};
    *step = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const float inverse = 1.0f / wanted;
  const __m256 inverses = _mm256_set1_ps(inverse);
  const float zero = std::nearbyint(-low * inverse) - 128.0f;
  const __m256 zeros = _mm256_set1_ps(zero);
  __m256i codes[kGroupVectors], sums = _mm256_setzero_si256();
  for (int i = 0; i < kGroupVectors; ++i) {
    codes[i] = _mm256_cvtps_epi32(_mm256_fmadd_ps(values[i], inverses, zeros));
    sums = _mm256_add_epi32(sums, codes[i]);
  }
  __m128i first, second;
  PackInOrder(codes, first, second);
  auto* target = reinterpret_cast<__m128i*>(out->codes);
  _mm_storeu_si128(target, first);
  _mm_storeu_si128(target + 1, second);
  const auto zero_point = static_cast<int32_t>(zero);
  out->zeros[0] = static_cast<int16_t>(-zero_point);
  out->zeros[1] =
      static_cast<int16_t>(SumOfLanes(sums) - int32_t{AsymmetricWholeGroup::kInputs} * zero_point);
  *step = wanted;
}

}  // namespace

void QuantizeWholeGroups(const void* x, DataType dtype, int64_t n, const WholeGroupRows& out) {
  const float* row = PaddedRow(x, dtype, n, out.cols);
  for (int64_t g = 0; g < out.groups(); ++g) {
    EncodeWholeGroup(row + g * AsymmetricWholeGroup::kInputs, out.codes + g * out.group_stride(),
                     out.steps + g * out.tile_rows);
    out.sums[g * out.tile_rows] = 0.0f;
  }
}

}  // namespace kvblend::kernels
HWY_POP_ATTRIBUTES
#endif
