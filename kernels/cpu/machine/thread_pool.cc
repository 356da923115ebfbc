#include "kernels/cpu/machine/thread_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "hwy/cache_control.h"

namespace kvblend::kernels {
namespace {

// About 20 us at a few ns per pause: longer than the gap between two operations of a layer, short enough not
// to burn a processor while a request waits for its next one.
constexpr int kSpins = 4000;

template <typename Condition>
bool SpinUntil(Condition condition) {
  for (int i = 0; i < kSpins; ++i) {
    if (condition()) return true;
    hwy::Pause();
  }
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, void (*on_start)()) {
  try {
    for (int i = 1; i < num_threads; ++i) {
      workers_.emplace_back([this, on_start] {
        on_start();
        WorkerMain();
      });
    }
  } catch (const std::system_error&) {
    // Those that have been started do the work of all.
  }
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
    work_available_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunIterations(Loop& loop) {
  for (;;) {
    const int64_t i = loop.next.fetch_add(1, std::memory_order_relaxed);
    if (i >= loop.n) return;
    loop.body(i);
  }
}

ThreadPool::Loop* ThreadPool::FindLoop() {
  for (Loop* loop : loops_) {
    if (loop->next.load(std::memory_order_relaxed) < loop->n) return loop;
  }
  return nullptr;
}

void ThreadPool::WorkerMain() {
  mutex_.Lock();
  while (!stop_) {
    if (Loop* loop = FindLoop(); loop != nullptr) {
      loop->num_workers.fetch_add(1, std::memory_order_relaxed);
      mutex_.Unlock();
      RunIterations(*loop);
      mutex_.Lock();
      // The caller leaves its loop only after this, so `loop` is not touched again.
      if (loop->num_workers.fetch_sub(1, std::memory_order_release) == 1) loop_left_.SignalAll();
      continue;
    }
    const uint32_t seen = epoch_.load(std::memory_order_relaxed);
    mutex_.Unlock();
    const bool changed = SpinUntil([&] { return epoch_.load(std::memory_order_relaxed) != seen; });
    mutex_.Lock();
    if (!changed && !stop_ && FindLoop() == nullptr) {
      ++num_sleeping_;
      work_available_.Wait(&mutex_);
      --num_sleeping_;
    }
  }
  mutex_.Unlock();
}

void ThreadPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  if (n <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Loop loop(n, body);
  {
    absl::MutexLock lock(&mutex_);
    loops_.push_back(&loop);
    epoch_.fetch_add(1, std::memory_order_relaxed);
    if (num_sleeping_ > 0) work_available_.SignalAll();
  }
  RunIterations(loop);
  SpinUntil([&] { return loop.num_workers.load(std::memory_order_relaxed) == 0; });
  absl::MutexLock lock(&mutex_);
  loops_.erase(std::find(loops_.begin(), loops_.end(), &loop));
  while (loop.num_workers.load(std::memory_order_acquire) != 0) loop_left_.Wait(&mutex_);
}

void ThreadPool::ForStreams(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  constexpr int64_t kMaxStreams = 64;
  struct alignas(64) Stream {  // each in a cache line of its own
    std::atomic<int64_t> next;
    int64_t end;
  };
  const int64_t num_streams = std::min<int64_t>({n, num_threads(), kMaxStreams});
  if (num_streams <= 1) return ParallelFor(n, body);
  Stream streams[kMaxStreams];
  for (int64_t s = 0; s < num_streams; ++s) {
    streams[s].next.store(s * n / num_streams, std::memory_order_relaxed);
    streams[s].end = (s + 1) * n / num_streams;
  }
  ParallelFor(num_threads(), [&](int64_t thread) {
    for (int64_t s = 0; s < num_streams; ++s) {
      Stream& stream = streams[(thread + s) % num_streams];
      for (;;) {
        const int64_t i = stream.next.fetch_add(1, std::memory_order_relaxed);
        if (i >= stream.end) break;
        body(i);
      }
    }
  });
}

}  // namespace kvblend::kernels
