// Queues of a backend's operations, and what repeats and times them.
#pragma once

#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/batch_plan.h"
#include "kernels/sampling.h"

namespace kvblend::kernels {

/// An in-order queue of operations.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// What one step of a RepeatedStep has of its own. Everything is host memory.
struct StepValues {
  const BatchPlan& plan;
  absl::Span<const int32_t> token_ids;   // [plan.num_rows]: for Embed
  absl::Span<const SamplingSpec> specs;  // [plan.num_rows]: for SampleTokens
  absl::Span<SampledToken> out;          // [plan.num_rows]: as SampleTokens fills it
};

/// Operations on a stream that come again and again with other values, as the steps of decoding do. A backend
/// for a device may record them, once for every shape of the values, and have the device repeat what was
/// recorded; others run them every time. Used by the stream's thread. Its stream must outlive it.
class RepeatedStep {
 public:
  virtual ~RepeatedStep() = default;
  /// Enqueues a step. `operations` does that by operations of the backend on the stream, SampleTokens among
  /// them; it is called once, twice or not at all. Errors: those of the operations.
  /// REQUIRES: for as many rows, `operations` does the same every time, with the same weights, tables, pages
  /// and numbers, but for `values`, which are used as they were given here. It reads no other memory of the
  /// host, waits for nothing, and has allocated what it needs once it has run.
  virtual absl::Status Run(const StepValues& values, absl::FunctionRef<absl::Status()> operations) = 0;
  /// Why nothing is recorded any more; empty while there is no reason.
  virtual std::string problem() const { return ""; }
};

/// Times what a stream does, which may run behind the host. Used by the stream's thread, and must not outlive
/// the stream.
class StreamClock {
 public:
  virtual ~StreamClock() = default;
  /// Marks the place behind everything that was enqueued so far. Returns its number: 0, 1, ...
  virtual absl::StatusOr<size_t> Mark() = 0;
  /// From the moment when the stream came to mark `begin` until it came to mark `end`.
  /// REQUIRES: the stream has been synchronised since both.
  virtual absl::StatusOr<double> SecondsBetween(size_t begin, size_t end) = 0;
};

}  // namespace kvblend::kernels
