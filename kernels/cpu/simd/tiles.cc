// Tiles, once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "hwy/cache_control.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

using TileF32 = hn::CappedTag<float, kKeyStep>;
using TileU32 = hn::RebindToUnsigned<TileF32>;
using F32s = hn::Vec<TileF32>;
using Words = hn::Vec<TileU32>;

// With four vectors of columns they fill 24 of AVX-512's 32 registers.
constexpr int64_t kTileRows = 6;
static_assert(kTileRows <= kMaxTileRows);
// Sums, a row's word and as many columns as these have must fit into the registers.
constexpr int kMaxVectors = HWY_CAP_GE512 || HWY_TARGET == HWY_NEON ? 4 : 2;

// 2^x for x <= 0 with a relative error below 2.7e-6; NaN stays NaN.
HWY_INLINE F32s CoarseExp2(F32s x) {
  const TileF32 d;
#if HWY_CAP_GE512
  const F32s f{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};  // x - floor(x)
  // Minimax polynomial of degree 4 for 2^f in [0, 1).
  auto p = hn::MulAdd(hn::Set(d, 0.013534167f), f, hn::Set(d, 0.052011464f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24144275f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.69300383f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0000026f));
  return F32s{_mm512_scalef_ps(p.raw, x.raw)};  // times 2^floor(x)
#else
  return simd::HWY_NAMESPACE::Exp2<4>(d, x);
#endif
}

struct F32Words {
  static constexpr char kName[] = "f32";
  static constexpr DataType kType = DataType::kF32;
  static constexpr int64_t kElements = 1;
  static HWY_INLINE F32s MulAdd(Words a, Words b, F32s sum) {
    const TileF32 d;
    return hn::MulAdd(hn::BitCast(d, a), hn::BitCast(d, b), sum);
  }
  static HWY_INLINE F32s Exp2(F32s x) { return simd::HWY_NAMESPACE::Exp2(TileF32(), x); }
  static HWY_INLINE void Store(F32s v, void* out, int64_t i) {
    hn::StoreU(v, TileF32(), static_cast<float*>(out) + i);
  }
};

// Operands that tiles_int16.cc turns into codes of 16 bits: f32 until then.
struct CodeWords : F32Words {
  static HWY_INLINE F32s Exp2(F32s x) { return CoarseExp2(x); }
};

#if KVBLEND_BF16_WORDS
struct Bf16Words {
  static constexpr char kName[] = "avx512_bf16";
  static constexpr DataType kType = DataType::kBF16;
  static constexpr int64_t kElements = 2;
  static HWY_INLINE F32s MulAdd(Words a, Words b, F32s sum) {
    return F32s{_mm512_dpbf16_ps(sum.raw, (__m512bh)a.raw, (__m512bh)b.raw)};
  }
  static HWY_INLINE F32s Exp2(F32s x) { return CoarseExp2(x); }  // its error is a thousandth of bf16's
  static HWY_INLINE void Store(F32s v, void* out, int64_t i) {
    const __m256bh rounded = _mm512_cvtneps_pbh(v.raw);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(out) + i), (__m256i)rounded);
  }
};
#endif

// --- products ---

// Words of b that are fetched ahead: the hardware's prefetcher stops at every 4 KiB page.
constexpr int64_t kPrefetchWords = 4096 / sizeof(uint32_t);

// sums += a * b; `next`, of b's shape, is fetched meanwhile.
template <class Operands, int kVectors, bool kPrefetch = true>
HWY_INLINE void MultiplyTile(const uint32_t* a, int64_t a_stride, const uint32_t* b, const uint32_t* next,
                             int64_t b_stride, int64_t steps, F32s (&sums)[kTileRows][kVectors]) {
  const TileU32 d;
  for (int64_t step = 0; step < steps; ++step, b += b_stride, next += b_stride) {
    if constexpr (kPrefetch) {
      for (int64_t word = 0; word < kVectors * static_cast<int64_t>(hn::Lanes(d)); word += 16) {
        hwy::Prefetch(next + word);
      }
    }
    Words columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(d, b + v * hn::Lanes(d));
    for (int64_t r = 0; r < kTileRows; ++r) {
      const Words row = hn::Set(d, a[r * a_stride + step]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Operands::MulAdd(row, columns[v], sums[r][v]);
    }
  }
}

template <class Operands, int kVectors>
HWY_INLINE void ScoreColumns(const uint32_t* queries, const uint32_t* panel, const uint32_t* next,
                             int64_t steps, float* scores) {
  const TileF32 d;
  F32s sums[kTileRows][kVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  MultiplyTile<Operands, kVectors>(queries, steps, panel, next, kPanelKeys, steps, sums);
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(sums[r][v], d, scores + r * kKeyBlock + v * hn::Lanes(d));
    }
  }
}

