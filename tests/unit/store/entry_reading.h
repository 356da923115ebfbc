// Reading entries of lower tiers one layer at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "engine/store/format/host_memory.h"
#include "engine/store/lower_tier.h"
#include "gtest/gtest.h"
#include "tests/unit/store/test_chunks.h"

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

inline absl::StatusOr<std::shared_ptr<LowerTierEntry>> OpenNow(LowerTier& tier, const ChunkKey& key) {
  return std::move(tier.OpenEntries({key}, absl::InfiniteFuture()).front());
}

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

/// Opens and reads all of an entry. OK only with the very bytes that FilledKv gives; a wrong byte fails the
/// test.
inline absl::Status ReadAndCompare(LowerTier& tier, const ChunkAddress& address) {
  const auto entry = OpenNow(tier, address.key);
  if (!entry.ok()) return entry.status();
  EXPECT_EQ((*entry)->header().address.key, address.key);
  EXPECT_EQ((*entry)->header().address.num_tokens, address.num_tokens);
  const auto expected = FilledKv(address);
  const PageBuffer buffer((*entry)->header().layer_bytes());
  for (int32_t layer = 0; layer < address.format.num_layers; ++layer) {
    if (absl::Status status = ReadLayerNow(**entry, layer, buffer.bytes()); !status.ok()) return status;
    EXPECT_TRUE(buffer.bytes() == expected->LayerBytes(layer)) << "wrong bytes served, layer " << layer;
  }
  return absl::OkStatus();
}

}  // namespace kvblend::store
