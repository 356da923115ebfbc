// What tests may ask of the emulated runtime beyond kernels/cuda/runtime/runtime.h.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/runtime.h"

namespace kvblend::cuda_emulation {

/// Allocations beyond this sum fail as on a device whose memory is full. Returns the previous limit.
int64_t SetMemoryLimit(int64_t bytes);
int64_t AllocatedBytes();

/// What was ever made: things that cost a device milliseconds, or make it wait for everything.
struct RuntimeCounts {
  int64_t device_allocations = 0;
  int64_t pinned_allocations = 0;
  int64_t streams = 0;
  int64_t events = 0;
  int64_t graphs = 0;

  friend bool operator==(const RuntimeCounts&, const RuntimeCounts&) = default;
};
RuntimeCounts CountRuntimeObjects();

/// What the host has ever enqueued: kernels, copies, events and graphs, each as one, and the graphs among it.
struct WorkCounts {
  int64_t enqueued = 0;
  int64_t graph_launches = 0;
};
WorkCounts CountWork();

/// A graph takes so much of the device memory as long as it lives.
inline constexpr int64_t kGraphBytes = 64 << 10;
/// Until it is OK again, graphs are neither made nor launched; this is the error.
void SetGraphError(absl::Status error);

/// The devices that are visible from now on, none of them opened yet; two of which the second one is opened
/// in most tests, so that a thread that forgets UseDevice is found. An error: there is no driver. REQUIRES:
/// no device memory and no streams.
void SetDevices(absl::StatusOr<std::vector<kernels::cuda::DeviceInfo>> devices);
/// What SetDevices is to begin with.
std::vector<kernels::cuda::DeviceInfo> TwoDevices();

/// Whether the address lies in memory of PinnedAllocate.
bool IsPinnedMemory(const void* data);

}  // namespace kvblend::cuda_emulation
