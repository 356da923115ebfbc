// Tiles of 16-bit codes (kernels/cpu/machine/tiles.h), where the processor multiplies no bf16: vpmaddwd
// multiplies and adds twice as many pairs per instruction as f32 has products, and codes of 12 and 13 bits
// with a step per row are as exact as bf16, or more so.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/tiles_int16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/machine/instruction_set.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
using CodeF32 = hn::CappedTag<float, kKeyStep>;
using CodeI32 = hn::RebindToSigned<CodeF32>;
using CodeI16 = hn::Repartition<int16_t, CodeI32>;
using Sums = hn::Vec<CodeI32>;

constexpr int64_t kCodeTileRows = 6;
constexpr int kCodeVectors = HWY_TARGET == HWY_AVX2 ? 2 : 4;
constexpr int64_t kCodeLanes = hn::MaxLanes(CodeF32());

// The nearest codes of kCodesAtOnce values, which fit: Highway's conversions would look for those that don't.
constexpr int64_t kCodesAtOnce = 2 * kCodeLanes;
HWY_INLINE void StoreCodes(hn::Vec<CodeF32> first, hn::Vec<CodeF32> second, int16_t* codes) {
  // Packing takes parts of 128 bits in turn.
#if HWY_TARGET == HWY_AVX2
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(first.raw), _mm256_cvtps_epi32(second.raw));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permute4x64_epi64(packed, 0xD8));
#else
  const __m512i packed = _mm512_packs_epi32(_mm512_cvtps_epi32(first.raw), _mm512_cvtps_epi32(second.raw));
  const __m512i order = _mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0);
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi64(order, packed));
#endif
}

// What the values of a row are multiplied by to become codes; *step: what a unit of them is worth. Of a row
// of zeros the step is 0, of one that has a NaN or an infinity NaN; their codes are 0. magnitude: the bits of
// the largest absolute value.
HWY_INLINE float CodesPerValue(int32_t magnitude, float scale, float limit, float* step) {
  const float largest =
      std::bit_cast<float>(magnitude) * std::abs(scale);  // infinite or NaN where a value is
  const bool finite = largest <= std::numeric_limits<float>::max();
  *step = !finite                     ? std::numeric_limits<float>::quiet_NaN()
          : largest >= kSmallestCoded ? largest / limit
                                      : 0.0f;
  return finite && largest >= kSmallestCoded ? limit / largest * scale : 0.0f;
}

// Rows are looked through together, so that one does not wait for another's largest value.
template <DataType kType, int kRows>
HWY_INLINE void CodeSomeRows(const void* x, int64_t first, int64_t n, float scale, float limit,
                             const CodedRowsView& out) {
  const CodeF32 d;
  const CodeI32 d32;
  const int64_t whole = n - n % kCodeLanes;
  const auto bits = [&](auto tag, int64_t at) HWY_ATTR {
    const hn::RebindToSigned<decltype(tag)> signed_tag;
    return hn::And(hn::BitCast(signed_tag, LoadF32<kType>(tag, x, at)), hn::Set(signed_tag, 0x7FFFFFFF));
  };
  hn::Vec<CodeI32> largest[kRows];
  for (int r = 0; r < kRows; ++r) largest[r] = hn::Zero(d32);
  for (int64_t i = 0; i < whole; i += kCodeLanes) {
    for (int r = 0; r < kRows; ++r) largest[r] = hn::Max(largest[r], bits(d, (first + r) * n + i));
  }
  float per_value[kRows];
  for (int r = 0; r < kRows; ++r) {
    int32_t top = hn::GetLane(hn::MaxOfLanes(d32, largest[r]));
    for (int64_t i = whole; i < n; ++i) top = std::max(top, hn::GetLane(bits(OneF32(), (first + r) * n + i)));
    per_value[r] = CodesPerValue(top, scale, limit, out.steps + (first + r) * out.step_stride);
  }
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = (first + r) * n;
    int16_t* codes = out.codes + (first + r) * out.code_stride;
    if (per_value[r] == 0) {
      std::fill_n(codes, n, int16_t{0});
      continue;
    }
    const auto factor = hn::Set(d, per_value[r]);
    int64_t i = 0;
    for (; i + kCodesAtOnce <= n; i += kCodesAtOnce) {
      StoreCodes(hn::Mul(LoadF32<kType>(d, x, row + i), factor),
                 hn::Mul(LoadF32<kType>(d, x, row + i + kCodeLanes), factor), codes + i);
    }
    for (; i < n; ++i) {
      const float value = hn::GetLane(LoadF32<kType>(OneF32(), x, row + i));
      codes[i] = static_cast<int16_t>(std::nearbyint(value * per_value[r]));
    }
  }
}

