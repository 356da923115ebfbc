#include "server/access/store_limits_thread.h"

#include <utility>

namespace kvblend::server {

StoreLimitsThread::StoreLimitsThread(std::function<void(const Bytes& bytes)> limit)
    : limit_(std::move(limit)), thread_([this] { Run(); }) {}

StoreLimitsThread::~StoreLimitsThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void StoreLimitsThread::Set(Bytes bytes) {
  absl::MutexLock lock(&mutex_);
  newest_ = std::move(bytes);
}

void StoreLimitsThread::Run() {
  while (true) {
    Bytes bytes;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &StoreLimitsThread::HasWork));
      if (stopping_) return;
      bytes = *std::exchange(newest_, std::nullopt);
    }
    limit_(bytes);
  }
}

}  // namespace kvblend::server
