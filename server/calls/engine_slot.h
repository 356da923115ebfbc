// Where calls find the engine: empty while it is being loaded, closed while the server shuts down.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/api/engine.h"

namespace kvblend::server {

/// Thread-safe. starting -> serving -> draining, never back.
class EngineSlot {
 public:
  /// From now on requests are accepted. `engine` must outlive every call that uses this slot.
  void Serve(Engine* engine);
  /// From now on requests are refused.
  void Drain();

  /// ChunkCatalog::LimitNamespaces of the engine, now and of one that is still being loaded.
  void LimitNamespaces(const std::map<std::string, int64_t>& bytes);

  /// kUnavailable saying why, while not serving.
  absl::StatusOr<Engine*> Get() const;
  /// Empty while serving, else why not.
  std::string NotServingReason() const;

 private:
  enum class State { kStarting, kServing, kDraining };
  absl::Mutex limits_mutex_;  // before mutex_; held while the engine takes them, so that the last ones win
  std::map<std::string, int64_t> limits_ ABSL_GUARDED_BY(limits_mutex_);
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kStarting;
  Engine* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace kvblend::server
