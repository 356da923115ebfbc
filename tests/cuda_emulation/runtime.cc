// kernels/cuda/runtime/runtime.h over the emulator. Device memory is host memory with red zones where
// AddressSanitizer sees them. Streams are queues that run when somebody waits for them, so that host code
// which forgets to wait, or frees what is in use, is found.
#include "tests/cuda_emulation/runtime.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/open_device.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda_emulation/executor.h"
#include "tests/cuda_emulation/launcher.h"
#include "tests/cuda_emulation/runtime_objects.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kInvalidConfiguration = 9;  // cudaErrorInvalidConfiguration
constexpr size_t kAlignment = 256;
constexpr size_t kPageBytes = 4096;

// Whether `data` lies in one of `blocks`. REQUIRES: the device's mutex
bool Contains(const std::map<void*, int64_t>& blocks, const void* data) {
  auto after = blocks.upper_bound(const_cast<void*>(data));
  if (after == blocks.begin()) return false;
  const auto& [begin, bytes] = *--after;
  return static_cast<const char*>(data) < static_cast<const char*>(begin) + bytes;
}

struct ThreadsDevice {
  uint64_t generation = 0;
  int index = 0;
};
ThreadsDevice& CurrentDevice() {
  static thread_local ThreadsDevice current;
  return current;
}

void DrainAll() {
  const std::map<StreamObject*, std::shared_ptr<StreamObject>> streams = LockedDevice()->streams;
  for (const auto& [handle, stream] : streams) stream->Drain();
}

}  // namespace

Device& TheDevice() {
  static auto* device = new Device();
  return *device;
}

void CheckCurrentDevice(const char* what) {
  int current = 0, opened = 0;
  {
    const LockedDevice device;
    opened = device->opened;
    current = CurrentDevice().generation == device->generation ? CurrentDevice().index : 0;
  }
  if (current != opened) {
    cuda_emulation::Fail(absl::StrCat(what, " on device ", current, " of a process that opened device ",
                                      opened, ": the thread has not called UseDevice"));
  }
}

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() { return LockedDevice()->visible; }

absl::StatusOr<DeviceInfo> OpenDevice(int index) {
  KVBLEND_ASSIGN_OR_RETURN(const auto devices, ListDevices());
  KVBLEND_RETURN_IF_ERROR(CheckDeviceIndex(index, devices));
  {
    const LockedDevice device;
    if (device->open && device->opened != index) return AnotherDevice(device->opened, index);
    device->open = true;
    device->opened = index;
  }
  UseDevice();
  return devices[index];
}

void UseDevice() {
  const LockedDevice device;
  CurrentDevice() = {device->generation, device->opened};
}

absl::StatusOr<DeviceMemory> QueryDeviceMemory() {
  UseDevice();
  const LockedDevice device;
  return DeviceMemory{.used_bytes = device->allocated, .total_bytes = device->limit};
}

absl::StatusOr<void*> DeviceAllocate(int64_t bytes) {
  UseDevice();
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("DeviceAllocate"));
  const LockedDevice device;
  void* data = nullptr;
  if (bytes <= device->limit - device->allocated) {
    // AddressSanitizer guards the very next byte.
    if (posix_memalign(&data, kAlignment, static_cast<size_t>(bytes)) != 0) data = nullptr;
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no device memory for ", bytes, " bytes; ", device->allocated, " of ", device->limit, " are in use"));
  }
  // Floats of this pattern are NaN: kernels must not live on zeros.
  std::memset(data, 0xFF, static_cast<size_t>(bytes));
  device->allocations[data] = bytes;
  device->allocated += bytes;
  ++device->counts.device_allocations;
  return data;
}

absl::StatusOr<void*> PinnedAllocate(int64_t bytes) {
  UseDevice();
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("PinnedAllocate"));
  void* data = nullptr;
  if (posix_memalign(&data, kPageBytes, static_cast<size_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no page-locked host memory for ", bytes, " bytes"));
  }
  const LockedDevice device;
  device->pinned[data] = bytes;
  ++device->counts.pinned_allocations;
  return data;
}

