// Tiles of 16-bit codes (kernels/cpu/machine/tiles.h), where the processor multiplies no bf16: vpmaddwd multiplies and adds
// twice as many pairs per instruction as f32 has products, and codes of 12 and 13 bits with a step per row are as exact as
// bf16, or more so.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/tiles_int16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/machine/instruction_set.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// One row; a row of zeros has step 0, one that has a NaN or an infinity has NaN and codes of 0.
void CodeRowImpl(const float* x, float scale, int64_t n, float limit, int16_t* codes, float* step) {
  const Magnitude magnitude = MagnitudeOf<DataType::kF32>(x, static_cast<size_t>(n));
  const float largest = magnitude.largest * std::abs(scale);
  const bool encodable =
      magnitude.not_finite == 0 && largest >= kSmallestCoded && largest <= std::numeric_limits<float>::max();
  *step = encodable ? largest / limit : (largest + magnitude.not_finite) * 0.0f;
  const float inverse = encodable ? limit / largest * scale : 0.0f;
  if (!encodable) {
    std::fill_n(codes, n, int16_t{0});
    return;
  }
  ForEach(static_cast<size_t>(n), [&](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<int16_t, decltype(d)> d16;
    const auto code = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    hn::StoreU(hn::DemoteTo(d16, code), d16, codes + i);
  });
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
using CodeF32 = hn::CappedTag<float, kKeyStep>;
using CodeI32 = hn::RebindToSigned<CodeF32>;
using CodeI16 = hn::Repartition<int16_t, CodeI32>;
using Sums = hn::Vec<CodeI32>;

constexpr int64_t kCodeTileRows = 6;
constexpr int kCodeVectors = HWY_TARGET == HWY_AVX2 ? 2 : 4;
constexpr int64_t kCodeLanes = hn::MaxLanes(CodeF32());

// sum += products of pairs. Instructions in words of their own: g++ takes sums of integers apart, computes all products first,
// and has no registers for them; and Highway 1.0.3 has none that multiplies and adds.
template <bool kVnni>
HWY_INLINE Sums AddPairs(Sums sum, hn::Vec<CodeI16> row, hn::Vec<CodeI16> column) {
  auto result = sum.raw;
  if constexpr (kVnni && HWY_TARGET == HWY_AVX2) {
    asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(result) : "x"(row.raw), "x"(column.raw));
  } else if constexpr (kVnni) {
    asm("vpdpwssd %2, %1, %0" : "+v"(result) : "v"(row.raw), "v"(column.raw));
  } else {
    Sums unused = hn::Zero(CodeI32());
    const auto pairs = hn::ReorderWidenMulAccumulate(CodeI32(), row, column, hn::Zero(CodeI32()), unused).raw;
    asm("vpaddd %1, %0, %0" : "+v"(result) : "v"(pairs));
  }
  return Sums{result};
}

// sums += a * b, in steps of pairs of codes; `next`, of b's shape, is fetched meanwhile.
template <bool kVnni, int kVectors>
HWY_INLINE void MultiplyCodes(const uint32_t* a, int64_t a_stride, const uint32_t* b, const uint32_t* next,
                              int64_t b_stride, int64_t steps, Sums (&sums)[kCodeTileRows][kVectors]) {
  const CodeI32 d;
  const CodeI16 d16;
  const auto* codes = reinterpret_cast<const int32_t*>(b);
  for (int64_t step = 0; step < steps; ++step, codes += b_stride, next += b_stride) {
    for (int64_t word = 0; word < kVectors * kCodeLanes; word += 16) hwy::Prefetch(next + word);
    hn::Vec<CodeI16> columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::BitCast(d16, hn::LoadU(d, codes + v * kCodeLanes));
    for (int64_t r = 0; r < kCodeTileRows; ++r) {
      const auto row = hn::BitCast(d16, hn::Set(d, static_cast<int32_t>(a[r * a_stride + step])));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = AddPairs<kVnni>(sums[r][v], row, columns[v]);
    }
  }
}

template <int kVectors>
HWY_INLINE void ClearSums(Sums (&sums)[kCodeTileRows][kVectors]) {
  for (auto& row : sums) {
    for (Sums& sum : row) sum = hn::Zero(CodeI32());
  }
}

