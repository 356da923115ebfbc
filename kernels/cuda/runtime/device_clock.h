// The clock of a stream of the device: events that its work passes by.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/runtime/memory.h"

namespace kvblend::kernels::cuda {

/// Its events are the stream's, which lends them to one clock after another.
class DeviceClock final : public StreamClock {
 public:
  explicit DeviceClock(DeviceStream& stream) : stream_(stream) {}
  ~DeviceClock() override;
  /// kFailedPrecondition while a step is recorded.
  absl::StatusOr<size_t> Mark() override;
  absl::StatusOr<double> SecondsBetween(size_t begin, size_t end) override;

 private:
  DeviceStream& stream_;
  std::vector<EventHandle> marks_;
};

}  // namespace kvblend::kernels::cuda
