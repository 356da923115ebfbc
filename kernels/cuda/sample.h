// SampleTokens on the device.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/memory.h"
#include "kernels/sampling.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::cuda {

/// REQUIRES: what Backend::SampleTokens checks; at least one row.
absl::Status SampleOnDevice(DeviceStream& stream, ConstMatrixView logits,
                            absl::Span<const SamplingSpec> specs, absl::Span<SampledToken> out);

}  // namespace kvblend::kernels::cuda
