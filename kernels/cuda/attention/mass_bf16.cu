#include "kernels/cuda/attention/mass_kernels.h"

namespace kvblend::kernels::cuda {

LaunchError LaunchMassBf16(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params) {
  const int head_dim = params.pages.head_dim;
  if (head_dim <= 32) return LaunchMassTile<32, true>(stream, shape, params);
  if (head_dim <= 64) return LaunchMassTile<64, true>(stream, shape, params);
  if (head_dim <= 96) return LaunchMassTile<96, true>(stream, shape, params);
  if (head_dim <= 128) return LaunchMassTile<128, true>(stream, shape, params);
  return LaunchMassTile<256, true>(stream, shape, params);
}

}  // namespace kvblend::kernels::cuda
