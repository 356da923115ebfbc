// kernels/cuda/runtime/runtime.h over the CUDA runtime.
#include <cuda_runtime.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime/open_device.h"
#include "kernels/cuda/runtime/runtime.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kNoDevice = -1;
std::atomic<int> opened_device = kNoDevice;

cudaStream_t Of(StreamHandle stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t Of(EventHandle event) { return reinterpret_cast<cudaEvent_t>(event); }
cudaGraphExec_t Of(GraphHandle graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }

absl::Status ToStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const auto code =
      error == cudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal;
  return absl::Status(code,
                      absl::StrCat(call, ": ", cudaGetErrorName(error), ", ", cudaGetErrorString(error)));
}

absl::StatusOr<EventHandle> CreateEvent(unsigned flags) {
  UseDevice();
  cudaEvent_t event = nullptr;
  if (auto s = ToStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate"); !s.ok()) return s;
  return reinterpret_cast<EventHandle>(event);
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error == cudaErrorNoDevice) {
    count = 0;
  } else if (error != cudaSuccess) {
    return absl::FailedPreconditionError(cudaGetErrorString(error));
  }
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (auto s = ToStatus(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties"); !s.ok())
      return s;
    devices.push_back({.name = properties.name,
                       .compute_major = properties.major,
                       .compute_minor = properties.minor,
                       .num_multiprocessors = properties.multiProcessorCount,
                       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

absl::StatusOr<DeviceInfo> OpenDevice(int index) {
  const auto devices = ListDevices();
  if (!devices.ok()) return devices.status();
  if (absl::Status status = CheckDeviceIndex(index, *devices); !status.ok()) return status;
  int used = kNoDevice;
  if (!opened_device.compare_exchange_strong(used, index) && used != index) return AnotherDevice(used, index);
  UseDevice();
  // Makes the context, so that a device that refuses one (in use exclusively, broken) shows here.
  if (auto s = ToStatus(cudaFree(nullptr), "opening the CUDA device"); !s.ok()) return s;
  return (*devices)[index];
}

void UseDevice() {
  thread_local int current = kNoDevice;
  const int opened = opened_device.load(std::memory_order_relaxed);
  if (current == opened || opened == kNoDevice) return;
  // When it fails, whatever the device is needed for says so.
  if (cudaSetDevice(opened) == cudaSuccess) current = opened;
}

absl::StatusOr<DeviceMemory> QueryDeviceMemory() {
  UseDevice();
  size_t available = 0, total = 0;
  if (auto s = ToStatus(cudaMemGetInfo(&available, &total), "cudaMemGetInfo"); !s.ok()) return s;
  return DeviceMemory{.used_bytes = static_cast<int64_t>(total - available),
                      .total_bytes = static_cast<int64_t>(total)};
}

absl::StatusOr<void*> DeviceAllocate(int64_t bytes) {
  UseDevice();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // not sticky: the next call must not report it again
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) available = total = 0;
    return absl::ResourceExhaustedError(absl::StrCat("no device memory for ", bytes, " bytes; ",
                                                     total - available, " of ", total, " are in use"));
  }
  if (auto s = ToStatus(error, "cudaMalloc"); !s.ok()) return s;
  return data;
}

// Errors of earlier kernels come out here too; SynchronizeStream reports them.
void DeviceFree(void* data) {
  UseDevice();
  (void)cudaFree(data);
}

absl::StatusOr<void*> PinnedAllocate(int64_t bytes) {
  UseDevice();
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return absl::ResourceExhaustedError(absl::StrCat("no page-locked host memory for ", bytes, " bytes"));
  }
  if (auto s = ToStatus(error, "cudaHostAlloc"); !s.ok()) return s;
  return data;
}

void PinnedFree(void* data) {
  UseDevice();
  (void)cudaFreeHost(data);
}

absl::StatusOr<EventHandle> CreateDeviceEvent() { return CreateEvent(cudaEventDisableTiming); }
absl::StatusOr<EventHandle> CreateTimedEvent() { return CreateEvent(cudaEventDefault); }

void DestroyDeviceEvent(EventHandle event) {
  UseDevice();
  (void)cudaEventDestroy(Of(event));
}

absl::Status RecordEvent(EventHandle event, StreamHandle stream) {
  UseDevice();
  return ToStatus(cudaEventRecord(Of(event), Of(stream)), "cudaEventRecord");
}

absl::Status WaitForEvent(StreamHandle stream, EventHandle event) {
  return ToStatus(cudaStreamWaitEvent(Of(stream), Of(event)), "cudaStreamWaitEvent");
}

bool EventIsReached(EventHandle event) {
  UseDevice();
  const cudaError_t error = cudaEventQuery(Of(event));
  if (error == cudaErrorNotReady) (void)cudaGetLastError();  // an answer, not an error
  return error == cudaSuccess;
}

absl::StatusOr<double> ElapsedSeconds(EventHandle begin, EventHandle end) {
  float milliseconds = 0;
  if (auto s = ToStatus(cudaEventElapsedTime(&milliseconds, Of(begin), Of(end)), "cudaEventElapsedTime");
      !s.ok()) {
    return s;
  }
  return double{milliseconds} * 1e-3;
}

absl::StatusOr<StreamHandle> CreateDeviceStream() {
  UseDevice();
  cudaStream_t stream = nullptr;
  if (auto s = ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
      !s.ok()) {
    return s;
  }
  return reinterpret_cast<StreamHandle>(stream);
}

void DestroyDeviceStream(StreamHandle stream) {
  UseDevice();
  (void)cudaStreamSynchronize(Of(stream));
  (void)cudaStreamDestroy(Of(stream));
}

absl::Status SynchronizeStream(StreamHandle stream) {
  UseDevice();
  return ToStatus(cudaStreamSynchronize(Of(stream)), "cudaStreamSynchronize");
}

absl::Status BeginCapture(StreamHandle stream) {
  // Other threads may allocate and wait meanwhile.
  return ToStatus(cudaStreamBeginCapture(Of(stream), cudaStreamCaptureModeThreadLocal),
                  "cudaStreamBeginCapture");
}

absl::StatusOr<GraphHandle> EndCapture(StreamHandle stream) {
  cudaGraph_t recorded = nullptr;
  absl::Status status = ToStatus(cudaStreamEndCapture(Of(stream), &recorded), "cudaStreamEndCapture");
  cudaGraphExec_t graph = nullptr;
  if (status.ok()) status = ToStatus(cudaGraphInstantiate(&graph, recorded, 0), "cudaGraphInstantiate");
  if (recorded != nullptr) (void)cudaGraphDestroy(recorded);
  if (!status.ok()) {
    (void)cudaGetLastError();  // the stream itself is well: later calls must not report it
    return status;
  }
  return reinterpret_cast<GraphHandle>(graph);
}

absl::Status LaunchGraph(GraphHandle graph, StreamHandle stream) {
  const cudaError_t error = cudaGraphLaunch(Of(graph), Of(stream));
  if (error != cudaSuccess) (void)cudaGetLastError();
  return ToStatus(error, "cudaGraphLaunch");
}

void DestroyGraph(GraphHandle graph) { (void)cudaGraphExecDestroy(Of(graph)); }

absl::Status EnqueueCopyFromHost(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  return ToStatus(
      cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, Of(stream)),
      "cudaMemcpyAsync to the device");
}

absl::Status EnqueueCopyToHost(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  return ToStatus(
      cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, Of(stream)),
      "cudaMemcpyAsync to the host");
}

absl::Status EnqueueZero(StreamHandle stream, void* target, int64_t bytes) {
  return ToStatus(cudaMemsetAsync(target, 0, static_cast<size_t>(bytes), Of(stream)), "cudaMemsetAsync");
}

void DiscardContents(StreamHandle /*stream*/, void* /*data*/, int64_t /*bytes*/) {}

bool IsDeviceMemory(const void* data) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice;
}

absl::Status StatusOf(LaunchError error, absl::string_view kernel) {
  if (error.ok()) return absl::OkStatus();
  (void)cudaGetLastError();
  return ToStatus(static_cast<cudaError_t>(error.code), kernel);
}

}  // namespace kvblend::kernels::cuda