template <DataType kType>
void CodeRowsOf(const void* x, int64_t rows, int64_t n, float scale, float limit, const CodedRowsView& out) {
  constexpr int kTogether = 4;
  int64_t row = 0;
  for (; row + kTogether <= rows; row += kTogether) {
    CodeSomeRows<kType, kTogether>(x, row, n, scale, limit, out);
  }
  for (; row < rows; ++row) CodeSomeRows<kType, 1>(x, row, n, scale, limit, out);
}

void CodeRowsImpl(const void* x, DataType dtype, int64_t rows, int64_t n, float scale, float limit,
                  const CodedRowsView& out) {
  KVBLEND_FOR_DTYPE(dtype, CodeRowsOf<kType>(x, rows, n, scale, limit, out));
}

// sum += products of pairs. Inline assembly, since g++ takes sums of integers apart, computes all products
// first and has no registers for them; and Highway 1.0.3 has no operation that multiplies and adds.
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

// Weights (probabilities times the steps of their values) of a tile and a block of keys, as codes with one
// step per row.
struct WeightCodes {
  alignas(64) int16_t codes[kCodeTileRows][kKeyBlock];
  float steps[kCodeTileRows];
};

// The steps of a block's values, by panels.
struct ValueSteps {
  const float* panels[kKeyBlock / kPanelKeys];
};

// Calls body(panel, its first key, its keys).
template <class Body>
HWY_INLINE void ForPanels(int64_t keys, const Body& body) {
  for (int64_t panel = 0; panel * kPanelKeys < keys; ++panel) {
    const int64_t first = panel * kPanelKeys;
    body(panel, first, std::min(kPanelKeys, keys - first));
  }
}

HWY_INLINE bool AllFinite(const ValueSteps& steps, int64_t keys) {
  const CodeF32 d;
  auto not_finite = hn::Zero(d);
  ForPanels(keys, [&](int64_t panel, int64_t, int64_t count) HWY_ATTR {
    for (int64_t j = 0; j < count; j += kCodeLanes) {
      not_finite = hn::MulAdd(hn::LoadU(d, steps.panels[panel] + j), hn::Zero(d), not_finite);
    }
  });
  return hn::GetLane(hn::SumOfLanes(d, not_finite)) == 0;
}

// A row's step where some values are not finite: NaN where the row gives one of them weight, otherwise 0.
// finite: the steps with 0 in their place
float StepOfNotFinite(const float* probabilities, const ValueSteps& steps, int64_t keys, float* finite) {
  int64_t seen = 0;  // counted: g++ 12 takes a loop that sets a float to NaN for a search of the largest
  for (int64_t key = 0; key < keys; ++key) {
    const float step = steps.panels[key / kPanelKeys][key % kPanelKeys];
    const bool is_finite = std::isfinite(step);
    seen += !is_finite && probabilities[key] != 0 ? 1 : 0;
    finite[key] = is_finite ? step : 0.0f;
  }
  return seen == 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
}

// Codes per unit of a row's weights: as many as let the largest weight fit into 16 bits and the sum into 32.
// A row that looks at few keys gets more bits than one that looks at many, whose roundings cancel out.
HWY_INLINE float CodesPerUnit(const float* probabilities, const ValueSteps& steps, int64_t keys) {
  const CodeF32 d;
  constexpr int kChains = 2;  // in one, each vector would wait for the one before it
  hn::Vec<CodeF32> largest[kChains], sums[kChains];
  for (int i = 0; i < kChains; ++i) largest[i] = sums[i] = hn::Zero(d);
  const auto add = [&](int chain, const float* p, const float* step) HWY_ATTR {
    const auto weight = hn::Mul(hn::LoadU(d, p), hn::LoadU(d, step));
    largest[chain] = hn::Max(largest[chain], weight);
    sums[chain] = hn::Add(sums[chain], weight);
  };
  ForPanels(keys, [&](int64_t panel, int64_t first, int64_t count) HWY_ATTR {
    const float *p = probabilities + first, *step = steps.panels[panel];
    int64_t j = 0;
    for (; j + kChains * kCodeLanes <= count; j += kChains * kCodeLanes) {
      for (int i = 0; i < kChains; ++i) add(i, p + j + i * kCodeLanes, step + j + i * kCodeLanes);
    }
    for (; j < count; j += kCodeLanes) add(0, p + j, step + j);
  });
  const float top = hn::GetLane(hn::MaxOfLanes(d, hn::Max(largest[0], largest[1])));
  const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sums[0], sums[1])));
  // Weights too small for an inverse are nothing beside any other block's.
  return top >= kSmallestCoded ? std::min(kWeightLimit / top, kWeightSumLimit / sum) : 0.0f;
}

