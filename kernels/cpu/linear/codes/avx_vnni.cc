// AVX-VNNI: vpdpbusd in vectors of 32 bytes, for processors without AVX-512. It adds four products in 32
// bits, which cannot overflow: codes have no sign and are at most 255.
#include <cmath>

#include "kernels/cpu/linear/codes/intrinsics.h"

#if defined(__x86_64__)
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avxvnni")
namespace kvblend::kernels {
namespace codes_avx_vnni {
namespace {

#include "kernels/cpu/linear/codes/lanes8-inl.h"

struct Ops : Lanes8 {
  static constexpr char kName[] = "avx_vnni";
  static constexpr bool kSignedBytes = false;
  static constexpr bool kFewPairRows = false;

  static HWY_INLINE Ints AddProducts(Ints sums, Ints weights, Ints row) {
    return _mm256_dpbusd_avx_epi32(sums, weights, row);
  }
  static HWY_INLINE void Settle(Ints& sum) { asm("" : "+x"(sum)); }  // as AddPairs
  static HWY_INLINE Ints AddPairs(Ints sum, Ints weights, Ints row) {
    sum = _mm256_dpwssd_avx_epi32(sum, weights, row);
    asm("" : "+x"(sum));  // kept as it is: g++ would store every sum, and compute on with a copy
    return sum;
  }

#include "kernels/cpu/linear/codes/vnni-inl.h"
};

#include "kernels/cpu/linear/codes/kernels-inl.h"
#include "kernels/cpu/linear/codes/whole_groups-inl.h"

}  // namespace
}  // namespace codes_avx_vnni

const CodeKernels& CodeKernelsAvxVnni() { return codes_avx_vnni::kKernelsAndWholeGroups; }

}  // namespace kvblend::kernels
HWY_POP_ATTRIBUTES
#endif
