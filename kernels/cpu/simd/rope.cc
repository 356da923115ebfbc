// Rotary position embedding, in place and on the way into KV pages.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

template <DataType kIn, DataType kOut>
HWY_INLINE void RotateSplitHalf(const float* cos, const float* sin, size_t half, const void* in, void* out) {
  ForEach(half, [&](auto d, size_t i) HWY_ATTR {
    const auto a = LoadF32<kIn>(d, in, i), b = LoadF32<kIn>(d, in, i + half);
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    StoreF32<kOut>(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), out, i);
    StoreF32<kOut>(d, hn::MulAdd(a, s, hn::Mul(b, c)), out, i + half);
  });
}

HWY_INLINE void RotateInterleavedF32(const float* cos, const float* sin, size_t half, const float* in,
                                     float* out) {
  ForEach(half, [&](auto d, size_t i) HWY_ATTR {
    hn::Vec<decltype(d)> a, b;
    hn::LoadInterleaved2(d, in + 2 * i, a, b);
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d,
                          out + 2 * i);
  });
}

// A pair of bf16 fills one 32-bit lane: the even element is its lower half, the odd one its upper half, so
// that neither loading nor storing needs a shuffle. This is the path of every cached token of every layer.
HWY_INLINE void RotateInterleavedBF16(const float* cos, const float* sin, size_t half, const uint16_t* in,
                                      uint16_t* out) {
  ForEach(half, [&](auto d, size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> d32;
    const auto pairs = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(in + 2 * i));
    const auto upper = hn::Set(d32, 0xFFFF0000u);
    const auto a = hn::BitCast(d, hn::ShiftLeft<16>(pairs)), b = hn::BitCast(d, hn::And(pairs, upper));
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    const auto rotated_a = RoundToBF16(d, hn::NegMulAdd(b, s, hn::Mul(a, c)));
    const auto rotated_b = RoundToBF16(d, hn::MulAdd(a, s, hn::Mul(b, c)));
    const auto result = hn::Or(hn::ShiftRight<16>(rotated_a), hn::And(rotated_b, upper));
    hn::StoreU(result, d32, reinterpret_cast<uint32_t*>(out + 2 * i));
  });
}

template <DataType kIn, DataType kOut>
HWY_INLINE void RotateHead(RopeLayout layout, const float* cos, const float* sin, size_t head_dim,
                           const void* in, void* out, float* scratch) {
  const size_t half = head_dim / 2;
  if (layout == RopeLayout::kSplitHalf) return RotateSplitHalf<kIn, kOut>(cos, sin, half, in, out);
  if constexpr (kIn == DataType::kBF16 && kOut == DataType::kBF16) {
    RotateInterleavedBF16(cos, sin, half, static_cast<const uint16_t*>(in), static_cast<uint16_t*>(out));
    return;
  }
  const float* source = static_cast<const float*>(in);
  if constexpr (kIn != DataType::kF32) {
    ForEach(head_dim, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(LoadF32<kIn>(d, in, i), d, scratch + i); });
    source = scratch;
  }
  if constexpr (kOut == DataType::kF32) {
    RotateInterleavedF32(cos, sin, half, source, static_cast<float*>(out));
  } else {
    RotateInterleavedF32(cos, sin, half, source, scratch);
    ForEach(head_dim,
            [&](auto d, size_t i) HWY_ATTR { StoreF32<kOut>(d, hn::LoadU(d, scratch + i), out, i); });
  }
}

template <DataType kIn>
void RotateHeadsFrom(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim,
                     int64_t num_heads, const void* in, void* out, DataType out_dtype,
                     int64_t out_head_stride) {
  float* scratch = ThreadScratch<float>(ScratchSlot::kRow, head_dim);
  for (int64_t h = 0; h < num_heads; ++h) {
    const void* head = static_cast<const std::byte*>(in) + h * head_dim * SizeOf(kIn);
    void* target = static_cast<std::byte*>(out) + h * out_head_stride * SizeOf(out_dtype);
    KVBLEND_FOR_DTYPE(out_dtype, (RotateHead<kIn, kType>(layout, cos, sin, head_dim, head, target, scratch)));
  }
}

void UnrotateHeadImpl(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim, float* x) {
  const size_t half = head_dim / 2;
  ForEach(half, [&](auto d, size_t i) HWY_ATTR {
    hn::Vec<decltype(d)> a, b;
    if (layout == RopeLayout::kInterleaved) {
      hn::LoadInterleaved2(d, x + 2 * i, a, b);
    } else {
      a = hn::LoadU(d, x + i);
      b = hn::LoadU(d, x + i + half);
    }
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    const auto squares = hn::MulAdd(c, c, hn::Mul(s, s));
    const auto first = hn::Div(hn::MulAdd(a, c, hn::Mul(b, s)), squares);
    const auto second = hn::Div(hn::NegMulAdd(a, s, hn::Mul(b, c)), squares);
    if (layout == RopeLayout::kInterleaved) {
      hn::StoreInterleaved2(first, second, d, x + 2 * i);
    } else {
      hn::StoreU(first, d, x + i);
      hn::StoreU(second, d, x + i + half);
    }
  });
}

void RotateHeadsToImpl(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim,
                       int64_t num_heads, const void* in, DataType in_dtype, void* out, DataType out_dtype,
                       int64_t out_head_stride) {
  KVBLEND_FOR_DTYPE(in_dtype, RotateHeadsFrom<kType>(layout, cos, sin, head_dim, num_heads, in, out,
                                                     out_dtype, out_head_stride));
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(RotateHeadsToImpl);
HWY_EXPORT(UnrotateHeadImpl);

void RotateHeads(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim, int64_t num_heads,
                 float* x) {
  // Every element is read before it is written, so the rotation may run in place.
  HWY_DYNAMIC_DISPATCH(RotateHeadsToImpl)
  (layout, cos, sin, head_dim, num_heads, x, DataType::kF32, x, DataType::kF32, head_dim);
}

void RotateHeadsTo(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim, int64_t num_heads,
                   const void* in, DataType in_dtype, void* out, DataType out_dtype,
                   int64_t out_head_stride) {
  HWY_DYNAMIC_DISPATCH(RotateHeadsToImpl)
  (layout, cos, sin, head_dim, num_heads, in, in_dtype, out, out_dtype, out_head_stride);
}

void UnrotateHead(RopeLayout layout, const float* cos, const float* sin, int64_t head_dim, float* x) {
  HWY_DYNAMIC_DISPATCH(UnrotateHeadImpl)(layout, cos, sin, head_dim, x);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