template <class Operands, bool kPrefetch>
HWY_INLINE void LinearColumns(const uint32_t* rows, int64_t row_stride, const uint32_t* block, int64_t steps,
                              bool accumulate, float* out, int64_t out_stride) {
  const TileF32 d;
  F32s sums[kTileRows][kMaxVectors];
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kMaxVectors; ++v) {
      sums[r][v] = accumulate ? hn::LoadU(d, out + r * out_stride + v * hn::Lanes(d)) : hn::Zero(d);
    }
  }
  MultiplyTile<Operands, kMaxVectors, kPrefetch>(rows, row_stride, block, block + kPrefetchWords,
                                                 kPackedBlock, steps, sums);
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kMaxVectors; ++v) {
      hn::StoreU(sums[r][v], d, out + r * out_stride + v * hn::Lanes(d));
    }
  }
}

template <class Operands>
void Linear(const uint32_t* rows, int64_t row_stride, const uint32_t* block, int64_t steps, bool accumulate,
            bool prefetch, float* out, int64_t out_stride) {
  const int64_t columns = kMaxVectors * static_cast<int64_t>(hn::Lanes(TileF32()));
  for (int64_t column = 0; column < kPackedBlock; column += columns) {
    if (prefetch) {
      LinearColumns<Operands, true>(rows, row_stride, block + column, steps, accumulate, out + column,
                                    out_stride);
    } else {
      LinearColumns<Operands, false>(rows, row_stride, block + column, steps, accumulate, out + column,
                                     out_stride);
    }
  }
}

// Calls body(number of vectors as a constant, first column) until `columns`, a multiple of kKeyStep, are
// done.
template <class Body>
HWY_INLINE void ForColumns(int64_t columns, const Body& body) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(TileF32()));
  int64_t column = 0;
  for (; column + kMaxVectors * lanes <= columns; column += kMaxVectors * lanes) {
    body(std::integral_constant<int, kMaxVectors>(), column);
  }
  for (; column < columns; column += lanes) body(std::integral_constant<int, 1>(), column);
}

template <class Operands>
void Scores(const uint32_t* queries, const uint32_t* const* panels, int64_t steps, int64_t keys,
            float* scores) {
  int64_t key = 0;
  if constexpr (kMaxVectors * kKeyStep == kPanelKeys && HWY_CAP_GE512) {
    for (; key + kPanelKeys <= keys; key += kPanelKeys) {
      const uint32_t* panel = *panels++;
      ScoreColumns<Operands, kMaxVectors>(queries, panel, key + kPanelKeys < keys ? *panels : panel, steps,
                                          scores + key);
    }
  }
  for (; key < keys; key += kPanelKeys) {
    const uint32_t* panel = *panels++;
    const uint32_t* next = key + kPanelKeys < keys ? *panels : panel;
    ForColumns(std::min(kPanelKeys, keys - key), [&](auto vectors, int64_t column) KVBLEND_BF16_ATTR {
      ScoreColumns<Operands, vectors()>(queries, panel + column, next + column, steps, scores + key + column);
    });
  }
}

template <class Operands, int kVectors>
HWY_INLINE void AddValueColumns(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps,
                                int64_t column, int64_t columns, const float* alphas, float* out) {
  const TileF32 d;
  F32s sums[kTileRows][kVectors];
  for (int64_t r = 0; r < kTileRows; ++r) {
    const F32s alpha = hn::Set(d, alphas[r]);
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Mul(alpha, hn::LoadU(d, out + r * columns + v * hn::Lanes(d)));
    }
  }
  constexpr int64_t kPanelSteps = kPanelKeys / Operands::kElements;
  for (int64_t step = 0; step < steps; step += kPanelSteps) {
    const uint32_t* panel = *panels++;
    const uint32_t* next = step + kPanelSteps < steps ? *panels : panel;
    MultiplyTile<Operands, kVectors>(probabilities + step, kKeyBlock / Operands::kElements, panel + column,
                                     next + column, columns, std::min(kPanelSteps, steps - step), sums);
  }
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, out + r * columns + v * hn::Lanes(d));
  }
}

template <class Operands>
void AddValues(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps, int64_t columns,
               const float* alphas, float* out) {
  ForColumns(columns, [&](auto vectors, int64_t column) KVBLEND_BF16_ATTR {
    AddValueColumns<Operands, vectors()>(probabilities, panels, steps, column, columns, alphas, out + column);
  });
}

// --- softmax ---

