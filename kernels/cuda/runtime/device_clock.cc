#include "kernels/cuda/runtime/device_clock.h"

#include "base/status_macros.h"

namespace kvblend::kernels::cuda {

DeviceClock::~DeviceClock() {
  for (const EventHandle event : marks_) stream_.ReturnTimedEvent(event);
}

absl::StatusOr<size_t> DeviceClock::Mark() {
  if (stream_.recording() != nullptr) {
    return absl::FailedPreconditionError("a stream's clock can't be read while a step is recorded");
  }
  KVBLEND_ASSIGN_OR_RETURN(const EventHandle event, stream_.TakeTimedEvent());
  marks_.push_back(event);
  KVBLEND_RETURN_IF_ERROR(RecordEvent(event, stream_.handle()));
  return marks_.size() - 1;
}

absl::StatusOr<double> DeviceClock::SecondsBetween(size_t begin, size_t end) {
  return ElapsedSeconds(marks_[begin], marks_[end]);
}

}  // namespace kvblend::kernels::cuda
