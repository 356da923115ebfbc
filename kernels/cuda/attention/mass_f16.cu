#include "kernels/cuda/attention/mass_kernels.h"

namespace kvblend::kernels::cuda {

LaunchError LaunchMassF16(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params) {
  const int head_dim = params.pages.head_dim;
  if (head_dim <= 32) return LaunchMassTile<32, false>(stream, shape, params);
  if (head_dim <= 64) return LaunchMassTile<64, false>(stream, shape, params);
  if (head_dim <= 96) return LaunchMassTile<96, false>(stream, shape, params);
  if (head_dim <= 128) return LaunchMassTile<128, false>(stream, shape, params);
  return LaunchMassTile<256, false>(stream, shape, params);
}

}  // namespace kvblend::kernels::cuda
