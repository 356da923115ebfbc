// One entry of the disk tier, open for reading. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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

namespace kvblend::store::internal {

/// Keeps its file open: erasing or evicting the entry meanwhile does no harm. Thread-safe.
class DiskEntry final : public LowerTierEntry, public std::enable_shared_from_this<DiskEntry> {
 public:
  /// Told the outcome of every read, and its bytes, before the reader is. Thread-safe.
  using OnRead = std::function<void(const absl::Status& status, int64_t bytes)>;

  /// `reads`, and what `on_read` uses, must outlive it.
  DiskEntry(ReadQueue& reads, std::shared_ptr<File> file, EntryHeader header, bool pinned, OnRead on_read)
      : reads_(reads),
        file_(std::move(file)),
        header_(std::move(header)),
        pinned_(pinned),
        on_read_(std::move(on_read)) {}

  Tier tier() const override { return Tier::kDisk; }
  const EntryHeader& header() const override { return header_; }
  bool pinned() const override { return pinned_; }

  /// As LowerTierEntry says. kDataLoss: the entry is damaged, and in quarantine by the time `done` hears of
  /// it. What CheckRead says, and kResourceExhausted (too many reads wait), are returned.
  absl::StatusOr<ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                   absl::AnyInvocable<void(absl::Status)> done) override;
  void CancelRead(ReadId id) override { reads_.Cancel(id); }

 private:
  ReadQueue& reads_;
  const std::shared_ptr<File> file_;
  const EntryHeader header_;
  const bool pinned_;
  const OnRead on_read_;
};

}  // namespace kvblend::store::internal
