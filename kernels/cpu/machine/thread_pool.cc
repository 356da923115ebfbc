#include "kernels/cpu/machine/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "hwy/cache_control.h"

namespace kvblend::kernels {
namespace {

// About 20 us at a few ns per pause: longer than the gap between two operations of a layer, short enough not
// to burn a processor while a request waits for its next one.
constexpr int kSpins = 4000;

// A loop's state: two flags, and its generation, which tells it from all others at its place.
constexpr uint64_t kOpen = 1;     // workers may enter
constexpr uint64_t kAwaited = 2;  // its caller sleeps until they have left
constexpr int kGenerationShift = 32;

uint64_t StateOf(uint32_t generation, uint64_t flags) {
  return (uint64_t{generation} << kGenerationShift) | flags;
}
uint32_t GenerationOf(uint64_t state) { return static_cast<uint32_t>(state >> kGenerationShift); }

// A stream keeps the low bits of a loop's generation, few enough for a test to see them repeat. Each time
// they do, all streams are told.
constexpr int kClaimedBits = 48;
constexpr uint32_t kShortGenerations = uint32_t{1} << (64 - kClaimedBits);

uint64_t ClaimsOf(uint32_t generation) { return uint64_t{generation % kShortGenerations} << kClaimedBits; }

// The lines of stream s begin here and end where those of s + 1 begin.
int64_t FirstLine(int64_t lines, int64_t num_streams, int64_t s) { return s * lines / num_streams; }
int64_t CountLines(int64_t lines, int64_t num_streams, int64_t s) {
  return FirstLine(lines, num_streams, s + 1) - FirstLine(lines, num_streams, s);
}

// The first unclaimed iteration of a stream, claimed now, or `end` or more when there is none. Only inside a
// loop.
int64_t Claim(std::atomic<uint64_t>& claimed, uint64_t none_claimed, int64_t end) {
  uint64_t seen = claimed.load(std::memory_order_relaxed);
  while (seen >> kClaimedBits != none_claimed >> kClaimedBits) {
    if (claimed.compare_exchange_weak(seen, none_claimed + 1, std::memory_order_relaxed)) return 0;
  }
  // Threads look before they claim, so that the cache line of a finished stream stays shared.
  if (static_cast<int64_t>(seen - none_claimed) >= end) return end;
  return static_cast<int64_t>(claimed.fetch_add(1, std::memory_order_relaxed) - none_claimed);
}

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
  for (int i = 1; i < num_threads; ++i) {
    Worker& worker = workers_.emplace_back();
    try {
      worker.thread = std::thread([this, on_start, &worker, i] {
        on_start();
        WorkerMain(worker, i);
      });
    } catch (const std::system_error&) {
      // The threads that were started do all of the work.
      workers_.pop_back();
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stop_.store(true, std::memory_order_relaxed);
    work_available_.SignalAll();
  }
  for (Worker& worker : workers_) worker.thread.join();
}

void ThreadPool::RunIterations(Loop& loop, uint32_t generation, int64_t thread) {
  const uint64_t none_claimed = ClaimsOf(generation);
  const int64_t num_streams = loop.num_streams;
  for (int64_t s = 0; s < num_streams; ++s) {
    const int64_t index = (thread + s) % num_streams;
    const int64_t end = CountLines(loop.lines, num_streams, index) * loop.across;
    for (;;) {
      const int64_t i = Claim(loop.streams[index].claimed, none_claimed, end);
      if (i >= end) break;
      (*loop.body)(index, i);
    }
  }
}

// Entering and closing, and sleeping and opening, each store something and then load what the other stores.
// All threads see these in one order, so whoever stores second reads what the first has stored.

bool ThreadPool::MayEnter(const Worker& worker, int i) const {
  const uint64_t state = loops_[i].state.load(std::memory_order_seq_cst);
  return (state & kOpen) != 0 && GenerationOf(state) != worker.done[i];
}

ThreadPool::Loop* ThreadPool::Enter(Worker& worker) {
  for (int i = 0; i < kMaxLoops; ++i) {
    if (!MayEnter(worker, i)) continue;
    Loop& loop = loops_[i];
    worker.inside.store(&loop, std::memory_order_seq_cst);
    const uint64_t state = loop.state.load(std::memory_order_seq_cst);
    if ((state & kOpen) != 0) {  // and stays so until the worker leaves
      worker.done[i] = GenerationOf(state);
      return &loop;
    }
    Leave(worker, loop);
  }
  return nullptr;
}

void ThreadPool::Leave(Worker& worker, Loop& loop) {
  worker.inside.store(nullptr, std::memory_order_seq_cst);
  if ((loop.state.load(std::memory_order_seq_cst) & kAwaited) == 0) return;
  absl::MutexLock lock(&mutex_);
  loop_left_.SignalAll();
}

void ThreadPool::WorkerMain(Worker& worker, int64_t thread) {
  while (!stop_.load(std::memory_order_relaxed)) {
    Loop* loop = nullptr;
    SpinUntil([&] {
      loop = Enter(worker);
      return loop != nullptr || stop_.load(std::memory_order_relaxed);
    });
    if (loop == nullptr) {
      absl::MutexLock lock(&mutex_);
      num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
      const auto has_work = [&] {
        for (int i = 0; i < kMaxLoops; ++i) {
          if (MayEnter(worker, i)) return true;
        }
        return false;
      };
      while (!stop_.load(std::memory_order_relaxed) && !has_work()) work_available_.Wait(&mutex_);
      num_sleeping_.fetch_sub(1, std::memory_order_relaxed);
      continue;
    }
    RunIterations(*loop, loop->generation, thread);
    Leave(worker, *loop);
  }
}

ThreadPool::Loop* ThreadPool::TakeFreeLoop() {
  for (Loop& loop : loops_) {
    if (!loop.taken.load(std::memory_order_relaxed) && !loop.taken.exchange(true, std::memory_order_acquire))
      return &loop;
  }
  return nullptr;
}

void ThreadPool::Open(Loop& loop) {
  loop.state.store(StateOf(loop.generation, kOpen), std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) == 0) return;
  absl::MutexLock lock(&mutex_);
  work_available_.SignalAll();
}

void ThreadPool::Close(Loop& loop) {
  loop.state.store(StateOf(loop.generation, 0), std::memory_order_seq_cst);
  const auto is_empty = [&] {
    return std::none_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
      return worker.inside.load(std::memory_order_seq_cst) == &loop;
    });
  };
  if (SpinUntil(is_empty)) return;
  absl::MutexLock lock(&mutex_);
  loop.state.store(StateOf(loop.generation, kAwaited), std::memory_order_seq_cst);
  while (!is_empty()) loop_left_.Wait(&mutex_);
}