// The last step of queries and keys holds what a unit of their codes is worth.
template <bool kVnni, int kVectors>
HWY_INLINE void CodeScoreColumns(const uint32_t* queries, const uint32_t* panel, const uint32_t* next,
                                 int64_t steps, float* scores) {
  const CodeF32 d;
  Sums sums[kCodeTileRows][kVectors];
  ClearSums(sums);
  MultiplyCodes<kVnni, kVectors>(queries, steps, panel, next, kPanelKeys, steps - 1, sums);
  const auto* key_steps = reinterpret_cast<const float*>(panel + (steps - 1) * kPanelKeys);
  for (int64_t r = 0; r < kCodeTileRows; ++r) {
    const auto query_step = hn::Set(d, reinterpret_cast<const float*>(queries)[r * steps + steps - 1]);
    for (int v = 0; v < kVectors; ++v) {
      const auto step = hn::Mul(query_step, hn::LoadU(d, key_steps + v * kCodeLanes));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, sums[r][v]), step), d, scores + r * kKeyBlock + v * kCodeLanes);
    }
  }
}

template <class Body>
HWY_INLINE void ForCodeColumns(int64_t columns, const Body& body) {
  int64_t column = 0;
  for (; column + kCodeVectors * kCodeLanes <= columns; column += kCodeVectors * kCodeLanes) {
    body(std::integral_constant<int, kCodeVectors>(), column);
  }
  for (; column < columns; column += kCodeLanes) body(std::integral_constant<int, 1>(), column);
}

template <bool kVnni>
void CodeScores(const uint32_t* queries, const uint32_t* const* panels, int64_t steps, int64_t keys,
                float* scores) {
  for (int64_t key = 0; key < keys; key += kPanelKeys) {
    const uint32_t* panel = *panels++;
    const uint32_t* next = key + kPanelKeys < keys ? *panels : panel;
    ForCodeColumns(std::min(kPanelKeys, keys - key), [&](auto vectors, int64_t column) HWY_ATTR {
      CodeScoreColumns<kVnni, vectors()>(queries, panel + column, next + column, steps,
                                         scores + key + column);
    });
  }
}

// Probabilities times the values' steps as codes, with a step of their own for a row's keys of one panel.
struct WeightCodes {
  alignas(64) int16_t codes[kCodeTileRows][kPanelKeys];
  float steps[kCodeTileRows];
};

// Where some value is not finite: rows that give it weight get NaN, others nothing of it.
HWY_INLINE float StepOfNotFinite(const float* probabilities, const float* value_steps, int64_t keys,
                                 float* finite) {
  int64_t seen = 0;  // counted: g++ 12 takes a loop that sets a float to NaN for a search of the largest
  for (int64_t key = 0; key < keys; ++key) {
    const bool is_finite = std::isfinite(value_steps[key]);
    seen += !is_finite && probabilities[key] != 0 ? 1 : 0;
    finite[key] = is_finite ? value_steps[key] : 0.0f;
  }
  return seen == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
}

// The nearest codes of kKeyStep weights, which fit: Highway's conversions would look for those that don't.
HWY_INLINE void StoreCodes(const float* weights, hn::Vec<CodeF32> inverse, int16_t* codes) {
  const auto code = [&](int64_t lane)
                        HWY_ATTR { return hn::Mul(hn::Load(CodeF32(), weights + lane), inverse).raw; };
#if HWY_TARGET == HWY_AVX2
  const __m256i low = _mm256_cvtps_epi32(code(0)), high = _mm256_cvtps_epi32(code(kCodeLanes));
  // Packing takes halves of 128 bits in turn.
  const __m256i all = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
#else
  const __m256i all = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(code(0)));
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), all);
}

// keys: a multiple of kKeyStep; where it is a constant, loops over a whole panel are unrolled
template <class Keys>
HWY_INLINE void EncodeWeights(const float* probabilities, const float* value_steps, Keys keys,
                              WeightCodes& out) {
  const CodeF32 d;
  auto not_finite = hn::Zero(d);
  for (int64_t j = 0; j < keys; j += kCodeLanes) {
    not_finite = hn::MulAdd(hn::LoadU(d, value_steps + j), hn::Zero(d), not_finite);
  }
  const bool finite = hn::GetLane(hn::SumOfLanes(d, not_finite)) == 0;
  alignas(64) float weights[kCodeTileRows][kPanelKeys];
  float tops[kCodeTileRows], units[kCodeTileRows] = {}, replaced[kPanelKeys];
  for (int64_t r = 0; r < kCodeTileRows; ++r) {
    const float* row = probabilities + r * kKeyBlock;
    const float* steps = value_steps;
    if (!finite) {
      units[r] = StepOfNotFinite(row, value_steps, keys, replaced);
      steps = replaced;
    }
    auto largest = hn::Zero(d);
    for (int64_t j = 0; j < keys; j += kCodeLanes) {
      const auto weight = hn::Mul(hn::LoadU(d, row + j), hn::LoadU(d, steps + j));
      hn::Store(weight, d, weights[r] + j);
      largest = hn::Max(largest, weight);
    }
    tops[r] = hn::GetLane(hn::MaxOfLanes(d, largest));
  }
  // All rows' largest weights are searched before any is divided by, so that no row waits for another.
  for (int64_t r = 0; r < kCodeTileRows; ++r) {
    // Weights too small for an inverse are nothing beside any other panel's.
    const float inverse = tops[r] >= kSmallestCoded ? kWeightLimit / tops[r] : 0.0f;
    for (int64_t j = 0; j < keys; j += kKeyStep) {
      StoreCodes(weights[r] + j, hn::Set(d, inverse), out.codes[r] + j);
    }
    out.steps[r] = units[r] + (inverse == 0 ? 0.0f : tops[r] * (1 / kWeightLimit));
  }
}

