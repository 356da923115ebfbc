// Brings stored KV from host memory to the device beside what computes: on a stream of its own, into buffers
// that take turns, with an event on either side of a layer's copies. A layer's KV crosses the bus while the
// layer before it is computed with, because the host enqueues ahead of the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

  /// Where the bytes at `source` (host memory) are for what is enqueued behind the next Await, up to and not
  /// beyond the Release behind it. At most kSlots between two Releases.
  absl::StatusOr<const void*> Bring(const void* source, int64_t bytes);
  /// What is enqueued on `computing` from now on waits for all that was brought.
  absl::Status Await(StreamHandle computing);
  /// Called when everything that reads what was brought has been enqueued on `computing`.
  absl::Status Release(StreamHandle computing);

  /// Two layers of 32 chunks, K and V being one copy: with fewer, copies wait for what is computed with the
  /// layer before.
  static constexpr size_t kSlots = 64;

 private:
  struct Slot {
    std::unique_ptr<DeviceBuffer> buffer;
    int64_t batch = 0;  // that used it last
  };
  SectionStaging() = default;
  /// Whether nothing reads any more what this batch brought.
  bool IsFree(int64_t batch);
  Slot& NextSlot();

  StreamHandle copying_ = nullptr;
  EventHandle arrived_ = nullptr;
  // released_[batch % kSlots]: the event of that batch; older batches need none any more.
  std::array<EventHandle, kSlots> released_{};
  std::vector<Slot> slots_;  // up to kSlots, as many as were in use at once
  size_t next_ = 0;          // slot
  int64_t batch_ = 1;        // what is brought between two Releases
  int64_t waited_ = 0;       // the latest batch that the copying stream has waited for
  int64_t free_ = 0;         // the latest that IsFree has found
  bool is_awaited_ = true;   // by the computing stream: all that was brought
  bool is_released_ = true;  // likewise
};

}  // namespace kvblend::kernels::cuda
