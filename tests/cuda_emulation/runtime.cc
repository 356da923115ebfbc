// kernels/cuda/runtime.h over the emulator. Device memory is host memory with red zones where
// AddressSanitizer sees them. Streams are queues that run when somebody waits for them, so that host code
// which forgets to wait, or frees what is in use, is found.
#include "tests/cuda_emulation/runtime.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/open_device.h"
#include "kernels/cuda/runtime.h"
#include "tests/cuda_emulation/executor.h"
#include "tests/cuda_emulation/launcher.h"

namespace kvblend::kernels::cuda {

using Work = std::function<void()>;

// What a stream is given while it is captured, in place of running it.
struct Capture {
  std::vector<Work> work;
  std::string broken_by;  // what was done that may not be
};

struct GraphObject {
  std::vector<Work> work;
  std::atomic<int> launches = 0;  // that have not run
};

struct StreamObject {
  std::recursive_mutex mutex;
  std::deque<Work> queue;
  std::unique_ptr<Capture> capture;
  std::atomic<int64_t> enqueued = 0;  // not counting what is captured

  void Enqueue(Work work) {
    const std::lock_guard lock(mutex);
    if (capture != nullptr) {
      capture->work.push_back(std::move(work));
    } else {
      queue.push_back(std::move(work));
      ++enqueued;
    }
  }
  void RunNext() {
    const Work work = std::move(queue.front());
    queue.pop_front();
    work();
  }
  void Drain() {
    const std::lock_guard lock(mutex);
    while (!queue.empty()) RunNext();
  }
};

// Recordings are counted: to wait for one is to wait for its number.
struct EventObject {
  std::mutex mutex;
  int64_t recorded = 0;
  StreamObject* stream = nullptr;  // of the latest recording
  std::atomic<int64_t> reached = 0;

