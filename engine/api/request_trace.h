// Where the time of one request goes: spans of work and of waiting, noted as they happen, to be drawn or
// summed later. A request without a trace costs a comparison with null.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kvblend {

/// Thread-safe. Bounded: spans after the first kMaxSpans are only counted.
class RequestTrace {
 public:
  /// Spans of one track do not overlap, or one lies within the other.
  enum class Track : uint8_t {
    kRequest,  // what the request as a whole waits for: its queue, its prompt, its answer
    kEngine,   // what the engine thread does for it; in the gaps it works for other requests
    kStream,   // handing events over to the transport
  };
  static constexpr size_t kMaxSpans = size_t{1} << 15;
  /// Units of the same kind with shorter gaps than this between them become one span.
  static constexpr int64_t kSameWorkNanoseconds = 20'000;

  struct Argument {
    const char* name = nullptr;  // null: there is none
    int64_t value = 0;
  };
  struct Span {
    Track track = Track::kEngine;
    const char* name = "";  // a literal
    int64_t begin = 0;      // nanoseconds, as Now() counts them
    int64_t end = 0;
    int32_t layer = -1;  // -1: not of a layer
    std::array<Argument, 3> arguments = {};
  };

  RequestTrace();

  /// When the trace was made, by the wall clock; nanoseconds are counted from here.
  absl::Time started() const { return started_; }
  /// Nanoseconds since then, by a clock that never goes backwards.
  int64_t Now() const;

  void Add(const Span& span);
  /// A unit of work or of waiting: lengthens the span that was added last, if that has the same track, name
  /// and layer and ended just before.
  void AddUnit(const Span& span);

  /// In the order in which they were added: inner spans before those around them.
  std::vector<Span> spans() const;
  /// How many spans came after the first kMaxSpans.
  int64_t dropped() const;

 private:
  const absl::Time started_;
  const int64_t zero_;  // of the clock that never goes backwards
  mutable absl::Mutex mutex_;
  std::vector<Span> spans_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

/// Adds a span of the engine's track from its construction to the end of the block; without a trace it does
/// nothing.
class TracedUnit {
 public:
  /// `trace` may be null, and must outlive this. `name`: a literal.
  TracedUnit(RequestTrace* trace, const char* name, int32_t layer = -1)
      : trace_(trace), name_(name), layer_(layer), begin_(trace == nullptr ? 0 : trace->Now()) {}
  ~TracedUnit() {
    if (trace_ != nullptr) {
      trace_->AddUnit({.name = name_, .begin = begin_, .end = trace_->Now(), .layer = layer_});
    }
  }
  TracedUnit(const TracedUnit&) = delete;
  TracedUnit& operator=(const TracedUnit&) = delete;

 private:
  RequestTrace* const trace_;
  const char* const name_;
  const int32_t layer_;
  const int64_t begin_;
};

/// For a span that begins and ends in different calls.
inline int64_t TraceNow(const RequestTrace* trace) { return trace == nullptr ? 0 : trace->Now(); }

}  // namespace kvblend
