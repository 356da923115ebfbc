// A ReadQueue over io_uring. Each thread has a ring to itself, and sleeps in it. To wake it, whoever submits
// a read raises an event counter, which the ring polls besides its reads.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "engine/store/disk/read_backlog.h"

namespace kvblend::store::internal {
namespace {

/// The kernel gives at most this many bytes for one read; a multiple of kDirectAlignment.
constexpr size_t kMaxReadBytes = size_t{1} << 30;

class UringReadQueue final : public ReadQueue {
 public:
  explicit UringReadQueue(const Options& options) : backlog_(options.max_waiting) {}
  ~UringReadQueue() override;
  bool Start(const Options& options);

  absl::StatusOr<ReadId> Submit(ReadRequest request) override;
  void Raise(ReadId id, ReadPriority priority) override { backlog_.Raise(id, priority); }
  bool Cancel(ReadId id) override;
  std::string_view name() const override { return "io_uring"; }

 private:
  struct Reader {
    io_uring ring;
    bool has_ring = false;
    int event = -1;
    uint32_t depth = 0;
    uint32_t in_flight = 0;          // used by its thread alone
    std::atomic<bool> idle = false;  // sleeps with room for more reads
    std::thread thread;
  };

  bool StartReader(Reader& reader, uint32_t depth);
  static void RaiseEvent(const Reader& reader);
  void WakeOne();
  void Run(Reader& reader);
  static void PollEvent(Reader& reader);
  bool TakeReads(Reader& reader);
  void Prepare(Reader& reader, std::unique_ptr<PendingRead> read);
  void Complete(Reader& reader, std::unique_ptr<PendingRead> read, int32_t result);
  void ReadInline(std::unique_ptr<PendingRead> read);

