#include "engine/store/disk/read_queue.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "engine/store/disk/read_backlog.h"

namespace kvblend::store {
namespace {

/// Threads that read one by one.
class ThreadReadQueue final : public ReadQueue {
 public:
  explicit ThreadReadQueue(const Options& options) : backlog_(options.max_waiting) {
    for (int32_t i = 0; i < std::max(1, options.num_threads); ++i) threads_.emplace_back([this] { Run(); });
  }
  ~ThreadReadQueue() override {
    backlog_.Stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::StatusOr<ReadId> Submit(ReadRequest request) override { return backlog_.Add(std::move(request)); }
  void Raise(ReadId id, ReadPriority priority) override { backlog_.Raise(id, priority); }
  bool Cancel(ReadId id) override { return backlog_.Cancel(id); }
  std::string_view name() const override { return "threads"; }

 private:
  void Run() {
    while (std::unique_ptr<internal::PendingRead> read = backlog_.Take()) {
      absl::Status status = read->Begin();
      if (status.ok()) {
        status = ReadFully(*read->request.file, read->request.offset, read->request.out);
      }
      backlog_.Finish(std::move(read), std::move(status));
    }
  }

  internal::ReadBacklog backlog_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<ReadQueue> ReadQueue::Create(const Options& options) {
  if (options.allow_io_uring) {
    if (std::unique_ptr<ReadQueue> uring = internal::CreateUringReadQueue(options)) return uring;
  }
  return std::make_unique<ThreadReadQueue>(options);
}

}  // namespace kvblend::store
