// How attention's parts launch each other. Not for the backend: it uses kernels/cuda/device/kernels.h.
#pragma once

#include "kernels/cuda/attention/params.h"

namespace kvblend::kernels::cuda {

/// `statistics`: only max and sum, into the workspace; otherwise also the output, into the workspace when
/// splits > 1.
LaunchError LaunchTilesBf16(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params,
                            bool statistics);
LaunchError LaunchTilesF16(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params,
                           bool statistics);
/// Any dtype and head_dim in fp32: log_sum into the workspace when `statistics`, else the output.
LaunchError LaunchPlainAttention(StreamHandle stream, const AttentionParams& params, bool statistics);

/// From the statistics in workspace.log_sum: head_mass.
LaunchError LaunchMassBf16(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params);
LaunchError LaunchMassF16(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params);
LaunchError LaunchPlainMass(StreamHandle stream, const AttentionShape& shape, const AttentionParams& params);

}  // namespace kvblend::kernels::cuda
