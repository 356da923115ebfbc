// Device memory of the CUDA backend: buffers, and streams with the scratch memory of what runs on them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "kernels/backend.h"
#include "kernels/cuda/runtime/runtime.h"

namespace kvblend::kernels::cuda {

class DeviceBuffer final : public Buffer {
 public:
  /// kInvalidArgument for negative sizes, kResourceExhausted without memory; `op` names the caller.
  static absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(absl::string_view op, int64_t bytes);
  ~DeviceBuffer() override;
  void* data() const override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  DeviceBuffer(void* data, int64_t bytes) : data_(data), size_bytes_(bytes) {}
  void* const data_;
  const int64_t size_bytes_;
};

/// How many DeviceBuffers were freed so far. Where it has grown, an address that was noted before may be
/// another buffer's now. Thread-safe.
int64_t FreedDeviceBuffers();

/// A stream, shared with those who enqueued work on it and may outlive it. Thread-safe.
class LivingStream {
 public:
  explicit LivingStream(StreamHandle handle) : handle_(handle) {}
  /// False when the stream is gone, and everything enqueued on it done, or when that failed.
  bool Record(EventHandle event);
  void Synchronize();
  /// Destroys the stream, which waits for it.
  void End();

 private:
  absl::Mutex mutex_;
  StreamHandle handle_ ABSL_GUARDED_BY(mutex_);  // null once ended
};

class SectionStaging;
class StepRecording;

/// Used by one thread at a time, as Stream is.
class DeviceStream final : public Stream {
 public:
  /// What scratch memory is for; one operation may use each once.
  enum class Scratch : uint8_t { kIndices, kActivations, kWorkspace, kEncodedSection };

  static absl::StatusOr<std::unique_ptr<DeviceStream>> Create();
  ~DeviceStream() override;

  /// For calls from this thread, whose current device becomes the stream's.
  StreamHandle handle() const {
    UseDevice();
    return handle_;
  }
  /// Waits for the stream, then makes the copies that DeliverOnSynchronize noted, unless there is an error.
  absl::Status Synchronize();
  /// How often Synchronize was called.
  int64_t synchronisations() const { return synchronisations_; }
  /// Notes a copy within host memory for the next Synchronize.
  void DeliverOnSynchronize(void* target, const void* source, int64_t bytes) {
    deliveries_.push_back({target, source, bytes});
  }

  /// While a step is recorded on the stream (kernels/cuda/runtime/step_recording.h), else null.
  StepRecording* recording() const { return recording_; }
  void set_recording(StepRecording* recording) { recording_ = recording; }

  /// At least `bytes`, the same memory again and again; grows to the largest request there was, but not while
  /// a step is recorded: kFailedPrecondition.
  absl::StatusOr<void*> ScratchMemory(Scratch use, int64_t bytes);
  /// Bring, Await and Release of SectionStaging, which is made when it is needed first.
  absl::StatusOr<const void*> BringSection(const void* source, int64_t bytes);
  absl::Status AwaitSections();
  absl::Status ReleaseSections();
  const std::shared_ptr<LivingStream>& living() const { return living_; }

  /// A timed event (kernels/cuda/runtime/runtime.h) that nobody uses, to be returned.
  absl::StatusOr<EventHandle> TakeTimedEvent();
  void ReturnTimedEvent(EventHandle event) { timed_events_.push_back(event); }

 private:
  struct Delivery {
    void* target;
    const void* source;
    int64_t bytes;
  };

  explicit DeviceStream(StreamHandle handle);

  const StreamHandle handle_;
  const std::shared_ptr<LivingStream> living_;
  std::array<std::unique_ptr<DeviceBuffer>, 4> scratch_;
  std::unique_ptr<SectionStaging> staging_;
  StepRecording* recording_ = nullptr;
  std::vector<Delivery> deliveries_;
  std::vector<EventHandle> timed_events_;  // that nobody uses
  int64_t synchronisations_ = 0;
};

}  // namespace kvblend::kernels::cuda
