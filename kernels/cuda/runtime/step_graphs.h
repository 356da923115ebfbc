// RepeatedStep of the CUDA backend: a graph for every shape that steps of decoding have had twice.
//
// The first step of a shape runs operation by operation, so that everything grows to the size that it needs;
// the second one is recorded; from then on the host fills the step's memory with the values and launches the
// graph, which copies them to the device, runs all layers and copies what was sampled back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/step_recording.h"

namespace kvblend::kernels::cuda {

class StepGraphs final : public RepeatedStep {
 public:
  /// Up to 16 rows with contexts of up to 8,192 tokens, some rows drawing or none, is 16 * 7 * 2 shapes; few
  /// of them are in use at a time.
  static constexpr size_t kMaxShapes = 64;

  explicit StepGraphs(DeviceStream& stream, size_t max_shapes = kMaxShapes);
  ~StepGraphs() override;

  /// Values that an operation refuses run operation by operation, for its error. So does everything once a
  /// graph could not be made or launched.
  absl::Status Run(const StepValues& values, absl::FunctionRef<absl::Status()> operations) override;
  std::string problem() const override { return problem_; }

 private:
  struct Known {
    StepShape shape;
    GraphHandle graph = nullptr;  // null: has run once
    StepLimits limits = {};
  };

  /// The entry of a shape, which becomes the one used last; null for a new shape.
  Known* Find(const StepShape& shape);
  void Remember(const StepShape& shape);
  absl::Status Record(Known& known, const StepValues& values, absl::FunctionRef<absl::Status()> operations);
  absl::Status Launch(const Known& known, const StepValues& values);
  /// Graphs hold addresses: once device memory was freed, they are not used again.
  void DropStaleGraphs();
  void DropGraphs();
  absl::Status WaitForLastRun();

  DeviceStream& stream_;
  const size_t max_shapes_;
  std::vector<Known> known_;  // the least recently used one first
  std::unique_ptr<StepMemory> memory_;
  int64_t freed_buffers_ = 0;  // when the graphs were last known to be good
  int64_t launched_at_ = -1;   // synchronisations of the stream at the last launch
  std::string problem_;
};

}  // namespace kvblend::kernels::cuda
