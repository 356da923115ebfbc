// SampleTokens on the device.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/device/sampling.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/sampling.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::cuda {

int64_t CountChanges(absl::Span<const SamplingSpec> specs);
bool AnyDraws(absl::Span<const SamplingSpec> specs);
/// Writes the specs in the form that the kernel reads: rows [specs.size()], changes [CountChanges(specs)].
void WriteSampling(absl::Span<const SamplingSpec> specs, RowSampling* rows, LogitChange* changes);

/// REQUIRES: what Backend::SampleTokens checks; at least one row.
absl::Status SampleOnDevice(DeviceStream& stream, ConstMatrixView logits,
                            absl::Span<const SamplingSpec> specs, absl::Span<SampledToken> out);

}  // namespace kvblend::kernels::cuda