void PinnedFree(void* data) {
  if (data == nullptr) return;
  FailWhileCapturing("PinnedFree");
  const LockedDevice device;
  if (device->pinned.erase(data) == 0) cuda_emulation::Fail("PinnedFree of what was not allocated");
  std::free(data);
}

absl::StatusOr<EventHandle> CreateTimedEvent() { return CreateDeviceEvent(); }

absl::StatusOr<EventHandle> CreateDeviceEvent() {
  UseDevice();
  auto event = std::make_shared<EventObject>();
  const LockedDevice device;
  device->events[event.get()] = event;
  ++device->counts.events;
  return event.get();
}

// Streams that still have to reach it keep it.
void DestroyDeviceEvent(EventHandle event) { LockedDevice()->events.erase(event); }

absl::Status RecordEvent(EventHandle event, StreamHandle stream) {
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("RecordEvent"));
  const std::shared_ptr<EventObject> shared = LockedDevice()->events.at(event);
  const std::lock_guard lock(event->mutex);
  const int64_t number = ++event->recorded;
  event->stream = stream;
  stream->Enqueue([shared, number] {
    shared->reached_at = absl::GetCurrentTimeNanos();
    int64_t reached = shared->reached;
    while (reached < number && !shared->reached.compare_exchange_weak(reached, number)) {
    }
  });
  return absl::OkStatus();
}

absl::Status WaitForEvent(StreamHandle stream, EventHandle event) {
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("WaitForEvent"));
  const std::shared_ptr<EventObject> shared = LockedDevice()->events.at(event);
  const std::lock_guard lock(event->mutex);
  stream->Enqueue([shared, recorded_on = event->stream, number = event->recorded] {
    shared->RunUntil(recorded_on, number);
  });
  return absl::OkStatus();
}

bool EventIsReached(EventHandle event) {
  FailWhileCapturing("EventIsReached");
  const std::lock_guard lock(event->mutex);
  return event->reached >= event->recorded;
}

absl::StatusOr<double> ElapsedSeconds(EventHandle begin, EventHandle end) {
  for (const EventHandle event : {begin, end}) {
    const std::lock_guard lock(event->mutex);
    if (event->recorded == 0 || event->reached < event->recorded) {
      cuda_emulation::Fail("ElapsedSeconds of an event that has not been reached");
    }
  }
  return 1e-9 * static_cast<double>(end->reached_at - begin->reached_at);
}

void DeviceFree(void* data) {
  if (data == nullptr) return;
  FailWhileCapturing("DeviceFree");
  DrainAll();
  const LockedDevice device;
  const auto allocation = device->allocations.find(data);
  if (allocation == device->allocations.end()) cuda_emulation::Fail("DeviceFree of what was not allocated");
  device->allocated -= allocation->second;
  std::free(data);
  device->allocations.erase(allocation);
}

absl::StatusOr<StreamHandle> CreateDeviceStream() {
  UseDevice();
  auto stream = std::make_shared<StreamObject>();
  const LockedDevice device;
  device->streams[stream.get()] = stream;
  ++device->counts.streams;
  return stream.get();
}

void DestroyDeviceStream(StreamHandle stream) {
  FailWhileCapturing("DestroyDeviceStream");
  stream->Drain();
  const LockedDevice device;
  device->enqueued_on_gone_streams += stream->enqueued;
  device->streams.erase(stream);
}

absl::Status SynchronizeStream(StreamHandle stream) {
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("SynchronizeStream"));
  stream->Drain();
  return absl::OkStatus();
}

absl::Status EnqueueCopyFromHost(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  if (cuda_emulation::IsPinnedMemory(source)) {  // is read when its turn comes
    stream->Enqueue([=] { std::memcpy(target, source, static_cast<size_t>(bytes)); });
    return absl::OkStatus();
  }
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("a copy from memory that is not pinned"));
  const auto* begin = static_cast<const unsigned char*>(source);
  stream->Enqueue([target, copy = std::vector<unsigned char>(begin, begin + bytes)] {
    std::memcpy(target, copy.data(), copy.size());
  });
  return absl::OkStatus();
}

