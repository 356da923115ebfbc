// A decode step as a graph sees it: the shape that decides everything but the values, the memory that the
// values lie in at addresses that stay, and what operations are told while the step is recorded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/device/sampling.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/cuda/runtime/objects.h"

namespace kvblend::kernels::cuda {

/// Steps of equal shapes are launched with the same grids and addresses. What grows with a context does so in
/// powers of two here.
struct StepShape {
  int32_t rows = 0;         // one per sequence
  int32_t most_splits = 0;  // DeviceBatchPlan::most_splits
  int32_t page_size = 0;
  int32_t page_lists = 1;
  int64_t page_slots = 0;    // room for the page indices of each of them
  int64_t change_slots = 0;  // room for all changes of logits; 0: there are none
  bool draws = false;        // some row has a temperature

  /// nullopt unless the step has one row for every sequence, as steps of decoding have.
  static std::optional<StepShape> Of(const StepValues& values);
  friend bool operator==(const StepShape&, const StepShape&) = default;
};

/// Where things lie in a step's memory, in bytes.
struct StepLayout {
  explicit StepLayout(const StepShape& shape);
  int64_t token_ids, row_indptr, positions, kv_len, page_indptr, sequence_of_row, kv_offset, page_indices;
  int64_t sampling, changes;
  int64_t input_bytes;  // all of the above: what goes to the device
  int64_t out;          // SampledTokens, on the host only
  int64_t total_bytes;
};

/// Page-locked host memory, and device memory that it is copied to.
class StepMemory {
 public:
  static absl::StatusOr<std::unique_ptr<StepMemory>> Allocate(int64_t bytes);
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  unsigned char* host() const { return host_; }
  unsigned char* device() const { return static_cast<unsigned char*>(device_->data()); }
  int64_t size_bytes() const { return device_->size_bytes(); }

  /// Lays the values out for the next run. REQUIRES: values of this shape; the last run is over.
  void Fill(const StepShape& shape, const StepValues& values);

 private:
  explicit StepMemory(std::unique_ptr<DeviceBuffer> device) : device_(std::move(device)) {}
  const std::unique_ptr<DeviceBuffer> device_;
  unsigned char* host_ = nullptr;
};

/// What the operations of a recorded step checked their values against. Nothing is checked when the graph
/// runs, so it may run only with values that stay within these limits.
struct StepLimits {
  int64_t positions = std::numeric_limits<int64_t>::max();  // below
  int64_t pages = std::numeric_limits<int64_t>::max();      // below
  int64_t token_ids = std::numeric_limits<int64_t>::max();  // below
  int64_t vocab_size = 0;                                   // of the sampled logits; 0: nothing was sampled
  bool Allow(const StepValues& values) const;
};

/// What operations on a stream find while a step is recorded there: in place of the host memory that they are
/// given, which a repetition could not read again, the step's. kFailedPrecondition for any other.
class StepRecording {
 public:
  StepRecording(const StepShape& shape, const StepValues& values, const StepMemory& memory)
      : values_(values), memory_(memory), layout_(shape), page_slots_(shape.page_slots) {}

  absl::StatusOr<PlanView> ViewOf(const DeviceBatchPlan& plan, int32_t page_list) const;
  absl::StatusOr<const int32_t*> TokenIds(absl::Span<const int32_t> given, int64_t table_rows);
  struct Sampling {
    const RowSampling* rows;
    const LogitChange* changes;
    SampledToken* out;  // page-locked host memory
  };
  absl::StatusOr<Sampling> SamplingOf(absl::Span<const SamplingSpec> given, absl::Span<SampledToken> out,
                                      int64_t vocab_size);
  void UsesRope(const RopeTable& rope) {
    limits_.positions = std::min(limits_.positions, rope.max_position());
  }
  void UsesPages(const KvPagesView& pages) { limits_.pages = std::min(limits_.pages, pages.num_pages); }
  const StepLimits& limits() const { return limits_; }

 private:
  template <typename T>
  const T* OnDevice(int64_t offset) const {
    return reinterpret_cast<const T*>(memory_.device() + offset);
  }

  const StepValues& values_;
  const StepMemory& memory_;
  const StepLayout layout_;
  const int64_t page_slots_;
  StepLimits limits_;
};

/// OK, or, while a step is recorded on the stream, an error: `op` can't be part of one, because it `does`
/// that.
absl::Status CheckNotRecorded(const DeviceStream& stream, absl::string_view op, absl::string_view does);

}  // namespace kvblend::kernels::cuda
