// What SpreadDeviation adds to KV in pages of any layout, some tokens of one head at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/spread.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <array>

#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

void SumMovesImpl(const TokenMove* moves, int64_t tokens, const float* all, int64_t n, float* out) {
  for (int64_t t = 0; t < tokens; ++t, out += n) {
    const TokenMove& move = moves[t];
    ForEach(n, [&](auto d, size_t i) HWY_ATTR {
      auto sum = hn::Mul(hn::Set(d, move.before_factor), hn::LoadU(d, move.before + i));
      sum = hn::MulAdd(hn::Set(d, move.after_factor), hn::LoadU(d, move.after + i), sum);
      sum = hn::MulAdd(hn::Set(d, move.all_factor), hn::LoadU(d, all + i), sum);
      hn::StoreU(sum, d, out + i);
    });
  }
}

template <DataType kType>
void AddToRowOf(const float* x, int64_t n, void* out) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    const auto held = LoadF32<kType>(d, out, i), added = hn::LoadU(d, x + i);
    // -0 + 0 would be 0.
    const auto sum = hn::IfThenElse(hn::Eq(added, hn::Zero(d)), held, hn::Add(held, added));
    StoreF32<kType>(d, sum, out, i);
  });
}

void AddToRowImpl(const float* x, int64_t n, void* out, DataType out_dtype) {
  KVBLEND_FOR_DTYPE(out_dtype, AddToRowOf<kType>(x, n, out));
}

// A word's halves, bf16, with `low` and `high` added.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> AddToHalves(D d, hn::Vec<hn::RebindToUnsigned<D>> word,
                                                        hn::Vec<D> low, hn::Vec<D> high) {
  const hn::RebindToUnsigned<D> d32;
  const auto upper = hn::Set(d32, 0xFFFF0000u);
  const auto held_low = hn::BitCast(d, hn::ShiftLeft<16>(word)),
             held_high = hn::BitCast(d, hn::And(word, upper));
  const auto zero = hn::Zero(d);
  const auto new_low = RoundToBF16(d, hn::Add(held_low, low)),
             new_high = RoundToBF16(d, hn::Add(held_high, high));
  const auto keeps_low = hn::RebindMask(d32, hn::Eq(low, zero)),
             keeps_high = hn::RebindMask(d32, hn::Eq(high, zero));
  return hn::Or(hn::ShiftRight<16>(hn::IfThenElse(keeps_low, hn::ShiftLeft<16>(word), new_low)),
                hn::And(hn::IfThenElse(keeps_high, word, new_high), upper));
}

void AddToPairsImpl(const float* x, int64_t pairs, int64_t n, uint32_t* words) {
  for (int64_t t = 0; t < pairs; ++t, x += 2 * n, words += n) {
    ForEach(n, [&](auto d, size_t i) HWY_ATTR {
      const hn::RebindToUnsigned<decltype(d)> d32;
      const auto added =
          AddToHalves(d, hn::LoadU(d32, words + i), hn::LoadU(d, x + i), hn::LoadU(d, x + n + i));
      hn::StoreU(added, d32, words + i);
    });
  }
}

void AddToKeyColumnsImpl(const float* x, int64_t n, uint32_t* column) {
  for (int64_t pair = 0; pair < n / 2; ++pair, column += kPageTile) {
    alignas(64) std::array<float, kTileColumns> low, high;
    for (int64_t t = 0; t < kTileColumns; ++t) {
      low[t] = x[t * n + 2 * pair];
      high[t] = x[t * n + 2 * pair + 1];
    }
    ForEach(kTileColumns, [&](auto d, size_t i) HWY_ATTR {
      const hn::RebindToUnsigned<decltype(d)> d32;
      hn::StoreU(AddToHalves(d, hn::LoadU(d32, column + i), hn::LoadU(d, low.data() + i),
                             hn::LoadU(d, high.data() + i)),
                 d32, column + i);
    });
  }
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(SumMovesImpl);
HWY_EXPORT(AddToRowImpl);
HWY_EXPORT(AddToPairsImpl);
HWY_EXPORT(AddToKeyColumnsImpl);

void SumMoves(const TokenMove* moves, int64_t tokens, const float* all, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(SumMovesImpl)(moves, tokens, all, n, out);
}
void AddToRow(const float* x, int64_t n, void* out, DataType out_dtype) {
  HWY_DYNAMIC_DISPATCH(AddToRowImpl)(x, n, out, out_dtype);
}
void AddToPairs(const float* x, int64_t pairs, int64_t n, uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(AddToPairsImpl)(x, pairs, n, words);
}
void AddToKeyColumns(const float* x, int64_t n, uint32_t* column) {
  HWY_DYNAMIC_DISPATCH(AddToKeyColumnsImpl)(x, n, column);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
