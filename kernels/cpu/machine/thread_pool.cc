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
      workers_.emplace_back([this, on_start, i] {
        on_start();
        WorkerMain(i);
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

bool ThreadPool::Loop::HasUnclaimed() const {
  return std::any_of(streams.begin(), streams.end(), [](const Stream& stream) {
    return stream.next.load(std::memory_order_relaxed) < stream.end;
  });
}

void ThreadPool::RunIterations(Loop& loop, int64_t thread) {
  const auto num_streams = static_cast<int64_t>(loop.streams.size());
  for (int64_t s = 0; s < num_streams; ++s) {
    const int64_t index = (thread + s) % num_streams;
    Stream& stream = loop.streams[index];
    for (;;) {
      const int64_t i = stream.next.fetch_add(1, std::memory_order_relaxed);
      if (i >= stream.end) break;
      loop.body(index, i);
    }
  }
}

ThreadPool::Loop* ThreadPool::FindLoop() {
  for (Loop* loop : loops_) {
    if (loop->HasUnclaimed()) return loop;
  }
  return nullptr;
}

void ThreadPool::WorkerMain(int64_t thread) {
  mutex_.Lock();
  while (!stop_) {
    if (Loop* loop = FindLoop(); loop != nullptr) {
      loop->num_workers.fetch_add(1, std::memory_order_relaxed);
      mutex_.Unlock();
      RunIterations(*loop, thread);
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

void ThreadPool::Run(Loop& loop) {
  {
    absl::MutexLock lock(&mutex_);
    loops_.push_back(&loop);
    epoch_.fetch_add(1, std::memory_order_relaxed);
    if (num_sleeping_ > 0) work_available_.SignalAll();
  }
  RunIterations(loop, /*thread=*/0);
  SpinUntil([&] { return loop.num_workers.load(std::memory_order_relaxed) == 0; });
  absl::MutexLock lock(&mutex_);
  loops_.erase(std::find(loops_.begin(), loops_.end(), &loop));
  while (loop.num_workers.load(std::memory_order_acquire) != 0) loop_left_.Wait(&mutex_);
}

void ThreadPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  if (n <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Stream all{.next = 0, .end = n};
  const auto iteration = [&](int64_t, int64_t i) { body(i); };  // outlives the loop
  Loop loop(absl::MakeSpan(&all, 1), iteration);
  Run(loop);
}

void ThreadPool::ForStreams(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  ForGrid(n, 1, [&](int64_t i, int64_t) { body(i); });
}

void ThreadPool::ForGrid(int64_t rows, int64_t columns, absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (rows <= 0 || columns <= 0) return;
  const int64_t most = std::min<int64_t>(num_threads(), kMaxStreams);
  const bool by_rows = rows >= most || columns == 1;
  // Streams share the lines among them: the rows, or the columns. All of what lies across is in every stream.
  const int64_t lines = by_rows ? rows : columns, across = by_rows ? columns : rows;
  const int64_t num_streams = std::min(lines, most);
  const auto first_line = [&](int64_t stream) { return stream * lines / num_streams; };
  const auto cell = [&](int64_t stream, int64_t i) {
    const int64_t first = first_line(stream), count = first_line(stream + 1) - first;
    if (by_rows) {
      body(first + i % count, i / count);
    } else {
      body(i % across, first + i / across);
    }
  };
  Stream streams[kMaxStreams];
  for (int64_t s = 0; s < num_streams; ++s) {
    streams[s].next.store(0, std::memory_order_relaxed);
    streams[s].end = (first_line(s + 1) - first_line(s)) * across;
  }
  Loop loop(absl::MakeSpan(streams, num_streams), cell);
  if (num_streams == 1) return RunIterations(loop, /*thread=*/0);
  Run(loop);
}

}  // namespace kvblend::kernels