template <bool kVnni, int kVectors>
HWY_INLINE void AddCodeColumns(const WeightCodes& weights, const uint32_t* panel, const uint32_t* next,
                               int64_t steps, int64_t columns, const float* alphas, float* out) {
  const CodeF32 d;
  Sums sums[kCodeTileRows][kVectors];
  ClearSums(sums);
  MultiplyCodes<kVnni, kVectors>(reinterpret_cast<const uint32_t*>(weights.codes), kPanelKeys / 2, panel,
                                 next, columns, steps, sums);
  for (int64_t r = 0; r < kCodeTileRows; ++r) {
    const auto step = hn::Set(d, weights.steps[r]), alpha = hn::Set(d, alphas[r]);
    for (int v = 0; v < kVectors; ++v) {
      float* target = out + r * columns + v * kCodeLanes;
      const auto before = hn::Mul(hn::LoadU(d, target), alpha);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(d, sums[r][v]), step, before), d, target);
    }
  }
}

template <bool kVnni>
void AddCodeValues(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps,
                   int64_t columns, const float* alphas, float* out) {
  constexpr int64_t kPanelSteps = kPanelKeys / 2;
  const float ones[kCodeTileRows] = {1, 1, 1, 1, 1, 1};
  WeightCodes weights;
  for (int64_t step = 0; step < steps; step += kPanelSteps, alphas = ones) {
    const uint32_t* panel = *panels++;
    const uint32_t* next = step + kPanelSteps < steps ? *panels : panel;
    const int64_t count = std::min(kPanelSteps, steps - step);
    const float *rows = reinterpret_cast<const float*>(probabilities) + 2 * step,
                *value_steps = reinterpret_cast<const float*>(panel + kPanelSteps * columns);
    if (count == kPanelSteps) {
      EncodeWeights(rows, value_steps, std::integral_constant<int64_t, kPanelKeys>(), weights);
    } else {
      EncodeWeights(rows, value_steps, 2 * count, weights);
    }
    ForCodeColumns(columns, [&](auto vectors, int64_t column) HWY_ATTR {
      AddCodeColumns<kVnni, vectors()>(weights, panel + column, next + column, count, columns, alphas,
                                       out + column);
    });
  }
}

template <bool kVnni>
Tiles MakeInt16Tiles() {
  Tiles result = GetTiles(DataType::kF32);
  result.name = kVnni ? "int16_vnni" : "int16";
  result.codes = true;
  result.rows = kCodeTileRows;
  result.linear = nullptr;
  result.scores = &CodeScores<kVnni>;
  result.add_values = &AddCodeValues<kVnni>;
  return result;
}

const Tiles* Int16TilesImpl(bool vnni) {
  static const Tiles plain = MakeInt16Tiles<false>(), with_vnni = MakeInt16Tiles<true>();
  return vnni ? &with_vnni : &plain;
}
#else
const Tiles* Int16TilesImpl(bool) { return nullptr; }
#endif

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(CodeRowImpl);
HWY_EXPORT(Int16TilesImpl);

void CodeRow(const float* x, float scale, int64_t n, float limit, int16_t* codes, float* step) {
  HWY_DYNAMIC_DISPATCH(CodeRowImpl)(x, scale, n, limit, codes, step);
}
const Tiles* GetInt16Tiles() { return HWY_DYNAMIC_DISPATCH(Int16TilesImpl)(MultipliesAndAddsPairs()); }
const Tiles* GetInt16TilesWithoutVnni() { return HWY_DYNAMIC_DISPATCH(Int16TilesImpl)(/*vnni=*/false); }

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
