#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/bench/gpu/stopwatch.h"

namespace kvblend::gpu_bench {
namespace {

cudaStream_t Of(StreamHandle stream) { return reinterpret_cast<cudaStream_t>(stream); }

absl::Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

class EventStopwatch final : public Stopwatch {
 public:
  EventStopwatch(cudaEvent_t begin, cudaEvent_t end) : begin_(begin), end_(end) {}
  ~EventStopwatch() override {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  absl::Status Start(StreamHandle stream) override {
    return ToStatus(cudaEventRecord(begin_, Of(stream)), "cudaEventRecord");
  }
  absl::Status Stop(StreamHandle stream) override {
    return ToStatus(cudaEventRecord(end_, Of(stream)), "cudaEventRecord");
  }
  absl::StatusOr<double> Seconds() override {
    float milliseconds = 0;
    if (auto s = ToStatus(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime"); !s.ok())
      return s;
    return double{milliseconds} * 1e-3;
  }

 private:
  const cudaEvent_t begin_, end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stopwatch>> Stopwatch::Create() {
  kernels::cuda::UseDevice();
  cudaEvent_t begin = nullptr, end = nullptr;
  if (auto s = ToStatus(cudaEventCreate(&begin), "cudaEventCreate"); !s.ok()) return s;
  if (auto s = ToStatus(cudaEventCreate(&end), "cudaEventCreate"); !s.ok()) {
    (void)cudaEventDestroy(begin);
    return s;
  }
  return std::make_unique<EventStopwatch>(begin, end);
}

absl::Status EnqueueDeviceCopy(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  return ToStatus(
      cudaMemcpyAsync(target, source, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, Of(stream)),
      "cudaMemcpyAsync on the device");
}

int DriverVersion() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

}  // namespace kvblend::gpu_bench