  // Runs the stream that the event was recorded on for as long as it takes. Another thread may be running it.
  void RunUntil(StreamObject* recorded_on, int64_t number) {
    while (reached < number) {
      const std::unique_lock lock(recorded_on->mutex, std::try_to_lock);
      if (!lock.owns_lock()) {
        std::this_thread::yield();
      } else if (reached < number) {
        recorded_on->RunNext();
      }
    }
  }
};

namespace {

constexpr int kInvalidConfiguration = 9;  // cudaErrorInvalidConfiguration
constexpr size_t kAlignment = 256;
constexpr size_t kPageBytes = 4096;

struct Device {
  std::mutex mutex;
  // Shared: a thread may be waiting for all streams while another destroys one.
  std::map<StreamObject*, std::shared_ptr<StreamObject>> streams;
  std::map<EventObject*, std::shared_ptr<EventObject>> events;
  std::map<GraphObject*, std::shared_ptr<GraphObject>> graphs;
  absl::Status graph_error;  // of what makes or launches one
  int64_t graph_launches = 0;
  int64_t enqueued_on_gone_streams = 0;
  std::map<void*, int64_t> allocations;
  std::map<void*, int64_t> pinned;
  int64_t allocated = 0;
  int64_t limit = int64_t{8} << 30;
  cuda_emulation::RuntimeCounts counts;
  absl::StatusOr<std::vector<DeviceInfo>> visible = cuda_emulation::TwoDevices();
  int opened = 0;  // until OpenDevice it is the first, as in CUDA
  bool open = false;
  uint64_t generation = 0;  // of SetDevices
};

Device& TheDevice() {
  static auto* device = new Device();
  return *device;
}

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

// A device would work on the wrong memory, or refuse.
void CheckCurrentDevice(const char* what) {
  int current = 0, opened = 0;
  {
    const std::lock_guard lock(TheDevice().mutex);
    opened = TheDevice().opened;
    current = CurrentDevice().generation == TheDevice().generation ? CurrentDevice().index : 0;
  }
  if (current != opened) {
    cuda_emulation::Fail(absl::StrCat(what, " on device ", current, " of a process that opened device ",
                                      opened, ": the thread has not called UseDevice"));
  }
}

// The stream that the calling thread captures.
StreamObject*& CapturedByThread() {
  static thread_local StreamObject* stream = nullptr;
  return stream;
}

// While the thread captures, `call` is refused, and the capture is lost, as on a device.
absl::Status RefuseWhileCapturing(const char* call) {
  StreamObject* stream = CapturedByThread();
  if (stream == nullptr) return absl::OkStatus();
  const std::lock_guard lock(stream->mutex);
  if (stream->capture->broken_by.empty()) stream->capture->broken_by = call;
  return absl::InternalError(absl::StrCat(call, ": not permitted while the thread captures a stream"));
}

// For calls that have no status to return: who makes them does not know that it captures.
void FailWhileCapturing(const char* call) {
  if (CapturedByThread() != nullptr) {
    cuda_emulation::Fail(absl::StrCat(call, " while the thread captures a stream"));
  }
}

void DrainAll() {
  std::map<StreamObject*, std::shared_ptr<StreamObject>> streams;
  {
    const std::lock_guard lock(TheDevice().mutex);
    streams = TheDevice().streams;
  }
  for (const auto& [handle, stream] : streams) stream->Drain();
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().visible;
}

absl::StatusOr<DeviceInfo> OpenDevice(int index) {
  const auto devices = ListDevices();
  if (!devices.ok()) return devices.status();
  if (absl::Status status = CheckDeviceIndex(index, *devices); !status.ok()) return status;
  {
    Device& device = TheDevice();
    const std::lock_guard lock(device.mutex);
    if (device.open && device.opened != index) return AnotherDevice(device.opened, index);
    device.open = true;
    device.opened = index;
  }
  UseDevice();
  return (*devices)[index];
}

void UseDevice() {
  const std::lock_guard lock(TheDevice().mutex);
  CurrentDevice() = {TheDevice().generation, TheDevice().opened};
}

int DriverVersion() { return 0; }

absl::StatusOr<DeviceMemory> QueryDeviceMemory() {
  UseDevice();
  const std::lock_guard lock(TheDevice().mutex);
  return DeviceMemory{.used_bytes = TheDevice().allocated, .total_bytes = TheDevice().limit};
}

absl::StatusOr<void*> DeviceAllocate(int64_t bytes) {
  UseDevice();
  if (absl::Status status = RefuseWhileCapturing("DeviceAllocate"); !status.ok()) return status;
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  void* data = nullptr;
  if (bytes <= device.limit - device.allocated) {
    // AddressSanitizer guards the very next byte.
    if (posix_memalign(&data, kAlignment, static_cast<size_t>(bytes)) != 0) data = nullptr;
  }
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no device memory for ", bytes, " bytes; ",
                                                     device.allocated, " of ", device.limit, " are in use"));
  }
  // Floats of this pattern are NaN: kernels must not live on zeros.
  std::memset(data, 0xFF, static_cast<size_t>(bytes));
  device.allocations[data] = bytes;
  device.allocated += bytes;
  ++device.counts.device_allocations;
  return data;
}

absl::StatusOr<void*> PinnedAllocate(int64_t bytes) {
  UseDevice();
  if (absl::Status status = RefuseWhileCapturing("PinnedAllocate"); !status.ok()) return status;
  void* data = nullptr;
  if (posix_memalign(&data, kPageBytes, static_cast<size_t>(bytes)) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no page-locked host memory for ", bytes, " bytes"));
  }
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  device.pinned[data] = bytes;
  ++device.counts.pinned_allocations;
  return data;
}

void PinnedFree(void* data) {
  if (data == nullptr) return;
  FailWhileCapturing("PinnedFree");
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  if (device.pinned.erase(data) == 0) cuda_emulation::Fail("PinnedFree of what was not allocated");
  std::free(data);
}

absl::StatusOr<EventHandle> CreateDeviceEvent() {
  UseDevice();
  auto event = std::make_shared<EventObject>();
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().events[event.get()] = event;
  ++TheDevice().counts.events;
  return event.get();
}