  ReadBacklog backlog_;
  std::vector<std::unique_ptr<Reader>> readers_;
};

bool UringReadQueue::Start(const Options& options) {
  const int32_t depth = std::clamp(options.depth, 1, 4096);
  const int32_t num_readers = std::clamp(options.num_ring_threads, 1, depth);
  for (int32_t i = 0; i < num_readers; ++i) {
    readers_.push_back(std::make_unique<Reader>());
    if (!StartReader(*readers_.back(), static_cast<uint32_t>((depth + i) / num_readers))) return false;
  }
  for (const auto& reader : readers_)
    reader->thread = std::thread([this, &reader = *reader] { Run(reader); });
  return true;
}

bool UringReadQueue::StartReader(Reader& reader, uint32_t depth) {
  reader.depth = depth;
  reader.event = eventfd(0, EFD_CLOEXEC);
  if (reader.event < 0) return false;
  // Besides the reads: the poll, and a read that is resumed after another one has taken its place.
  const unsigned entries = depth + 2;
  // With COOP_TASKRUN completions do not interrupt the thread, which looks for them anyway; older kernels
  // lack it.
  reader.has_ring = io_uring_queue_init(entries, &reader.ring, IORING_SETUP_COOP_TASKRUN) == 0 ||
                    io_uring_queue_init(entries, &reader.ring, 0) == 0;
  return reader.has_ring;
}

UringReadQueue::~UringReadQueue() {
  backlog_.Stop();
  for (const auto& reader : readers_) {
    if (reader->thread.joinable()) {
      RaiseEvent(*reader);
      reader->thread.join();
    }
    if (reader->has_ring) io_uring_queue_exit(&reader->ring);
    if (reader->event >= 0) close(reader->event);
  }
}

void UringReadQueue::RaiseEvent(const Reader& reader) {
  const uint64_t one = 1;
  while (write(reader.event, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void UringReadQueue::WakeOne() {
  // A reader that isn't idle looks at the backlog before it sleeps. So does one that becomes idle just now,
  // as it sets `idle` first.
  for (const auto& reader : readers_) {
    if (reader->idle.exchange(false)) return RaiseEvent(*reader);
  }
}

absl::StatusOr<ReadId> UringReadQueue::Submit(ReadRequest request) {
  absl::StatusOr<ReadId> id = backlog_.Add(std::move(request));
  if (id.ok()) WakeOne();
  return id;
}

bool UringReadQueue::Cancel(ReadId id) {
  const bool cancelled = backlog_.Cancel(id);
  if (cancelled) WakeOne();
  return cancelled;
}

void UringReadQueue::Run(Reader& reader) {
  PollEvent(reader);
  while (true) {
    reader.idle.store(false);
    if (TakeReads(reader)) continue;
    if (reader.in_flight == 0 && backlog_.stopped()) return;
    if (reader.in_flight < reader.depth) {
      reader.idle.store(true);
      if (TakeReads(reader)) continue;
      if (reader.in_flight == 0 && backlog_.stopped()) return;
    }
    io_uring_submit_and_wait(&reader.ring, 1);  // errors: the loop tries again
    reader.idle.store(false);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&reader.ring, &cqe) == 0) {
      std::unique_ptr<PendingRead> read(static_cast<PendingRead*>(io_uring_cqe_get_data(cqe)));
      const int32_t result = cqe->res;
      io_uring_cqe_seen(&reader.ring, cqe);
      if (read == nullptr) {
        uint64_t events = 0;
        while (::read(reader.event, &events, sizeof(events)) < 0 && errno == EINTR) {
        }
        PollEvent(reader);
        continue;
      }
      --reader.in_flight;
      TakeReads(reader);  // first: the device must not wait for Complete
      Complete(reader, std::move(read), result);
    }
  }
}

void UringReadQueue::PollEvent(Reader& reader) {
  io_uring_sqe* const sqe = io_uring_get_sqe(&reader.ring);
  io_uring_prep_poll_add(sqe, reader.event, POLLIN);
  io_uring_sqe_set_data(sqe, nullptr);
}

/// Returns whether it took any.
bool UringReadQueue::TakeReads(Reader& reader) {
  bool took = false;
  while (reader.in_flight < reader.depth) {
    std::unique_ptr<PendingRead> read = backlog_.TryTake();
    if (read == nullptr) break;
    took = true;
    if (absl::Status begun = read->Begin(); !begun.ok()) {
      backlog_.Finish(std::move(read), std::move(begun));
    } else if (read->request.file->descriptor() < 0 || read->progress->complete()) {
      ReadInline(std::move(read));
    } else {
      Prepare(reader, std::move(read));
    }
  }
  if (took) io_uring_submit(&reader.ring);  // the next wait submits the rest
  return took;
}

/// A resumed read may exceed the depth by one: the ring's completion queue has room for twice as many.
void UringReadQueue::Prepare(Reader& reader, std::unique_ptr<PendingRead> read) {
  const ReadRequest& request = read->request;
  const auto next = static_cast<size_t>(read->progress->next());
  std::byte* const begin = request.out.data() + next;
  const auto size = static_cast<unsigned>(std::min(request.out.size() - next, kMaxReadBytes));
  const auto offset = static_cast<uint64_t>(request.offset) + next;
  const int fd = request.file->descriptor();
  io_uring_sqe* const sqe = io_uring_get_sqe(&reader.ring);
  if (sqe == nullptr) return ReadInline(std::move(read));
  io_uring_prep_read(sqe, fd, begin, size, offset);
  io_uring_sqe_set_data(sqe, read.release());  // owned by the ring until its completion
  ++reader.in_flight;
}

void UringReadQueue::Complete(Reader& reader, std::unique_ptr<PendingRead> read, int32_t result) {
  if (result == -EINTR || result == -EAGAIN) return Prepare(reader, std::move(read));
  // Other errors: a plain read gives the answer, or the error message.
  if (result < 0) return ReadInline(std::move(read));
  absl::Status status = read->progress->Advance(*read->request.file, result);
  if (status.ok() && !read->progress->complete()) return Prepare(reader, std::move(read));
  backlog_.Finish(std::move(read), std::move(status));
}

void UringReadQueue::ReadInline(std::unique_ptr<PendingRead> read) {
  const ReadRequest& request = read->request;
  absl::Status status = ReadFully(*request.file, request.offset, request.out);
  backlog_.Finish(std::move(read), std::move(status));
}

}  // namespace

std::unique_ptr<ReadQueue> CreateUringReadQueue(const ReadQueue::Options& options) {
  auto queue = std::make_unique<UringReadQueue>(options);
  if (!queue->Start(options)) return nullptr;
  return queue;
}

}  // namespace kvblend::store::internal
