// The time that the emulation takes, which says nothing of a GPU.
#include <chrono>
#include <cstring>

#include "tests/bench/gpu/stopwatch.h"
#include "tests/cuda_emulation/launcher.h"

namespace kvblend::gpu_bench {
namespace {

using Clock = std::chrono::steady_clock;

class HostStopwatch final : public Stopwatch {
 public:
  absl::Status Start(StreamHandle stream) override { return Note(stream, begin_); }
  absl::Status Stop(StreamHandle stream) override { return Note(stream, end_); }
  absl::StatusOr<double> Seconds() override {
    if (*end_ < *begin_) return absl::InternalError("Seconds before the stream was synchronised");
    return std::chrono::duration<double>(*end_ - *begin_).count();
  }

 private:
  // Shared with what is still enqueued when the stopwatch goes.
  using Point = std::shared_ptr<Clock::time_point>;
  static absl::Status Note(StreamHandle stream, const Point& point) {
    cuda_emulation::EnqueueHost(stream, [point] { *point = Clock::now(); });
    return absl::OkStatus();
  }

  const Point begin_ = std::make_shared<Clock::time_point>(Clock::time_point::max());
  const Point end_ = std::make_shared<Clock::time_point>();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stopwatch>> Stopwatch::Create() { return std::make_unique<HostStopwatch>(); }

absl::Status EnqueueDeviceCopy(StreamHandle stream, void* target, const void* source, int64_t bytes) {
  cuda_emulation::EnqueueHost(stream, [=] { std::memcpy(target, source, static_cast<size_t>(bytes)); });
  return absl::OkStatus();
}

int DriverVersion() { return 0; }

}  // namespace kvblend::gpu_bench
