// What the emulated runtime is made of: for its sources only.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda_emulation/runtime.h"

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
  std::atomic<int64_t> reached_at = 0;  // nanoseconds, by the host's clock

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

Device& TheDevice();

/// The device, whose mutex is held for as long as this lives.
class LockedDevice {
 public:
  Device* operator->() const { return &TheDevice(); }

 private:
  const std::lock_guard<std::mutex> lock_{TheDevice().mutex};
};

/// A device would work on the wrong memory, or refuse.
void CheckCurrentDevice(const char* what);

/// While the calling thread captures a stream, `call` is refused, and the capture is lost, as on a device.
absl::Status RefuseWhileCapturing(const char* call);
/// For calls that have no status to return: who makes them does not know that it captures.
void FailWhileCapturing(const char* call);

}  // namespace kvblend::kernels::cuda
