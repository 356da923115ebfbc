#include "server/trace/tracer.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {

absl::StatusOr<std::unique_ptr<Tracer>> Tracer::Open(const Options& options) {
  auto folder = TraceFolder::Open(options.folder, options.limits);
  if (!folder.ok()) return folder.status();
  return std::unique_ptr<Tracer>(new Tracer(options.sample, *std::move(folder)));
}

Tracer::Tracer(double sample, std::unique_ptr<TraceFolder> folder)
    : sample_(sample), folder_(std::move(folder)), thread_([this] { Run(); }) {}

Tracer::~Tracer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

bool Tracer::Keeps(const TraceContext& context) const {
  if (context.sampled) return true;
  // The part of an id that W3C Trace Context wants to be random: its last 56 bits.
  uint64_t bits = 0;
  constexpr size_t kRandomDigits = 14;
  const std::string digits =
      context.trace_id.substr(context.trace_id.size() - std::min(kRandomDigits, context.trace_id.size()));
  if (!absl::SimpleHexAtoi(digits, &bits)) return false;
  return static_cast<double>(bits) < sample_ * static_cast<double>(uint64_t{1} << 56);
}

TraceContext BeginCall(const Tracer* tracer, std::string_view header) {
  TraceContext context = NewCall(header);
  context.sampled = tracer != nullptr && tracer->Keeps(context);
  return context;
}

void Tracer::End(std::shared_ptr<RequestTrace> trace, TraceLabels labels) {
  if (trace == nullptr) return;
  absl::MutexLock lock(&mutex_);
  if (waiting_.size() < kMaxWaiting) {
    waiting_.push_back({std::move(trace), std::move(labels)});
  } else {
    ++lost_;
  }
}

void Tracer::Run() {
  while (true) {
    Waiting next;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); };
      mutex_.Await(absl::Condition(&due));
      if (waiting_.empty()) return;
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (next.trace->spans().empty()) continue;
    const std::string json = TraceJson(*next.trace, next.labels);
    Warn(folder_->Write(next.trace->started(), next.labels.trace_id, json));
  }
}

void Tracer::Warn(const absl::Status& status) {
  int64_t lost;
  {
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) ++lost_;
    if (lost_ == 0 || !warn_lost_.IsDue()) return;
    lost = std::exchange(lost_, 0);
  }
  spdlog::warn("{} traces of requests are lost: {}", lost,
               status.ok() ? "the disk is too slow for them" : std::string(status.message()));
}

}  // namespace kvblend::server
