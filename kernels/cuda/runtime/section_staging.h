// Brings stored KV from host memory to the device beside what computes: on a stream of its own, into buffers
// that take turns, with an event on either side of every copy. A layer's KV crosses the bus while the layer
// before it is computed with, because the host enqueues ahead of the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/memory.h"

namespace kvblend::kernels::cuda {

/// Belongs to one computing stream; used by one thread at a time, as that is.
class SectionStaging {
 public:
  static absl::StatusOr<std::unique_ptr<SectionStaging>> Create();
  ~SectionStaging();
  SectionStaging(const SectionStaging&) = delete;
  SectionStaging& operator=(const SectionStaging&) = delete;

  /// Where the bytes at `source` (host memory) are for what is enqueued on `computing` next, up to and not
  /// beyond the next Release. At most kSlots between two of them.
  absl::StatusOr<const void*> Bring(StreamHandle computing, const void* source, int64_t bytes);
  /// Called when everything that reads what was brought has been enqueued on `computing`.
  absl::Status Release(StreamHandle computing);

  /// K and V of two layers of 32 chunks: with fewer, copies wait for what is computed with the layer before.
  static constexpr size_t kSlots = 64;

 private:
  struct Slot {
    std::unique_ptr<DeviceBuffer> buffer;
    EventHandle arrived = nullptr;
    EventHandle released = nullptr;
  };
  SectionStaging() = default;

  StreamHandle copying_ = nullptr;
  std::array<Slot, kSlots> slots_;
  size_t next_ = 0;     // slot
  size_t brought_ = 0;  // slots before next_ that have not been released
};

}  // namespace kvblend::kernels::cuda