// Lanes j .. j + lanes - 1 that are visible.
HWY_INLINE hn::Mask<TileF32> VisibleLanes(VisibleKeys visible, int64_t j) {
  const TileF32 d;
  const auto before_end = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(visible.end - j, 0)));
  const auto before_begin = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(visible.begin - j, 0)));
  return hn::AndNot(before_begin, before_end);
}

// Calls whole(j) for two vectors of which all lanes are visible, part(j, mask) for each of the others that
// has some.
template <class Whole, class Part>
HWY_INLINE void ForVisible(VisibleKeys visible, const Whole& whole, const Part& part) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(TileF32()));
  int64_t j = visible.begin / lanes * lanes;
  if (j < visible.begin) {
    part(j, VisibleLanes(visible, j));
    j += lanes;
  }
  for (; j + 2 * lanes <= visible.end; j += 2 * lanes) whole(j);
  for (; j < visible.end; j += lanes) part(j, VisibleLanes(visible, j));
}

// The larger of `old_max` and of what is visible. Mostly it is `old_max`, which lanes tell by themselves.
HWY_INLINE float MaxOfVisible(const float* scores, VisibleKeys visible, float old_max) {
  const TileF32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const F32s lowest = hn::Set(d, -HUGE_VALF);
  F32s max = lowest;
  // In four chains: in one, each vector would wait for the one before it.
  const int64_t begin = RoundUp(visible.begin, lanes), end = visible.end - 4 * lanes;
  int64_t j = begin;
  if (j <= end) {
    F32s chains[4] = {lowest, lowest, lowest, lowest};
    for (; j <= end; j += 4 * lanes) {
      for (int64_t i = 0; i < 4; ++i) chains[i] = hn::Max(chains[i], hn::LoadU(d, scores + j + i * lanes));
    }
    max = hn::Max(hn::Max(chains[0], chains[1]), hn::Max(chains[2], chains[3]));
  }
  const auto part = [&](int64_t at, auto mask) KVBLEND_BF16_ATTR {
    max = hn::Max(max, hn::IfThenElse(mask, hn::LoadU(d, scores + at), lowest));
  };
  if (begin > visible.begin) part(begin - lanes, VisibleLanes(visible, begin - lanes));
  for (; j < visible.end; j += lanes) part(j, VisibleLanes(visible, j));
  if (hn::AllFalse(d, hn::Gt(max, hn::Set(d, old_max)))) return old_max;
  return std::max(old_max, hn::GetLane(hn::MaxOfLanes(d, max)));
}

// 2^(old - now); 0 the first time, when old is -infinity.
HWY_INLINE float Alpha(float old_max, float new_max) {
  return old_max == new_max ? 1.0f : std::exp2(old_max - new_max);
}

// The terms of two vectors, all visible, from j on.
template <class Operands>
HWY_INLINE void StoreTwo(F32s first, F32s second, void* probabilities, int64_t j) {
  const TileF32 d;
#if KVBLEND_BF16_WORDS
  if constexpr (Operands::kType == DataType::kBF16) {  // whole lines, as tiles load them
    _mm512_storeu_si512(static_cast<uint16_t*>(probabilities) + j,
                        (__m512i)_mm512_cvtne2ps_pbh(second.raw, first.raw));
    return;
  }
#endif
  Operands::Store(first, probabilities, j);
  Operands::Store(second, probabilities, j + static_cast<int64_t>(hn::Lanes(d)));
}

template <class Operands>
float Softmax(float* scores, VisibleKeys visible, int64_t keys, float* max, float* sum, void* probabilities) {
  const TileF32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float new_max = MaxOfVisible(scores, visible, *max);
  const float alpha = Alpha(*max, new_max);
  const F32s vmax = hn::Set(d, new_max);
  F32s total = hn::Zero(d), total_of_seconds = total;
  for (int64_t j = 0; j + lanes <= visible.begin; j += lanes) Operands::Store(hn::Zero(d), probabilities, j);
  ForVisible(
      visible,
      [&](int64_t j) KVBLEND_BF16_ATTR {
        const F32s first = Operands::Exp2(hn::Sub(hn::LoadU(d, scores + j), vmax)),
                   second = Operands::Exp2(hn::Sub(hn::LoadU(d, scores + j + lanes), vmax));
        total = hn::Add(total, first);
        total_of_seconds = hn::Add(total_of_seconds, second);
        StoreTwo<Operands>(first, second, probabilities, j);
      },
      [&](int64_t j, auto mask) KVBLEND_BF16_ATTR {
        const F32s p = hn::IfThenElseZero(mask, Operands::Exp2(hn::Sub(hn::LoadU(d, scores + j), vmax)));
        total = hn::Add(total, p);
        Operands::Store(p, probabilities, j);
      });
  for (int64_t j = RoundUp(visible.end, lanes); j < keys; j += lanes) {
    Operands::Store(hn::Zero(d), probabilities, j);
  }
  *sum = *sum * alpha + hn::GetLane(hn::SumOfLanes(d, hn::Add(total, total_of_seconds)));
  *max = new_max;
  return alpha;
}

