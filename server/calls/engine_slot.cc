#include "server/calls/engine_slot.h"

namespace kvblend::server {

void EngineSlot::Serve(Engine* engine) {
  absl::MutexLock limits_lock(&limits_mutex_);
  if (!limits_.empty()) engine->chunks().LimitNamespaces(limits_);
  absl::MutexLock lock(&mutex_);
  if (state_ != State::kStarting) return;
  engine_ = engine;
  state_ = State::kServing;
}

void EngineSlot::LimitNamespaces(const std::map<std::string, int64_t>& bytes) {
  absl::MutexLock limits_lock(&limits_mutex_);
  limits_ = bytes;
  Engine* engine = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    engine = engine_;
  }
  if (engine != nullptr) engine->chunks().LimitNamespaces(bytes);
}

void EngineSlot::Drain() {
  absl::MutexLock lock(&mutex_);
  state_ = State::kDraining;
}

absl::StatusOr<Engine*> EngineSlot::Get() const {
  const std::string reason = NotServingReason();
  if (!reason.empty()) return absl::UnavailableError(reason);
  absl::MutexLock lock(&mutex_);
  return engine_;
}

std::string EngineSlot::NotServingReason() const {
  absl::MutexLock lock(&mutex_);
  switch (state_) {
    case State::kStarting:
      return "the server is starting: the model is being loaded";
    case State::kServing:
      return "";
    case State::kDraining:
      return "the server is shutting down";
  }
  return "";
}

}  // namespace kvblend::server
