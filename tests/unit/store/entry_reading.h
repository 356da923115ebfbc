// Reading entries of lower tiers one layer at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "engine/store/format/host_memory.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

/// A buffer as reads want it.
class PageBuffer {
 public:
  explicit PageBuffer(int64_t size) : size_(size), data_(size == 0 ? nullptr : Heap().Allocate(size)) {}
  ~PageBuffer() {
    if (data_ != nullptr) Heap().Free(data_, size_);
  }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;
  absl::Span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), static_cast<size_t>(size_)}; }

 private:
  const int64_t size_;
  void* const data_;
};

inline absl::Status ReadLayerNow(LowerTierEntry& entry, int32_t layer, absl::Span<std::byte> out) {
  absl::Notification done;
  absl::Status outcome;
  const absl::StatusOr<ReadId> id = entry.ReadLayer(layer, out, {}, [&](absl::Status status) {
    outcome = std::move(status);
    done.Notify();
  });
  if (!id.ok()) return id.status();
  done.WaitForNotification();
  return outcome;
}

}  // namespace kvblend::store
