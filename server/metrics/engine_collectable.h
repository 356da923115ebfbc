// Metrics that the engine and the process keep themselves, read at scrape time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/api/engine.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace kvblend::server {

/// Thread-safe.
class EngineCollectable : public prometheus::Collectable {
 public:
  EngineCollectable();

  void Set(const EngineInfo& info, std::function<EngineStats()> stats);
  void Reset();
  void SetReady(bool ready);

  std::vector<prometheus::MetricFamily> Collect() const override;
  std::string model_name() const;  // empty without an engine

 private:
  const double start_unix_seconds_;
  // Held while the callback runs, so that Reset returns only when no scrape uses the engine any more.
  mutable absl::Mutex mutex_;
  std::optional<EngineInfo> info_ ABSL_GUARDED_BY(mutex_);
  std::function<EngineStats()> stats_ ABSL_GUARDED_BY(mutex_);
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvblend::server
