#include "kernels/cuda/runtime/step_graphs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::kernels::cuda {

StepGraphs::StepGraphs(DeviceStream& stream, size_t max_shapes) : stream_(stream), max_shapes_(max_shapes) {
  known_.reserve(max_shapes);
}

StepGraphs::~StepGraphs() { DropGraphs(); }

absl::Status StepGraphs::Run(const StepValues& values, absl::FunctionRef<absl::Status()> operations) {
  const std::optional<StepShape> shape = problem_.empty() ? StepShape::Of(values) : std::nullopt;
  if (!shape.has_value()) return operations();
  DropStaleGraphs();
  Known* known = Find(*shape);
  if (known == nullptr) {
    const absl::Status status = operations();
    if (status.ok()) Remember(*shape);
    return status;
  }
  absl::Status status = known->graph == nullptr ? Record(*known, values, operations) : absl::OkStatus();
  if (status.ok()) {
    if (!known->limits.Allow(values)) return operations();
    status = Launch(*known, values);
  }
  if (status.ok()) return absl::OkStatus();
  problem_ =
      absl::StrCat("a decode step of ", shape->rows, " rows could not be made a CUDA graph, and steps ",
                   "are launched kernel by kernel from now on: ", status.message());
  DropGraphs();
  return operations();
}

StepGraphs::Known* StepGraphs::Find(const StepShape& shape) {
  const auto found =
      std::find_if(known_.begin(), known_.end(), [&](const Known& known) { return known.shape == shape; });
  if (found == known_.end()) return nullptr;
  std::rotate(found, found + 1, known_.end());
  return &known_.back();
}

void StepGraphs::Remember(const StepShape& shape) {
  if (known_.size() == max_shapes_) {
    if (known_.front().graph != nullptr) {
      WaitForLastRun().IgnoreError();  // the next Synchronize returns the error, too
      DestroyGraph(known_.front().graph);
    }
    known_.erase(known_.begin());
  }
  known_.push_back({.shape = shape});
}

absl::Status StepGraphs::Record(Known& known, const StepValues& values,
                                absl::FunctionRef<absl::Status()> operations) {
  const StepLayout layout(known.shape);
  if (memory_ == nullptr || memory_->size_bytes() < layout.total_bytes) {
    if (absl::Status s = WaitForLastRun(); !s.ok()) return s;
    memory_.reset();
    auto larger =
        StepMemory::Allocate(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(layout.total_bytes))));
    if (!larger.ok()) return larger.status();
    memory_ = *std::move(larger);
    DropStaleGraphs();  // they have the old memory's addresses
  }
  StepRecording recording(known.shape, values, *memory_);
  const StreamHandle handle = stream_.handle();
  if (absl::Status s = BeginCapture(handle); !s.ok()) return s;
  stream_.set_recording(&recording);
  absl::Status status = EnqueueCopyFromHost(handle, memory_->device(), memory_->host(), layout.input_bytes);
  if (status.ok()) status = operations();
  stream_.set_recording(nullptr);
  const absl::StatusOr<GraphHandle> graph = EndCapture(handle);
  if (status.ok()) status = graph.status();
  if (status.ok() && recording.limits().vocab_size == 0) {
    status = absl::FailedPreconditionError("the step samples nothing");
  }
  if (!status.ok()) {
    if (graph.ok()) DestroyGraph(*graph);
    return status;
  }
  known.graph = *graph;
  known.limits = recording.limits();
  return absl::OkStatus();
}

absl::Status StepGraphs::Launch(const Known& known, const StepValues& values) {
  // The last run may not have read its values yet.
  if (absl::Status s = WaitForLastRun(); !s.ok()) return s;
  memory_->Fill(known.shape, values);
  if (absl::Status s = LaunchGraph(known.graph, stream_.handle()); !s.ok()) return s;
  launched_at_ = stream_.synchronisations();
  stream_.DeliverOnSynchronize(values.out.data(), memory_->host() + StepLayout(known.shape).out,
                               static_cast<int64_t>(values.out.size() * sizeof(SampledToken)));
  return absl::OkStatus();
}

void StepGraphs::DropStaleGraphs() {
  const int64_t freed = FreedDeviceBuffers();
  if (freed == freed_buffers_) return;
  DropGraphs();
  freed_buffers_ = freed;
}

void StepGraphs::DropGraphs() {
  WaitForLastRun().IgnoreError();
  for (Known& known : known_) {
    if (known.graph != nullptr) DestroyGraph(std::exchange(known.graph, nullptr));
  }
}

absl::Status StepGraphs::WaitForLastRun() {
  return launched_at_ == stream_.synchronisations() ? stream_.Synchronize() : absl::OkStatus();
}

}  // namespace kvblend::kernels::cuda