template <class Operands>
void AddWeighted(const uint32_t* probabilities, const float* weights, int64_t count, int64_t keys,
                 float* mass) {
  const TileF32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kRowWords = kKeyBlock / Operands::kElements;
  for (int64_t j = 0; j < keys; j += lanes) {
    F32s total = hn::LoadU(d, mass + j);
    for (int64_t r = 0; r < count; ++r) {
      const F32s p = LoadF32<Operands::kType>(d, probabilities + r * kRowWords, static_cast<size_t>(j));
      total = hn::MulAdd(hn::Set(d, weights[r]), p, total);
    }
    hn::StoreU(total, d, mass + j);
  }
}

template <class Operands>
void MaxAndSum(const float* scores, VisibleKeys visible, float* max, float* sum) {
  const TileF32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float new_max = MaxOfVisible(scores, visible, *max);
  const F32s vmax = hn::Set(d, new_max);
  F32s total = hn::Zero(d);
  ForVisible(
      visible,
      [&](int64_t j) KVBLEND_BF16_ATTR {
        total = hn::Add(total, Operands::Exp2(hn::Sub(hn::LoadU(d, scores + j), vmax)));
        total = hn::Add(total, Operands::Exp2(hn::Sub(hn::LoadU(d, scores + j + lanes), vmax)));
      },
      [&](int64_t j, auto mask) KVBLEND_BF16_ATTR {
        total =
            hn::Add(total, hn::IfThenElseZero(mask, Operands::Exp2(hn::Sub(hn::LoadU(d, scores + j), vmax))));
      });
  *sum = *sum * Alpha(*max, new_max) + hn::GetLane(hn::SumOfLanes(d, total));
  *max = new_max;
}

template <class Operands>
void AddMass(const float* scores, const VisibleKeys* visible, const float* offsets, int64_t count,
             int64_t keys, float* mass) {
  const TileF32 d;
  VisibleKeys all{0, keys};  // keys that all rows see; none where one sees none
  for (int64_t r = 0; r < count; ++r) {
    all = {std::max(all.begin, visible[r].begin), std::min(all.end, visible[r].end)};
  }
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t j = 0; j < keys; j += lanes) {
    F32s total = hn::LoadU(d, mass + j);
    const bool whole = all.begin <= j && j + lanes <= all.end;
    for (int64_t r = 0; r < count; ++r) {
      const F32s p =
          Operands::Exp2(hn::Sub(hn::LoadU(d, scores + r * kKeyBlock + j), hn::Set(d, offsets[r])));
      total = hn::Add(total, whole ? p : hn::IfThenElseZero(VisibleLanes(visible[r], j), p));
    }
    hn::StoreU(total, d, mass + j);
  }
}

// --- the table ---

// Probabilities: the operands of the second product, or what they are made from.
template <class Operands, class Probabilities = Operands>
constexpr Tiles MakeTiles() {
  return {.name = Operands::kName,
          .dtype = Operands::kType,
          .rows = kTileRows,
          .step_unit = 1,
          .linear = &Linear<Operands>,
          .scores = &Scores<Operands>,
          .softmax = &Softmax<Probabilities>,
          .add_values = &AddValues<Operands>,
          .add_weighted = &AddWeighted<Operands>,
          .max_and_sum = &MaxAndSum<Probabilities>,
          .add_mass = &AddMass<Probabilities>};
}

const Tiles& TilesImpl([[maybe_unused]] DataType wanted) {
#if KVBLEND_BF16_WORDS
  static constexpr Tiles kBf16 = MakeTiles<Bf16Words>();
  if (wanted == DataType::kBF16 && HasBf16()) return kBf16;
#endif
  static constexpr Tiles kF32 = MakeTiles<F32Words>();
  return kF32;
}

const Tiles& CodeWordTilesImpl() {
  static constexpr Tiles kCodes = MakeTiles<F32Words, CodeWords>();
  return kCodes;
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(TilesImpl);
HWY_EXPORT(CodeWordTilesImpl);

const Tiles& GetTiles(DataType wanted) { return HWY_DYNAMIC_DISPATCH(TilesImpl)(wanted); }
const Tiles& GetCodeWordTiles() { return HWY_DYNAMIC_DISPATCH(CodeWordTilesImpl)(); }

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