absl::Status EnqueueCopyToHost(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  if (!cuda_emulation::IsPinnedMemory(target)) {
    KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("a copy to memory that is not pinned"));
  }
  stream->Enqueue([=] { std::memcpy(target, source, static_cast<size_t>(bytes)); });
  return absl::OkStatus();
}

absl::Status EnqueueZero(StreamHandle stream, void* target, int64_t bytes) {
  stream->Enqueue([=] { std::memset(target, 0, static_cast<size_t>(bytes)); });
  return absl::OkStatus();
}

void DiscardContents(StreamHandle stream, void* data, int64_t bytes) {
  if (bytes > 0) stream->Enqueue([=] { std::memset(data, 0xFF, static_cast<size_t>(bytes)); });
}

bool IsDeviceMemory(const void* data) { return Contains(LockedDevice()->allocations, data); }

absl::Status StatusOf(LaunchError error, absl::string_view kernel) {
  if (error.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(kernel, ": the launch failed with CUDA error ", error.code));
}

}  // namespace kvblend::kernels::cuda

namespace kvblend::cuda_emulation {

using kernels::cuda::DeviceInfo;
using kernels::cuda::LaunchError;
using kernels::cuda::LaunchShape;
using kernels::cuda::LockedDevice;

int64_t SetMemoryLimit(int64_t bytes) { return std::exchange(LockedDevice()->limit, bytes); }

bool IsPinnedMemory(const void* data) { return kernels::cuda::Contains(LockedDevice()->pinned, data); }

RuntimeCounts CountRuntimeObjects() { return LockedDevice()->counts; }

WorkCounts CountWork() {
  const LockedDevice device;
  WorkCounts counts{.enqueued = device->enqueued_on_gone_streams, .graph_launches = device->graph_launches};
  for (const auto& [handle, stream] : device->streams) counts.enqueued += stream->enqueued;
  return counts;
}

std::vector<DeviceInfo> TwoDevices() {
  const DeviceInfo device{.name = "emulated",
                          .compute_major = 8,
                          .compute_minor = 0,
                          .num_multiprocessors = 4,
                          .memory_bytes = int64_t{8} << 30};
  return {device, device};
}

void SetDevices(absl::StatusOr<std::vector<DeviceInfo>> devices) {
  const LockedDevice device;
  if (!device->allocations.empty() || !device->streams.empty()) Fail("SetDevices while the device is in use");
  device->visible = std::move(devices);
  device->open = false;
  device->opened = 0;
  ++device->generation;
}

int64_t AllocatedBytes() { return LockedDevice()->allocated; }

void EnqueueHost(kernels::cuda::StreamHandle stream, std::function<void()> work) {
  stream->Enqueue(std::move(work));
}

LaunchError EnqueueLaunch(kernels::cuda::StreamHandle stream, const LaunchShape& shape, KernelEntry& kernel,
                          std::function<void()> body) {
  const auto within = [](int64_t value, int64_t max) { return value >= 1 && value <= max; };
  if (!within(shape.blocks_x, std::numeric_limits<int32_t>::max()) || !within(shape.blocks_y, 65535) ||
      !within(shape.blocks_z, 65535) || !within(shape.threads, 1024) || shape.threads % kWarpSize != 0 ||
      shape.shared_bytes < 0 || shape.shared_bytes > kernels::cuda::kMaxSharedBytes) {
    return {kernels::cuda::kInvalidConfiguration};
  }
  kernels::cuda::CheckCurrentDevice("a launch");
  stream->Enqueue([shape, &kernel, body = std::move(body)] {
    kernel.executed = true;
    Executor::Current().Run(kernel.name, shape, body);
  });
  return {};
}

}  // namespace kvblend::cuda_emulation
