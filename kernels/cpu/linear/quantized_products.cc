// Products with quantized weights, and their expansion; quantized_matrix.h describes the layout.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/quantized_products.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <array>

#include "hwy/cache_control.h"
#include "kernels/cpu/linear/quantized_matrix.h"
#include "kernels/cpu/machine/tiles.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

using ColumnF32 = hn::CappedTag<float, kColumnOutputs>;
using ColumnU32 = hn::RebindToUnsigned<ColumnF32>;
using ColumnI32 = hn::RebindToSigned<ColumnF32>;
using F32s = hn::Vec<ColumnF32>;
using Words = hn::Vec<ColumnU32>;

constexpr int64_t kSteps = kChunkInputs / 2;      // pairs of inputs per chunk
constexpr int64_t kQuads = kSteps / 4;            // words of low nibbles per output, parity and chunk
constexpr int64_t kVectorWords = kColumnOutputs;  // of 32 bits

// Two inputs of some outputs: words of two 16-bit halves, even input below.
struct PlaneWords {
  Words low, upper;
};

// Where the bits of steps 4 * quad .. 4 * quad + 3 lie, and where the first of the upper ones begins.
template <int kUpperBits>
HWY_INLINE PlaneWords LoadQuad(const uint32_t* chunk, int64_t quad, int64_t lane) {
  const ColumnU32 d;
  PlaneWords words{hn::LoadU(d, chunk + quad * kVectorWords + lane), hn::Zero(d)};
  if constexpr (kUpperBits > 0) {
    const int64_t vector = kQuads + quad * kUpperBits / 4;
    words.upper = hn::LoadU(d, chunk + vector * kVectorWords + lane);
  }
  return words;
}
template <int kUpperBits>
HWY_INLINE int UpperShift(int64_t quad, int64_t step) {
  constexpr int64_t kPerWord = kUpperBits == 0 ? 1 : 16 / kUpperBits;
  return static_cast<int>((4 * quad + step) % kPerWord) * kUpperBits;
}

// The codes of one parity of one step; `half` is 0 for even inputs, 16 for odd ones.
template <int kUpperBits>
HWY_INLINE Words IntegersOf(const PlaneWords& words, int64_t quad, int64_t step, int half) {
  const ColumnU32 d;
  auto codes = hn::And(hn::ShiftRightSame(words.low, static_cast<int>(4 * step) + half), hn::Set(d, 15u));
  if constexpr (kUpperBits > 0) {
    const auto upper = hn::And(hn::ShiftRightSame(words.upper, UpperShift<kUpperBits>(quad, step) + half),
                               hn::Set(d, (1u << kUpperBits) - 1));
    codes = hn::Or(codes, hn::ShiftLeft<4>(upper));
  }
  return codes;
}
template <int kUpperBits>
HWY_INLINE F32s CodesOf(const PlaneWords& words, int64_t quad, int64_t step, int half) {
  return hn::ConvertTo(ColumnF32(),
                       hn::BitCast(ColumnI32(), IntegersOf<kUpperBits>(words, quad, step, half)));
}

// Scales and minima of a group; `zero_point` is carried by the minimum.
struct GroupScales {
  F32s scale, minimum;
};
// super * codes, which f32 holds exactly
HWY_INLINE F32s LoadNested(const uint16_t* supers, int64_t super, const int8_t* codes, int64_t index) {
  const ColumnF32 d;
  const auto numbers = hn::LoadU(hn::Rebind<int8_t, ColumnF32>(), codes + index);
  return hn::Mul(LoadF32<DataType::kF16>(d, supers, super),
                 hn::ConvertTo(d, hn::PromoteTo(ColumnI32(), numbers)));
}
HWY_INLINE GroupScales LoadScales(const QuantizedColumn& column, int64_t group, int64_t lane,
                                  float zero_point) {
  const ColumnF32 d;
  const int64_t index = group * kColumnOutputs + lane;
  F32s scale, minimum = hn::Zero(d);
  if (column.format.nested) {
    const int64_t super = group * column.format.group / kSuperGroup * kColumnOutputs + lane;
    scale = LoadNested(column.super_scales(), super, column.scale_codes(), index);
    if (column.format.has_minimum) {
      minimum = LoadNested(column.super_minimums(), super, column.minimum_codes(), index);
    }
  } else {
    scale = LoadF32<DataType::kF16>(d, column.scales(), index);
    if (column.format.has_minimum) minimum = LoadF32<DataType::kF16>(d, column.minimums(), index);
  }
  return {scale, hn::NegMulAdd(scale, hn::Set(d, zero_point), minimum)};
}

