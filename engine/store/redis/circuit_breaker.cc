#include "engine/store/redis/circuit_breaker.h"

#include <algorithm>

#include "spdlog/spdlog.h"

namespace kvblend::store::redis {

const char* NameOf(NodeState state) {
  switch (state) {
    case NodeState::kConnecting:
      return "connecting";
    case NodeState::kWorking:
      return "working";
    case NodeState::kDown:
      return "down";
    case NodeState::kProbing:
      return "probing";
  }
  return "";
}

void CircuitBreaker::Failed(absl::Time now, const absl::Status& reason, double jitter) {
  if (state_ == NodeState::kDown) return;  // another of its connections was faster
  if (state_ == NodeState::kWorking && now - working_since_ >= options_.max_backoff) {
    backoff_ = absl::ZeroDuration();
  }
  if (state_ != NodeState::kProbing) ++times_opened_;
  backoff_ = std::clamp(2 * backoff_, options_.min_backoff, options_.max_backoff);
  retry_at_ = now + backoff_ * (0.5 + 0.5 * jitter);
  state_ = NodeState::kDown;
  if (!std::exchange(said_down_, true)) {
    spdlog::warn("chunk store in Redis: node {} does not work; going on without it: {}", name_,
                 reason.ToString());
  }
}

void CircuitBreaker::Probing() {
  if (state_ == NodeState::kDown) state_ = NodeState::kProbing;
}

void CircuitBreaker::Works(absl::Time now) {
  if (state_ == NodeState::kWorking) return;
  state_ = NodeState::kWorking;
  working_since_ = now;
  if (std::exchange(said_down_, false)) spdlog::info("chunk store in Redis: node {} works again", name_);
}

}  // namespace kvblend::store::redis
