#include "kernels/cuda/attention/kernels.h"

namespace kvblend::kernels::cuda {

LaunchError LaunchTilesF16(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params,
                           bool statistics) {
  const int head_dim = params.pages.head_dim;
  if (head_dim <= 32) return LaunchTile<32, false>(stream, shape, params, statistics);
  if (head_dim <= 64) return LaunchTile<64, false>(stream, shape, params, statistics);
  if (head_dim <= 96) return LaunchTile<96, false>(stream, shape, params, statistics);
  if (head_dim <= 128) return LaunchTile<128, false>(stream, shape, params, statistics);
  return LaunchTile<256, false>(stream, shape, params, statistics);
}

}  // namespace kvblend::kernels::cuda