// Every column fetches its successor, which lies behind it.
HWY_INLINE void PrefetchNext(const QuantizedColumn& column, int64_t bytes_per_chunk, int64_t chunk) {
  const std::byte* next = column.data + column.chunks * bytes_per_chunk + chunk * bytes_per_chunk;
  for (int64_t byte = 0; byte < bytes_per_chunk; byte += 64) hwy::Prefetch(next + byte);
}

// --- operands ---

struct F32Operands {
  static constexpr int64_t kWordsPerStep = 2;  // of x

  explicit F32Operands(const QuantizedFormat& format) : zero_point(static_cast<float>(format.zero_point)) {}

  template <int kUpperBits>
  HWY_INLINE void MulAdd(const PlaneWords& words, int64_t quad, int64_t step, const uint32_t* const* x,
                         int64_t x_word, int64_t rows, F32s* sums, int64_t chains) const {
    const ColumnF32 d;
    const F32s even = CodesOf<kUpperBits>(words, quad, step, 0),
               odd = CodesOf<kUpperBits>(words, quad, step, 16);
    for (int64_t r = 0; r < rows; ++r) {
      const auto* row = reinterpret_cast<const float*>(x[r] + x_word);
      F32s& sum = sums[r * chains + step % chains];
      sum = hn::MulAdd(hn::Set(d, row[0]), even, sum);
      sum = hn::MulAdd(hn::Set(d, row[1]), odd, sum);
    }
  }

  const float zero_point;  // left to the minimum
};

#if KVBLEND_BF16_WORDS
// Codes become bf16, which holds them exactly, by looking them up in tables of 32 words, so that whatever
// lies above a code's bits in the index (five are read) does not matter.
struct Bf16Operands {
  static constexpr int64_t kWordsPerStep = 1;

  explicit Bf16Operands(const QuantizedFormat& format) {
    const int upper_bits = format.bits - 4;
    HWY_ALIGN uint16_t low[32], upper[32];
    for (int i = 0; i < 32; ++i) {
      low[i] = F32ToBf16(static_cast<float>((i & 15) - (upper_bits == 0 ? format.zero_point : 0)));
      upper[i] = F32ToBf16(static_cast<float>(16 * (i & ((1 << upper_bits) - 1)) - format.zero_point));
    }
    low_table = _mm512_load_si512(low);
    upper_table = _mm512_load_si512(upper);
  }

  template <int kUpperBits>
  HWY_INLINE void MulAdd(const PlaneWords& words, int64_t quad, int64_t step, const uint32_t* const* x,
                         int64_t x_word, int64_t rows, F32s* sums, int64_t chains) const {
    const hn::Repartition<uint16_t, ColumnF32> d16;
    const ColumnU32 d;
    const auto codes = [&](Words plane, int shift, __m512i table) KVBLEND_BF16_ATTR {
      const auto index = hn::ShiftRightSame(hn::BitCast(d16, plane), shift);
      return (__m512bh)_mm512_permutexvar_epi16(index.raw, table);
    };
    const __m512bh low = codes(words.low, static_cast<int>(4 * step), low_table);
    __m512bh upper = low;
    if constexpr (kUpperBits > 0) upper = codes(words.upper, UpperShift<kUpperBits>(quad, step), upper_table);
    for (int64_t r = 0; r < rows; ++r) {
      const auto pair = (__m512bh)hn::Set(d, x[r][x_word]).raw;
      F32s& sum = sums[r * chains + step % chains];
      sum = F32s{_mm512_dpbf16_ps(sum.raw, low, pair)};
      if constexpr (kUpperBits > 0) sum = F32s{_mm512_dpbf16_ps(sum.raw, upper, pair)};
    }
  }

  static constexpr float zero_point = 0;  // the tables contain it
  __m512i low_table, upper_table;
};
#endif

// --- products ---

// Sums per row, over even and odd steps: two hide some of the products' latency. The same for any number of
// rows, so that a row's result does not depend on the others.
constexpr int64_t kChains = 2;

