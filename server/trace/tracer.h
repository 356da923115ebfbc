// Decides which requests' timelines are kept, and writes them to a folder on a thread of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/once_a_minute.h"
#include "engine/api/request_trace.h"
#include "server/trace/trace_context.h"
#include "server/trace/trace_folder.h"
#include "server/trace/trace_json.h"

namespace kvblend::server {

/// Thread-safe. What cannot be written, because the disk is full or slow, is lost with a warning, at most one
/// a minute; nobody waits for it.
class Tracer {
 public:
  static constexpr size_t kMaxWaiting = 64;

  struct Options {
    std::string folder;
    double sample = 0;  // share of the traces that callers do not keep; [0, 1]
    TraceFolder::Limits limits = {};
  };

  /// Errors: TraceFolder::Open's.
  static absl::StatusOr<std::unique_ptr<Tracer>> Open(const Options& options);
  /// Writes what still waits.
  ~Tracer();

  /// Whether timelines of this trace's calls are kept: where the caller keeps it, and of the rest so large a
  /// share, by the trace's id, so that all servers that a trace goes through keep the same ones.
  bool Keeps(const TraceContext& context) const;
  /// For a call's end. Does nothing without a trace, and with one that nothing was noted in.
  void End(std::shared_ptr<RequestTrace> trace, TraceLabels labels);

 private:
  struct Waiting {
    std::shared_ptr<RequestTrace> trace;
    TraceLabels labels;
  };

  Tracer(double sample, std::unique_ptr<TraceFolder> folder);
  void Run();
  void Warn(const absl::Status& status);

  const double sample_;
  const std::unique_ptr<TraceFolder> folder_;  // of the thread
  OnceAMinute warn_lost_;                      // of the thread
  absl::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last warning
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// The context of a call that came with this header; sampled: its timeline is to be kept. `tracer` null: none
/// is.
TraceContext BeginCall(const Tracer* tracer, std::string_view header);

}  // namespace kvblend::server
