#include "engine/store/disk/disk_health.h"

#include "spdlog/spdlog.h"

namespace kvblend::store::internal {

void DiskHealth::Report(const absl::Status& status) {
  const State now = status.ok()                         ? State::kWorking
                    : absl::IsResourceExhausted(status) ? State::kFull
                                                        : State::kFailing;
  int64_t num_failures = 0;
  {
    absl::MutexLock lock(&mutex_);
    num_failures = num_failures_;
    num_failures_ = now == State::kWorking ? 0 : num_failures_ + 1;
    if (std::exchange(state_, now) == now) return;
  }
  switch (now) {
    case State::kWorking:
      spdlog::info("chunk store on disk: {} {} works again, after {} failures", what_, folder_, num_failures);
      return;
    case State::kFull:
      spdlog::warn("chunk store on disk: {} is full; going on with the chunks that are there: {}", folder_,
                   status.ToString());
      return;
    case State::kFailing:
      spdlog::error("chunk store on disk: {} {} fails; going on without: {}", what_, folder_,
                    status.ToString());
      return;
  }
}

}  // namespace kvblend::store::internal
