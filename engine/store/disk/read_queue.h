// Reads of stored bytes: asynchronous, bounded, in order of priority, cancellable.
//
//   auto queue = ReadQueue::Create({});
//   auto id = queue->Submit({.file = file, .offset = 4096, .out = buffer, .priority = {reader, layer},
//                            .done = [](absl::Status status) { ... }});
//
// Two implementations behind one interface: io_uring, which keeps several reads per thread at the device, and
// a pool of threads that read one by one. Kernels and containers that refuse io_uring get the latter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

struct ReadRequest {
  std::shared_ptr<File> file;  // null: `open` opens it when the read begins, and it is closed at the end
  std::function<absl::StatusOr<std::shared_ptr<File>>()> open = nullptr;
  int64_t offset = 0;
  /// Where the bytes go. The caller's until Submit, the queue's until `done` is called. For a file that is
  /// read directly, offset, address and size are multiples of kDirectAlignment.
  absl::Span<std::byte> out;
  ReadPriority priority = {};
  /// Called exactly once, on a thread of the queue, with no lock held. It may submit and cancel reads, but
  /// not destroy the queue, and it keeps other reads of its thread waiting.
  ///   OK: all of `out` was read.   kDataLoss: the file ends before.   kCancelled: nobody wants it any more.
  ///   kResourceExhausted: it waited, and others that go before it took its room.
  ///   Otherwise what the file system says, or `open`.
  absl::AnyInvocable<void(absl::Status)> done;
};

/// Every method may be called from any thread.
class ReadQueue {
 public:
  struct Options {
    int32_t num_threads = 4;       // of a pool: as many reads at once
    int32_t num_ring_threads = 2;  // with io_uring: each with its own ring, and `depth` shared among them
    int32_t depth = 32;            // with io_uring: reads at the device at once
    int64_t max_waiting = 65536;   // reads that may wait besides
    bool allow_io_uring = true;
  };

  /// Options out of range are brought into it: there is at least one thread and a depth of one.
  static std::unique_ptr<ReadQueue> Create(const Options& options);
  /// Reads that wait are cancelled, reads that run are waited for; all callbacks have returned afterwards.
  virtual ~ReadQueue() = default;

  /// When max_waiting reads wait already, the last one makes room if this one goes before it.
  /// kResourceExhausted: it does not; `done` is not called then.
  virtual absl::StatusOr<ReadId> Submit(ReadRequest request) = 0;
  /// Lets a read that waits go as early as a smaller priority says. No effect on others.
  virtual void Raise(ReadId id, ReadPriority priority) = 0;
  /// Returns at once. True: `done` has not been called yet and will be, with kCancelled, once the buffer is
  /// the caller's again. False: it was called or is being called.
  virtual bool Cancel(ReadId id) = 0;
  /// "io_uring" or "threads"
  virtual std::string_view name() const = 0;
};

}  // namespace kvblend::store
