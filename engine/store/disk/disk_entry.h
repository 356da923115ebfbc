// One entry of the disk tier, open for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/disk/read_queue.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

class DiskTier;

/// Keeps its file open: erasing or evicting the entry meanwhile does no harm. Thread-safe; the tier must
/// outlive it.
class DiskEntry final : public LowerTierEntry, public std::enable_shared_from_this<DiskEntry> {
 public:
  Tier tier() const override { return Tier::kDisk; }
  /// Checked: its checksum is right, and it is of the key that was asked for.
  const EntryHeader& header() const override { return header_; }
  bool pinned() const override { return pinned_; }

  /// As LowerTierEntry says. kDataLoss: the entry is damaged, and in quarantine by the time `done` hears of
  /// it. kInvalidArgument (no such layer, `out` of another size or alignment) and kResourceExhausted (too
  /// many reads wait) are returned.
  absl::StatusOr<ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                   absl::AnyInvocable<void(absl::Status)> done) override;
  void CancelRead(ReadId id) override;

 private:
  friend class DiskTier;
  DiskEntry(DiskTier& tier, uint64_t generation, std::shared_ptr<File> file, EntryHeader header, bool pinned)
      : tier_(tier),
        generation_(generation),
        file_(std::move(file)),
        header_(std::move(header)),
        pinned_(pinned) {}

  DiskTier& tier_;
  const uint64_t generation_;
  const std::shared_ptr<File> file_;
  const EntryHeader header_;
  const bool pinned_;
};

}  // namespace kvblend::store
