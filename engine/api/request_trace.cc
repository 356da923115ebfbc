#include "engine/api/request_trace.h"

#include <chrono>
#include <cstring>

#include "absl/time/clock.h"

namespace kvblend {
namespace {

int64_t MonotonicNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

RequestTrace::RequestTrace() : started_(absl::Now()), zero_(MonotonicNanoseconds()) {}

int64_t RequestTrace::Now() const { return MonotonicNanoseconds() - zero_; }

void RequestTrace::Add(const Span& span) {
  absl::MutexLock lock(&mutex_);
  if (spans_.size() < kMaxSpans) {
    spans_.push_back(span);
  } else {
    ++dropped_;
  }
}

void RequestTrace::AddUnit(const Span& span) {
  {
    absl::MutexLock lock(&mutex_);
    if (!spans_.empty()) {
      Span& last = spans_.back();
      if (last.track == span.track && last.layer == span.layer && std::strcmp(last.name, span.name) == 0 &&
          span.begin >= last.end && span.begin - last.end <= kSameWorkNanoseconds) {
        last.end = span.end;
        return;
      }
    }
  }
  Add(span);
}

std::vector<RequestTrace::Span> RequestTrace::spans() const {
  absl::MutexLock lock(&mutex_);
  return spans_;
}

int64_t RequestTrace::dropped() const {
  absl::MutexLock lock(&mutex_);
  return dropped_;
}

}  // namespace kvblend
