// The KV of a chunk on its way from a lower tier into host memory, layer by layer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/chunk_kv.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

/// Layers are asked for all at once and become readable one by one, in order of their priority: whoever
/// computes with layer l finds l + 1 there, or on its way. The memory lives until the last read has ended,
/// whoever still wants it. Thread-safe.
class ArrivingKv : public std::enable_shared_from_this<ArrivingKv> {
 public:
  /// REQUIRES: `kv` has the shape of the entry's header.
  ArrivingKv(std::shared_ptr<LowerTierEntry> source, std::shared_ptr<ChunkKv> kv);

  /// Starts the reads. REQUIRES: called once.
  void Start(uint64_t prompt);

  /// OK once the layer is there. kDataLoss: the entry can't be read; it is a miss from now on.
  /// kDeadlineExceeded: neither by `deadline`.
  absl::Status WaitForLayer(int32_t layer, absl::Time deadline);

  /// Nobody wants it any more: reads that have not begun are left out.
  void Cancel();

  /// All layers are there.
  bool complete() const { return missing_.load(std::memory_order_acquire) == 0; }
  bool failed() const;

 private:
  void LayerDone(int32_t layer, const absl::Status& status);

  const std::shared_ptr<LowerTierEntry> source_;
  const std::shared_ptr<ChunkKv> kv_;
  std::atomic<int32_t> missing_;  // layers

  mutable absl::Mutex mutex_;
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReadId> reads_ ABSL_GUARDED_BY(mutex_);  // begun by Start
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);       // the first
};

}  // namespace kvblend::store