// Streams that still have to reach it keep it.
void DestroyDeviceEvent(EventHandle event) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().events.erase(event);
}

absl::Status RecordEvent(EventHandle event, StreamHandle stream) {
  if (absl::Status status = RefuseWhileCapturing("RecordEvent"); !status.ok()) return status;
  std::shared_ptr<EventObject> shared;
  {
    const std::lock_guard lock(TheDevice().mutex);
    shared = TheDevice().events.at(event);
  }
  const std::lock_guard lock(event->mutex);
  const int64_t number = ++event->recorded;
  event->stream = stream;
  stream->Enqueue([shared, number] {
    int64_t reached = shared->reached;
    while (reached < number && !shared->reached.compare_exchange_weak(reached, number)) {
    }
  });
  return absl::OkStatus();
}

absl::Status WaitForEvent(StreamHandle stream, EventHandle event) {
  if (absl::Status status = RefuseWhileCapturing("WaitForEvent"); !status.ok()) return status;
  std::shared_ptr<EventObject> shared;
  {
    const std::lock_guard lock(TheDevice().mutex);
    shared = TheDevice().events.at(event);
  }
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

void DeviceFree(void* data) {
  if (data == nullptr) return;
  FailWhileCapturing("DeviceFree");
  DrainAll();
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  const auto allocation = device.allocations.find(data);
  if (allocation == device.allocations.end()) cuda_emulation::Fail("DeviceFree of what was not allocated");
  device.allocated -= allocation->second;
  std::free(data);
  device.allocations.erase(allocation);
}

absl::StatusOr<StreamHandle> CreateDeviceStream() {
  UseDevice();
  auto stream = std::make_shared<StreamObject>();
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().streams[stream.get()] = stream;
  ++TheDevice().counts.streams;
  return stream.get();
}

void DestroyDeviceStream(StreamHandle stream) {
  FailWhileCapturing("DestroyDeviceStream");
  stream->Drain();
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().enqueued_on_gone_streams += stream->enqueued;
  TheDevice().streams.erase(stream);
}

absl::Status SynchronizeStream(StreamHandle stream) {
  if (absl::Status status = RefuseWhileCapturing("SynchronizeStream"); !status.ok()) return status;
  stream->Drain();
  return absl::OkStatus();
}

absl::Status BeginCapture(StreamHandle stream) {
  CheckCurrentDevice("a capture");
  if (absl::Status status = RefuseWhileCapturing("BeginCapture"); !status.ok()) return status;
  const std::lock_guard lock(stream->mutex);
  stream->capture = std::make_unique<Capture>();
  CapturedByThread() = stream;
  return absl::OkStatus();
}

absl::StatusOr<GraphHandle> EndCapture(StreamHandle stream) {
  if (CapturedByThread() != stream) {
    return absl::InternalError("EndCapture: the thread does not capture this stream");
  }
  CapturedByThread() = nullptr;
  std::unique_ptr<Capture> capture;
  {
    const std::lock_guard lock(stream->mutex);
    capture = std::move(stream->capture);
  }
  if (!capture->broken_by.empty()) {
    return absl::InternalError(absl::StrCat("EndCapture: invalidated by ", capture->broken_by));
  }
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  if (!device.graph_error.ok()) return device.graph_error;
  if (cuda_emulation::kGraphBytes > device.limit - device.allocated) {
    return absl::ResourceExhaustedError("no device memory for a graph");
  }
  auto graph = std::make_shared<GraphObject>();
  graph->work = std::move(capture->work);
  device.allocated += cuda_emulation::kGraphBytes;
  device.graphs[graph.get()] = graph;
  ++device.counts.graphs;
  return graph.get();
}

absl::Status LaunchGraph(GraphHandle graph, StreamHandle stream) {
  CheckCurrentDevice("the launch of a graph");
  if (absl::Status status = RefuseWhileCapturing("LaunchGraph"); !status.ok()) return status;
  std::shared_ptr<GraphObject> shared;
  {
    Device& device = TheDevice();
    const std::lock_guard lock(device.mutex);
    const auto found = device.graphs.find(graph);
    if (found == device.graphs.end()) cuda_emulation::Fail("LaunchGraph of what is no graph");
    if (!device.graph_error.ok()) return device.graph_error;
    shared = found->second;
    ++device.graph_launches;
  }
  ++shared->launches;
  stream->Enqueue([shared] {
    for (const Work& work : shared->work) work();
    --shared->launches;
  });
  return absl::OkStatus();
}

void DestroyGraph(GraphHandle graph) {
  FailWhileCapturing("DestroyGraph");
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  const auto found = device.graphs.find(graph);
  if (found == device.graphs.end()) cuda_emulation::Fail("DestroyGraph of what is no graph");
  if (graph->launches > 0) cuda_emulation::Fail("DestroyGraph of a graph whose launch was not waited for");
  device.graphs.erase(found);
  device.allocated -= cuda_emulation::kGraphBytes;
}

absl::Status EnqueueCopyFromHost(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  {
    const std::lock_guard lock(TheDevice().mutex);
    if (Contains(TheDevice().pinned, source)) {  // is read when its turn comes
      stream->Enqueue([=] { std::memcpy(target, source, static_cast<size_t>(bytes)); });
      return absl::OkStatus();
    }
  }
  if (absl::Status status = RefuseWhileCapturing("a copy from memory that is not pinned"); !status.ok()) {
    return status;
  }
  const auto* begin = static_cast<const unsigned char*>(source);
  stream->Enqueue([target, copy = std::vector<unsigned char>(begin, begin + bytes)] {
    std::memcpy(target, copy.data(), copy.size());
  });
  return absl::OkStatus();
}

absl::Status EnqueueCopyToHost(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  if (!cuda_emulation::IsPinnedMemory(target)) {
    if (absl::Status status = RefuseWhileCapturing("a copy to memory that is not pinned"); !status.ok()) {
      return status;
    }
  }
  stream->Enqueue([=] { std::memcpy(target, source, static_cast<size_t>(bytes)); });
  return absl::OkStatus();
}

absl::Status EnqueueZero(StreamHandle stream, void* target, int64_t bytes) {
  stream->Enqueue([=] { std::memset(target, 0, static_cast<size_t>(bytes)); });
  return absl::OkStatus();
}

bool IsDeviceMemory(const void* data) {
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  return Contains(device.allocations, data);
}

absl::Status StatusOf(LaunchError error, absl::string_view kernel) {
  if (error.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(kernel, ": the launch failed with CUDA error ", error.code));
}

}  // namespace kvblend::kernels::cuda