template <class Operands, int kUpperBits, int kRows>
HWY_INLINE void MatVecLanes(const Operands& operands, const QuantizedColumn& column, const uint32_t* const* x,
                            const float* const* sums, int64_t lane, float* out) {
  const ColumnF32 d;
  const int64_t groups_per_chunk = kChunkInputs / column.format.group, quads = kQuads / groups_per_chunk;
  const int64_t bytes_per_chunk = column.bytes() / column.chunks;
  const bool offset = column.format.has_minimum || operands.zero_point != 0;
  F32s totals[kRows];
  for (auto& total : totals) total = hn::Zero(d);
  for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
    if (lane == 0) PrefetchNext(column, bytes_per_chunk, chunk);
    const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * column.plane_bytes());
    for (int64_t g = 0; g < groups_per_chunk; ++g) {
      F32s products[kRows * kChains];
      for (auto& product : products) product = hn::Zero(d);
      for (int64_t quad = g * quads; quad < (g + 1) * quads; ++quad) {
        const PlaneWords words = LoadQuad<kUpperBits>(planes, quad, lane);
        const int64_t x_word = (chunk * kSteps + 4 * quad) * Operands::kWordsPerStep;
        for (int64_t step = 0; step < 4; ++step) {
          operands.template MulAdd<kUpperBits>(words, quad, step, x, x_word + step * Operands::kWordsPerStep,
                                               kRows, products, kChains);
        }
      }
      const int64_t group = chunk * groups_per_chunk + g;
      const GroupScales scales = LoadScales(column, group, lane, operands.zero_point);
      for (int r = 0; r < kRows; ++r) {
        const F32s product = hn::Add(products[r * kChains], products[r * kChains + 1]);
        totals[r] = hn::MulAdd(scales.scale, product, totals[r]);
        if (offset) {
          const float sum =
              groups_per_chunk == 2 ? sums[r][group] : sums[r][2 * group] + sums[r][2 * group + 1];
          totals[r] = hn::MulAdd(scales.minimum, hn::Set(d, sum), totals[r]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) hn::StoreU(totals[r], d, out + r * kColumnOutputs + lane);
}

// Rows beyond `rows` repeat the first and are not used.
template <class Operands, int kUpperBits, int kRows>
void MatVecRows(const QuantizedColumn& column, const uint32_t* x, int64_t x_stride, const float* sums,
                int64_t rows, float* out) {
  const uint32_t* x_rows[kRows];
  const float* sum_rows[kRows];
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t row = r < rows ? r : 0;
    x_rows[r] = x + row * x_stride;
    sum_rows[r] = sums + row * 2 * column.chunks;
  }
  const Operands operands(column.format);
  for (size_t lane = 0; lane < kColumnOutputs; lane += hn::Lanes(ColumnF32())) {
    MatVecLanes<Operands, kUpperBits, kRows>(operands, column, x_rows, sum_rows, lane, out);
  }
}

// As many rows as have their sums in registers.
constexpr int64_t kRowsTogether = 8;

template <class Operands, int kUpperBits>
void MatVecOf(const QuantizedColumn& column, const uint32_t* x, int64_t x_stride, const float* sums,
              int64_t rows, float* out) {
  for (; rows > kRowsTogether; rows -= kRowsTogether) {
    MatVecRows<Operands, kUpperBits, kRowsTogether>(column, x, x_stride, sums, kRowsTogether, out);
    x += kRowsTogether * x_stride;
    sums += kRowsTogether * 2 * column.chunks;
    out += kRowsTogether * kColumnOutputs;
  }
  if (rows == 1) {
    MatVecRows<Operands, kUpperBits, 1>(column, x, x_stride, sums, rows, out);
  } else if (rows == 2) {
    MatVecRows<Operands, kUpperBits, 2>(column, x, x_stride, sums, rows, out);
  } else if (rows <= 4) {
    MatVecRows<Operands, kUpperBits, 4>(column, x, x_stride, sums, rows, out);
  } else {
    MatVecRows<Operands, kUpperBits, kRowsTogether>(column, x, x_stride, sums, rows, out);
  }
}

template <class Operands>
void MatVecWith(const QuantizedColumn& column, const uint32_t* x, int64_t x_stride, const float* sums,
                int64_t rows, float* out) {
  switch (column.upper_bits()) {
    case 0:
      return MatVecOf<Operands, 0>(column, x, x_stride, sums, rows, out);
    case 1:
      return MatVecOf<Operands, 1>(column, x, x_stride, sums, rows, out);
    case 2:
      return MatVecOf<Operands, 2>(column, x, x_stride, sums, rows, out);
    default:
      return MatVecOf<Operands, 4>(column, x, x_stride, sums, rows, out);
  }
}

void QuantizedMatVecImpl(const QuantizedColumn& column, DataType dtype, const uint32_t* x, int64_t x_stride,
                         const float* sums, int64_t rows, float* out) {
#if KVBLEND_BF16_WORDS
  if (dtype == DataType::kBF16) return MatVecWith<Bf16Operands>(column, x, x_stride, sums, rows, out);
#endif
  (void)dtype;
  MatVecWith<F32Operands>(column, x, x_stride, sums, rows, out);
}

// --- expansion ---

// Words of two bf16 from two vectors of f32.
HWY_INLINE Words PairOf(F32s even, F32s odd) {
  const ColumnF32 d;
#if KVBLEND_BF16_WORDS
  if (HasBf16()) {
    // [even 0 .. 15, odd 0 .. 15] to pairs
    alignas(64) static constexpr auto kOrder = [] {
      std::array<uint16_t, 32> order{};
      for (uint16_t i = 0; i < 32; ++i) order[i] = i / 2 + i % 2 * 16;
      return order;
    }();
    const auto halves = (__m512i)_mm512_cvtne2ps_pbh(odd.raw, even.raw);
    return Words{_mm512_permutexvar_epi16(_mm512_load_si512(kOrder.data()), halves)};
  }
#endif
  const ColumnU32 d32;
  return hn::Or(hn::ShiftRight<16>(RoundToBF16(d, even)),
                hn::And(RoundToBF16(d, odd), hn::Set(d32, 0xFFFF0000u)));
}

// Two columns at a time are expanded and multiplied: those behind them come meanwhile.
HWY_INLINE void FetchAfterNext(const QuantizedColumn& column, int64_t chunk) {
  const std::byte* planes = column.data + (2 * column.chunks + chunk) * column.plane_bytes();
  for (int64_t byte = 0; byte < column.plane_bytes(); byte += 64) __builtin_prefetch(planes + byte, 0, 2);
}

// Codes as floats that a multiplication and an addition make values of: value = x * factor + offset.
struct GroupValues {
  F32s factor, offset;
};
template <int kUpperBits>
HWY_INLINE GroupValues ValuesOf(const GroupScales& scales) {
  if constexpr (kUpperBits > 0) return {scales.scale, scales.minimum};
  const F32s factor = hn::Mul(scales.scale, hn::Set(ColumnF32(), 16.0f));  // of 1 + code / 16
  return {factor, hn::Sub(scales.minimum, factor)};
}
template <int kUpperBits, int64_t kStep, int kHalf>
HWY_INLINE F32s FloatsOf(const PlaneWords& words, int64_t quad) {
  if constexpr (kUpperBits > 0) return CodesOf<kUpperBits>(words, quad, kStep, kHalf);
  // A nibble as the upper bits of the fraction of a number from 1 on.
  constexpr int kShift = 4 * static_cast<int>(kStep) + kHalf, kFraction = 19;
  const ColumnU32 d;
  Words shifted = words.low;
  if constexpr (kShift < kFraction) shifted = hn::ShiftLeft<kFraction - kShift>(shifted);
  if constexpr (kShift > kFraction) shifted = hn::ShiftRight<kShift - kFraction>(shifted);
  return hn::BitCast(ColumnF32(), hn::OrAnd(hn::Set(d, 0x3F800000u), shifted, hn::Set(d, 15u << kFraction)));
}

// One step of a quad, with the two inputs of a word.
template <int kUpperBits, int64_t kStep>
HWY_INLINE void ExpandStep(const PlaneWords& words, int64_t quad, const GroupValues& values, DataType dtype,
                           uint32_t* out, int64_t pair, int64_t out_stride) {
  const ColumnU32 d32;
  const F32s even = hn::MulAdd(FloatsOf<kUpperBits, kStep, 0>(words, quad), values.factor, values.offset),
             odd = hn::MulAdd(FloatsOf<kUpperBits, kStep, 16>(words, quad), values.factor, values.offset);
  pair += kStep;
  if (dtype == DataType::kBF16) {
    hn::StoreU(PairOf(even, odd), d32, out + pair * out_stride);
  } else {
    hn::StoreU(hn::BitCast(d32, even), d32, out + 2 * pair * out_stride);
    hn::StoreU(hn::BitCast(d32, odd), d32, out + (2 * pair + 1) * out_stride);
  }
}

template <int kUpperBits>
void ExpandOf(const QuantizedColumn& column, DataType dtype, uint32_t* out, int64_t out_stride) {
  const ColumnU32 d32;
  const int64_t quads_per_group = kQuads * column.format.group / kChunkInputs;
  const auto zero_point = static_cast<float>(column.format.zero_point);
  for (size_t lane = 0; lane < kColumnOutputs; lane += hn::Lanes(d32)) {
    uint32_t* target = out + lane;
    GroupValues values{};
    for (int64_t chunk = 0; chunk < column.chunks; ++chunk) {
      if (lane == 0) FetchAfterNext(column, chunk);
      const auto* planes = reinterpret_cast<const uint32_t*>(column.data + chunk * column.plane_bytes());
      for (int64_t quad = 0; quad < kQuads; ++quad) {
        const PlaneWords words = LoadQuad<kUpperBits>(planes, quad, lane);
        if (const int64_t i = chunk * kQuads + quad; i % quads_per_group == 0) {
          values = ValuesOf<kUpperBits>(LoadScales(column, i / quads_per_group, lane, zero_point));
        }
        const int64_t pair = chunk * kSteps + 4 * quad;
        ExpandStep<kUpperBits, 0>(words, quad, values, dtype, target, pair, out_stride);
        ExpandStep<kUpperBits, 1>(words, quad, values, dtype, target, pair, out_stride);
        ExpandStep<kUpperBits, 2>(words, quad, values, dtype, target, pair, out_stride);
        ExpandStep<kUpperBits, 3>(words, quad, values, dtype, target, pair, out_stride);
      }
    }
  }
}

void ExpandColumnImpl(const QuantizedColumn& column, DataType dtype, uint32_t* out, int64_t out_stride) {
  switch (column.upper_bits()) {
    case 0:
      return ExpandOf<0>(column, dtype, out, out_stride);
    case 1:
      return ExpandOf<1>(column, dtype, out, out_stride);
    case 2:
      return ExpandOf<2>(column, dtype, out, out_stride);
    default:
      return ExpandOf<4>(column, dtype, out, out_stride);
  }
}

template <DataType kType>
void SumSixteensOf(const void* x, int64_t n, float* sums) {
  const ColumnF32 d;
  for (int64_t i = 0; i + 16 <= n; i += 16) {
    F32s sum = hn::Zero(d);
    for (size_t j = 0; j < 16; j += hn::Lanes(d)) sum = hn::Add(sum, LoadF32<kType>(d, x, i + j));
    sums[i / 16] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

void SumSixteensImpl(const void* x, DataType dtype, int64_t n, float* sums) {
  KVBLEND_FOR_DTYPE(dtype, SumSixteensOf<kType>(x, n, sums));
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(QuantizedMatVecImpl);
HWY_EXPORT(ExpandColumnImpl);
HWY_EXPORT(SumSixteensImpl);

void QuantizedMatVec(const QuantizedColumn& column, DataType dtype, const uint32_t* x, int64_t x_stride,
                     const float* sums, int64_t rows, bool accumulate, int64_t outputs, float* out,
                     int64_t out_stride) {
  float results[kMaxQuantizedRows * kColumnOutputs];
  HWY_DYNAMIC_DISPATCH(QuantizedMatVecImpl)(column, dtype, x, x_stride, sums, rows, results);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < outputs; ++j) {
      float& value = out[r * out_stride + j];
      value = results[r * kColumnOutputs + j] + (accumulate ? value : 0.0f);
    }
  }
}
void ExpandColumn(const QuantizedColumn& column, DataType dtype, uint32_t* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(ExpandColumnImpl)(column, dtype, out, out_stride);
}
void SumSixteens(const void* x, DataType dtype, int64_t n, float* sums) {
  HWY_DYNAMIC_DISPATCH(SumSixteensImpl)(x, dtype, n, sums);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
