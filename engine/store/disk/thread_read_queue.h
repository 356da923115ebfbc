// A ReadQueue of threads that read one by one. Private to this folder.
#pragma once

#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/store/disk/read_backlog.h"
#include "engine/store/disk/read_queue.h"

namespace kvblend::store::internal {

class ThreadReadQueue final : public ReadQueue {
 public:
  explicit ThreadReadQueue(const Options& options);
  ~ThreadReadQueue() override;

  absl::StatusOr<ReadId> Submit(ReadRequest request) override { return backlog_.Add(std::move(request)); }
  bool Cancel(ReadId id) override { return backlog_.Cancel(id); }
  std::string_view name() const override { return "threads"; }
  bool buffers_registered() const override { return false; }

 private:
  ReadBacklog backlog_;
  std::vector<std::thread> threads_;
};

/// nullptr where the kernel refuses io_uring, or this build has none.
std::unique_ptr<ReadQueue> CreateUringReadQueue(const ReadQueue::Options& options);

}  // namespace kvblend::store::internal
