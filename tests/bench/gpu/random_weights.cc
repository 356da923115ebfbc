#include "tests/bench/gpu/random_weights.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/linear/device_weights.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/cuda/runtime/runtime.h"

namespace kvblend::gpu_bench {

using kernels::cuda::DeviceBuffer;
using kernels::cuda::DeviceStream;
using kernels::cuda::DeviceWeights;

absl::StatusOr<std::unique_ptr<kernels::PackedWeights>> MakeRandomWeights(int64_t rows, int64_t cols,
                                                                          kernels::WeightUsage usage,
                                                                          uint64_t seed) {
  KVBLEND_ASSIGN_OR_RETURN(auto buffer, DeviceBuffer::Allocate("MakeRandomWeights", rows * cols * 2));
  KVBLEND_ASSIGN_OR_RETURN(const auto stream, DeviceStream::Create());
  const float bound = std::sqrt(3.0f / static_cast<float>(cols));
  KVBLEND_RETURN_IF_ERROR(kernels::cuda::StatusOf(
      LaunchFillRandom(stream->handle(), static_cast<uint16_t*>(buffer->data()), rows * cols, bound, seed),
      "FillRandomKernel"));
  KVBLEND_RETURN_IF_ERROR(kernels::cuda::SynchronizeStream(stream->handle()));
  return DeviceWeights::Adopt(rows, cols, usage, std::move(buffer));
}

}  // namespace kvblend::gpu_bench
