// Whether a node is worth asking.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace kvblend::store::redis {

enum class NodeState : uint8_t {
  kConnecting,  // not heard of yet
  kWorking,
  kDown,     // failed: left alone until the back-off has passed
  kProbing,  // being asked whether it works again; nobody else asks it
};

/// "connecting", "working", "down", "probing"
const char* NameOf(NodeState state);

/// Opens with the first failure: a request should not wait twice for the same node, and a probe in the
/// background costs nobody anything. The back-off doubles with every failure, and starts over after the node
/// has worked for as long as the longest back-off. Not thread-safe; time is passed in.
class CircuitBreaker {
 public:
  struct Options {
    absl::Duration min_backoff = absl::Milliseconds(100);
    absl::Duration max_backoff = absl::Seconds(10);
  };

  /// `name`: of the node, for the log.
  CircuitBreaker(std::string name, Options options) : name_(std::move(name)), options_(options) {}

  NodeState state() const { return state_; }
  bool allows_requests() const { return state_ == NodeState::kWorking; }
  /// InfinitePast: a probe may begin now.
  absl::Time retry_at() const { return state_ == NodeState::kDown ? retry_at_ : absl::InfinitePast(); }
  int64_t times_opened() const { return times_opened_; }

  /// `jitter` in [0, 1): spreads the probes of many servers over the second half of the back-off.
  void Failed(absl::Time now, const absl::Status& reason, double jitter);
  void Probing();
  void Works(absl::Time now);

 private:
  const std::string name_;
  const Options options_;
  NodeState state_ = NodeState::kConnecting;
  absl::Time retry_at_ = absl::InfinitePast();
  absl::Time working_since_ = absl::InfinitePast();
  absl::Duration backoff_ = absl::ZeroDuration();
  bool said_down_ = false;  // the last line in the log about this node
  int64_t times_opened_ = 0;
};

}  // namespace kvblend::store::redis