void ThreadPool::Run(int64_t lines, int64_t across, int64_t num_streams,
                     absl::FunctionRef<void(int64_t, int64_t)> body) {
  Loop* loop = workers_.empty() ? nullptr : TakeFreeLoop();
  if (loop == nullptr) {
    // There are no workers, or no place for another loop.
    for (int64_t s = 0; s < num_streams; ++s) {
      const int64_t end = CountLines(lines, num_streams, s) * across;
      for (int64_t i = 0; i < end; ++i) body(s, i);
    }
    return;
  }
  loop->lines = lines;
  loop->across = across;
  loop->num_streams = num_streams;
  loop->body = &body;
  if (++loop->generation % kShortGenerations == 0) {
    for (Stream& stream : loop->streams) stream.claimed.store(0, std::memory_order_relaxed);
    ++loop->generation;
  }
  Open(*loop);
  RunIterations(*loop, loop->generation, /*thread=*/0);
  Close(*loop);
  loop->taken.store(false, std::memory_order_release);
}

void ThreadPool::ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  if (n <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  Run(n, 1, /*num_streams=*/1, [&](int64_t, int64_t i) { body(i); });
}

void ThreadPool::ForStreams(int64_t n, absl::FunctionRef<void(int64_t)> body) {
  ForGrid(n, 1, [&](int64_t i, int64_t) { body(i); });
}

void ThreadPool::ForGrid(int64_t rows, int64_t columns, absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (rows <= 0 || columns <= 0) return;
  const int64_t most = std::min<int64_t>(num_threads(), kMaxStreams);
  const bool by_rows = rows >= most || columns == 1;
  // Lines, rows or columns, are divided among the streams. A stream has all cells of its lines.
  const int64_t lines = by_rows ? rows : columns, across = by_rows ? columns : rows;
  const int64_t num_streams = std::min(lines, most);
  const auto cell = [&](int64_t stream, int64_t i) {
    const int64_t first = FirstLine(lines, num_streams, stream),
                  count = CountLines(lines, num_streams, stream);
    if (by_rows) {
      body(first + i % count, i / count);
    } else {
      body(i % across, first + i / across);
    }
  };
  if (num_streams == 1) {
    for (int64_t i = 0; i < lines * across; ++i) cell(0, i);
    return;
  }
  Run(lines, across, num_streams, cell);
}

}  // namespace kvblend::kernels