// Returns the row's step.
HWY_INLINE float EncodeRow(const float* probabilities, const ValueSteps& steps, int64_t keys,
                           int16_t* codes) {
  const CodeF32 d;
  const float per_unit = CodesPerUnit(probabilities, steps, keys);
  ForPanels(keys, [&](int64_t panel, int64_t first, int64_t count) HWY_ATTR {
    const auto scaled = [&](int64_t j) HWY_ATTR {
      return hn::Mul(hn::Mul(hn::LoadU(d, probabilities + first + j), hn::Set(d, per_unit)),
                     hn::LoadU(d, steps.panels[panel] + j));
    };
    int64_t j = 0;
    for (; j + kCodesAtOnce <= count; j += kCodesAtOnce) {
      StoreCodes(scaled(j), scaled(j + kCodeLanes), codes + first + j);
    }
    if (j < count) StoreCodes(scaled(j), hn::Zero(d), codes + first + j);
  });
  return per_unit == 0.0f ? 0.0f : 1.0f / per_unit;
}

HWY_INLINE void EncodeWeights(const float* probabilities, const ValueSteps& steps, int64_t keys,
                              WeightCodes& out) {
  const bool all_finite = AllFinite(steps, keys);
  for (int64_t r = 0; r < kCodeTileRows; ++r, probabilities += kKeyBlock) {
    if (all_finite) {
      out.steps[r] = EncodeRow(probabilities, steps, keys, out.codes[r]);
      continue;
    }
    float replaced[kKeyBlock];
    ValueSteps finite;
    ForPanels(keys, [&](int64_t panel, int64_t first, int64_t)
                        HWY_ATTR { finite.panels[panel] = replaced + first; });
    const float unit = StepOfNotFinite(probabilities, steps, keys, replaced);
    out.steps[r] = unit + EncodeRow(probabilities, finite, keys, out.codes[r]);
  }
}

template <bool kVnni, int kVectors>
HWY_INLINE void AddCodeColumns(const WeightCodes& weights, const uint32_t* const* panels, int64_t steps,
                               int64_t column, int64_t columns, const float* alphas, float* out) {
  const CodeF32 d;
  Sums sums[kCodeTileRows][kVectors];
  ClearSums(sums);
  constexpr int64_t kPanelSteps = kPanelKeys / 2;
  const auto* codes = reinterpret_cast<const uint32_t*>(weights.codes);
  for (int64_t step = 0; step < steps; step += kPanelSteps) {
    const uint32_t* panel = *panels++;
    const uint32_t* next = step + kPanelSteps < steps ? *panels : panel;
    MultiplyCodes<kVnni, kVectors>(codes + step, kKeyBlock / 2, panel + column, next + column, columns,
                                   std::min(kPanelSteps, steps - step), sums);
  }
  for (int64_t r = 0; r < kCodeTileRows; ++r) {
    const auto step = hn::Set(d, weights.steps[r]), alpha = hn::Set(d, alphas[r]);
    for (int v = 0; v < kVectors; ++v) {
      float* target = out + r * columns + column + v * kCodeLanes;
      const auto before = hn::Mul(hn::LoadU(d, target), alpha);
      hn::StoreU(hn::MulAdd(hn::ConvertTo(d, sums[r][v]), step, before), d, target);
    }
  }
}

template <bool kVnni>
void AddCodeValues(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps,
                   int64_t columns, const float* alphas, float* out) {
  ValueSteps value_steps;
  for (int64_t p = 0; p * kPanelKeys < 2 * steps; ++p) {
    value_steps.panels[p] = reinterpret_cast<const float*>(panels[p] + kPanelKeys / 2 * columns);
  }
  WeightCodes weights;
  EncodeWeights(reinterpret_cast<const float*>(probabilities), value_steps, 2 * steps, weights);
  ForCodeColumns(columns, [&](auto vectors, int64_t column) HWY_ATTR {
    AddCodeColumns<kVnni, vectors()>(weights, panels, steps, column, columns, alphas, out);
  });
}

template <bool kVnni>
Tiles MakeInt16Tiles() {
  Tiles result = GetCodeWordTiles();
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
// Never called where there are no such tiles.
void CodeRowsImpl(const void*, DataType, int64_t, int64_t, float, float, const CodedRowsView&) {}
#endif

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(CodeRowsImpl);
HWY_EXPORT(Int16TilesImpl);

void CodeRows(const void* x, DataType dtype, int64_t rows, int64_t n, float scale, float limit,
              const CodedRowsView& out) {
  HWY_DYNAMIC_DISPATCH(CodeRowsImpl)(x, dtype, rows, n, scale, limit, out);
}
const Tiles* GetInt16Tiles() { return HWY_DYNAMIC_DISPATCH(Int16TilesImpl)(MultipliesAndAddsPairs()); }
const Tiles* GetInt16TilesWithoutVnni() { return HWY_DYNAMIC_DISPATCH(Int16TilesImpl)(/*vnni=*/false); }

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
