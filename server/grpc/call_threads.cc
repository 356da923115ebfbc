#include "server/grpc/call_threads.h"

#include "absl/strings/str_cat.h"

namespace kvblend::server {

CallThreads::CallThreads(const Limits& limits) : limits_(limits) {
  for (int i = 0; i < limits.num_threads; ++i) threads_.emplace_back([this] { Work(); });
}

absl::Status CallThreads::Run(const std::string& turn, size_t bytes, std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (waiting_.size() >= limits_.max_waiting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        waiting_.size(), " calls wait until their messages are read; allowed: ", limits_.max_waiting));
  }
  if (!waiting_.empty() && waiting_bytes_ + bytes > limits_.max_waiting_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("messages that wait to be read have ", waiting_bytes_,
                                                     " bytes, and this one ", bytes,
                                                     "; allowed: ", limits_.max_waiting_bytes));
  }
  waiting_bytes_ += bytes;
  waiting_.Push(turn, {bytes, std::move(task)});
  return absl::OkStatus();
}

void CallThreads::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void CallThreads::Work() {
  const auto has_something_to_do = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stopping_ || !waiting_.empty();
  };
  for (;;) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_something_to_do));
      if (waiting_.empty()) return;
      std::pair<size_t, std::function<void()>> next = waiting_.Pop();
      waiting_bytes_ -= next.first;
      task = std::move(next.second);
    }
    task();
  }
}

}  // namespace kvblend::server