namespace kvblend::cuda_emulation {

using kernels::cuda::DeviceInfo;
using kernels::cuda::LaunchError;
using kernels::cuda::LaunchShape;
using kernels::cuda::TheDevice;

int64_t SetMemoryLimit(int64_t bytes) {
  const std::lock_guard lock(TheDevice().mutex);
  return std::exchange(TheDevice().limit, bytes);
}

bool IsPinnedMemory(const void* data) {
  const std::lock_guard lock(TheDevice().mutex);
  return kernels::cuda::Contains(TheDevice().pinned, data);
}

RuntimeCounts CountRuntimeObjects() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().counts;
}

WorkCounts CountWork() {
  kernels::cuda::Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  WorkCounts counts{.enqueued = device.enqueued_on_gone_streams, .graph_launches = device.graph_launches};
  for (const auto& [handle, stream] : device.streams) counts.enqueued += stream->enqueued;
  return counts;
}

void SetGraphError(absl::Status error) {
  const std::lock_guard lock(TheDevice().mutex);
  TheDevice().graph_error = std::move(error);
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
  kernels::cuda::Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  if (!device.allocations.empty() || !device.streams.empty()) Fail("SetDevices while the device is in use");
  device.visible = std::move(devices);
  device.open = false;
  device.opened = 0;
  ++device.generation;
}

int64_t AllocatedBytes() {
  const std::lock_guard lock(TheDevice().mutex);
  return TheDevice().allocated;
}

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
