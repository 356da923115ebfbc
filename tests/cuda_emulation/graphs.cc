// The graphs of kernels/cuda/runtime/runtime.h over the emulator: lists of work, recorded once and run again
// and again.
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda_emulation/failure.h"
#include "tests/cuda_emulation/runtime_objects.h"

namespace kvblend::kernels::cuda {
namespace {

// The stream that the calling thread captures.
StreamObject*& CapturedByThread() {
  static thread_local StreamObject* stream = nullptr;
  return stream;
}

}  // namespace

absl::Status RefuseWhileCapturing(const char* call) {
  StreamObject* stream = CapturedByThread();
  if (stream == nullptr) return absl::OkStatus();
  const std::lock_guard lock(stream->mutex);
  if (stream->capture->broken_by.empty()) stream->capture->broken_by = call;
  return absl::InternalError(absl::StrCat(call, ": not permitted while the thread captures a stream"));
}

void FailWhileCapturing(const char* call) {
  if (CapturedByThread() != nullptr) {
    cuda_emulation::Fail(absl::StrCat(call, " while the thread captures a stream"));
  }
}

absl::Status BeginCapture(StreamHandle stream) {
  CheckCurrentDevice("a capture");
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("BeginCapture"));
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
  const LockedDevice device;
  if (!device->graph_error.ok()) return device->graph_error;
  if (cuda_emulation::kGraphBytes > device->limit - device->allocated) {
    return absl::ResourceExhaustedError("no device memory for a graph");
  }
  auto graph = std::make_shared<GraphObject>();
  graph->work = std::move(capture->work);
  device->allocated += cuda_emulation::kGraphBytes;
  device->graphs[graph.get()] = graph;
  ++device->counts.graphs;
  return graph.get();
}

absl::Status LaunchGraph(GraphHandle graph, StreamHandle stream) {
  CheckCurrentDevice("the launch of a graph");
  KVBLEND_RETURN_IF_ERROR(RefuseWhileCapturing("LaunchGraph"));
  std::shared_ptr<GraphObject> shared;
  {
    const LockedDevice device;
    const auto found = device->graphs.find(graph);
    if (found == device->graphs.end()) cuda_emulation::Fail("LaunchGraph of what is no graph");
    if (!device->graph_error.ok()) return device->graph_error;
    shared = found->second;
    ++device->graph_launches;
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
  const LockedDevice device;
  const auto found = device->graphs.find(graph);
  if (found == device->graphs.end()) cuda_emulation::Fail("DestroyGraph of what is no graph");
  if (graph->launches > 0) cuda_emulation::Fail("DestroyGraph of a graph whose launch was not waited for");
  device->graphs.erase(found);
  device->allocated -= cuda_emulation::kGraphBytes;
}

}  // namespace kvblend::kernels::cuda

namespace kvblend::cuda_emulation {

void SetGraphError(absl::Status error) { kernels::cuda::LockedDevice()->graph_error = std::move(error); }

}  // namespace kvblend::cuda_emulation
