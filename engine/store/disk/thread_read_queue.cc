#include "engine/store/disk/thread_read_queue.h"

#include <algorithm>
#include <utility>

namespace kvblend::store {
namespace internal {

ThreadReadQueue::ThreadReadQueue(const Options& options) : backlog_(options.max_waiting) {
  for (int32_t i = 0; i < std::max(1, options.num_threads); ++i) {
    threads_.emplace_back([this] {
      while (std::unique_ptr<PendingRead> read = backlog_.Take()) {
        absl::Status status;
        if (!read->cancelled_before_start) {
          status = ReadFully(*read->request.file, read->request.offset, read->request.out);
        }
        backlog_.Finish(std::move(read), std::move(status));
      }
    });
  }
}

ThreadReadQueue::~ThreadReadQueue() {
  backlog_.Stop();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace internal

std::unique_ptr<ReadQueue> ReadQueue::Create(const Options& options) {
  if (options.allow_io_uring) {
    if (std::unique_ptr<ReadQueue> uring = internal::CreateUringReadQueue(options)) return uring;
  }
  return std::make_unique<internal::ThreadReadQueue>(options);
}

}  // namespace kvblend::store
