// The thin seam between the backend and the CUDA runtime, so that all host code above it also runs over an
// emulated device: runtime_cuda.cc is the hardware's, and a program that links no other one gets it. All
// functions are thread-safe; one stream is used by one thread at a time.
//
// Streams run behind the host in both. Errors: kResourceExhausted when device memory is out, kInternal with
// the runtime's own words otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/launch.h"

namespace kvblend::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int num_multiprocessors = 0;
  int64_t memory_bytes = 0;
};

/// All that are visible, opening none. kFailedPrecondition with the runtime's words when it has none to list
/// (no driver).
absl::StatusOr<std::vector<DeviceInfo>> ListDevices();

/// Opens visible device `index`. A process uses one device: kFailedPrecondition when it uses another one
/// already, when there is none, or none that kernels can run on (compute capability below 8.0);
/// kInvalidArgument for an index beyond them.
absl::StatusOr<DeviceInfo> OpenDevice(int index);

/// Makes the opened device the calling thread's current one, which launches need. Costs next to nothing when
/// it is that already. DeviceStream::handle (memory.h) calls it, and so do the functions below that take no
/// stream, or one that may be used from a thread without a device: the runtime would open device 0 there.
void UseDevice();

/// The memory of the opened device.
absl::StatusOr<DeviceMemory> QueryDeviceMemory();

/// Aligned to 256 bytes, uninitialised. `bytes` above 0.
absl::StatusOr<void*> DeviceAllocate(int64_t bytes);
/// Waits for everything that was enqueued before.
void DeviceFree(void* data);

/// Page-locked host memory, which the device copies from and to on its own: `bytes` above 0, aligned to 4096.
absl::StatusOr<void*> PinnedAllocate(int64_t bytes);
/// REQUIRES: nothing that is still enqueued copies from or to it.
void PinnedFree(void* data);

absl::StatusOr<StreamHandle> CreateDeviceStream();
void DestroyDeviceStream(StreamHandle stream);
/// Waits; returns the first error of anything enqueued since the last call.
absl::Status SynchronizeStream(StreamHandle stream);

/// Marks a place in a stream. Recording it again moves it; never recorded, it has been reached.
struct EventObject;
using EventHandle = EventObject*;
absl::StatusOr<EventHandle> CreateDeviceEvent();
/// One whose times ElapsedSeconds can compare.
absl::StatusOr<EventHandle> CreateTimedEvent();
void DestroyDeviceEvent(EventHandle event);
/// Moves the event behind everything that was enqueued on `stream` so far.
absl::Status RecordEvent(EventHandle event, StreamHandle stream);
/// What is enqueued on `stream` from now on waits for the event as it is recorded now; the host does not.
absl::Status WaitForEvent(StreamHandle stream, EventHandle event);
/// Whether the event as it was recorded last has been reached.
bool EventIsReached(EventHandle event);
/// From when `begin` was reached until `end` was. REQUIRES: both are timed and have been reached.
absl::StatusOr<double> ElapsedSeconds(EventHandle begin, EventHandle end);

/// What was enqueued on a stream, recorded once, to be launched as one any number of times.
struct GraphObject;
using GraphHandle = GraphObject*;
/// From now on what the calling thread enqueues on `stream` is recorded and does not run. Until EndCapture
/// the thread may not wait for anything, allocate or free, ask whether an event is reached, or record events;
/// nor may it copy from or to host memory that is not pinned. Other threads and their streams are free.
absl::Status BeginCapture(StreamHandle stream);
/// The graph of what was recorded, or, where something forbidden was done meanwhile or memory is out, the
/// error: then nothing of it ever runs. The stream is as before BeginCapture in any case.
absl::StatusOr<GraphHandle> EndCapture(StreamHandle stream);
/// Enqueues all of it. Addresses are those of the recording, the bytes there those of the run.
absl::Status LaunchGraph(GraphHandle graph, StreamHandle stream);
/// REQUIRES: its launches have been waited for.
void DestroyGraph(GraphHandle graph);

/// `source` may be changed when the call has returned, unless it is pinned memory.
absl::Status EnqueueCopyFromHost(StreamHandle stream, void* target, const void* source, int64_t bytes);
/// `target` holds the bytes after SynchronizeStream.
absl::Status EnqueueCopyToHost(StreamHandle stream, void* target, const void* source, int64_t bytes);
absl::Status EnqueueZero(StreamHandle stream, void* target, int64_t bytes);
/// Says that nothing reads these bytes of the device before they are written again. The emulated device
/// overwrites them with NaN, so that tests find who does; hardware leaves them as they are.
void DiscardContents(StreamHandle stream, void* data, int64_t bytes);

/// Whether kernels can be given this address: memory of DeviceAllocate.
bool IsDeviceMemory(const void* data);

/// OK, or kInternal naming the kernel.
absl::Status StatusOf(LaunchError error, absl::string_view kernel);

}  // namespace kvblend::kernels::cuda
