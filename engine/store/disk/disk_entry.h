// One entry of the disk tier, open for reading. Private to this folder.
#pragma once

#include <atomic>
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

/// How many files may stay open for reads to come: descriptors are few, and a client may ask for thousands of
/// chunks at once. Thread-safe.
class HeldFiles {
 public:
  explicit HeldFiles(int64_t most) : most_(most) {}

  /// The file, which counts while it is open; null, and closed, when as many are open. Must outlive it.
  std::shared_ptr<File> Hold(std::unique_ptr<File> file);

 private:
  const int64_t most_;
  std::atomic<int64_t> count_{0};
};

/// Keeps its file open, so that erasing or evicting the entry meanwhile does no harm; if it has none, each
/// read opens the file. Thread-safe.
class DiskEntry final : public LowerTierEntry, public std::enable_shared_from_this<DiskEntry> {
 public:
  /// Told the outcome of every read, and its bytes, before the reader is. Thread-safe.
  using OnRead = std::function<void(const absl::Status& status, int64_t bytes)>;
  /// Opens the entry's file. Thread-safe.
  using Opener = std::function<absl::StatusOr<std::shared_ptr<File>>()>;

  /// `file`: null where `open` is to open it for each read. `reads`, and what `open` and `on_read` use, must
  /// outlive it.
  DiskEntry(ReadQueue& reads, std::shared_ptr<File> file, Opener open, EntryHeader header, bool pinned,
            OnRead on_read)
      : reads_(reads),
        file_(std::move(file)),
        open_(std::move(open)),
        header_(std::move(header)),
        pinned_(pinned),
        on_read_(std::move(on_read)) {}

  Tier tier() const override { return Tier::kDisk; }
  const EntryHeader& header() const override { return header_; }
  bool pinned() const override { return pinned_; }

  /// As LowerTierEntry says. kDataLoss: the entry is damaged, and in quarantine by the time `done` hears of
  /// it. kNotFound: it is not there any more. What CheckRead says is returned. kResourceExhausted, in either
  /// way: too many reads wait or files are open, which says nothing of the entry.
  absl::StatusOr<ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                   absl::AnyInvocable<void(absl::Status)> done) override;
  void RaiseRead(ReadId id, ReadPriority priority) override { reads_.Raise(id, priority); }
  void CancelRead(ReadId id) override { reads_.Cancel(id); }

 private:
  ReadQueue& reads_;
  const std::shared_ptr<File> file_;
  const Opener open_;
  const EntryHeader header_;
  const bool pinned_;
  const OnRead on_read_;
};

}  // namespace kvblend::store::internal
