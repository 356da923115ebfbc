// Computes one missing entry behind the response that missed it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/blend/reuse_plan.h"
#include "engine/serve/task.h"

namespace kvblend {

/// Outcomes since start, for metrics. Thread-safe.
struct BackgroundCounts {
  std::atomic<int64_t> stored = 0;
  std::atomic<int64_t> failed = 0;
};

class StoreMissTask final : public Task {
 public:
  StoreMissTask(std::string tenant_namespace, blend::MissingEntry entry,
                std::shared_ptr<BackgroundCounts> counts);

  void Run(PromptRunner& runner) override;
  void Abandon(const absl::Status& status) override;

 private:
  const blend::MissingEntry entry_;
  const std::shared_ptr<BackgroundCounts> counts_;
};

}  // namespace kvblend
