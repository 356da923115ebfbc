// Worker threads that share the iterations of a loop.
//
// Why not OpenMP: the engine's own code must be clean under ThreadSanitizer, which cannot see libgomp's
// synchronisation, and every operation of a model is followed by the next within microseconds, for which
// a short spin before sleeping matters more than anything OpenMP offers.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace kvblend::kernels {

/// Thread-safe: several threads may run loops at once; each caller works on its own loop, so that a loop
/// finishes even when all workers are busy elsewhere. Loops may not be nested.
///
/// Bodies do not throw: an exception ends the process, std::bad_alloc included. Bodies take what memory they
/// need from ThreadScratch (scratch.h), blocks that a thread keeps and that come from the allocator few times
/// in its life; what is large an operation takes before its loop. Systems that overcommit grant such blocks
/// and end a process later if memory is short, so that an exception would come only under a limit of the
/// address space (ulimit -v); to make a status of it, every operation would have to catch it.
class ThreadPool {
 public:
  /// `num_threads` >= 1 counts the calling thread: num_threads - 1 workers are started, or as many as the
  /// system lets it start, which num_threads() tells. `on_start` runs once in every worker.
  ThreadPool(int num_threads, void (*on_start)());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(i) once for every i in 0 .. n-1, in any order, on any threads; returns when all are done.
  /// Iterations are claimed one at a time, lowest first: put the longest ones first.
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) ABSL_LOCKS_EXCLUDED(mutex_);

  /// The same for iterations whose memory lies one behind the other: every thread has a stream of neighbours,
  /// the same in each loop. What it fetches ahead is what it reads next, and what it wrote in one loop is in
  /// its own caches in the next. A thread that has come to the end of its stream helps with the others.
  void ForStreams(int64_t n, absl::FunctionRef<void(int64_t)> body) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Calls body(row, column) once for every cell of a grid. A thread's stream is some of the rows, those that
  /// ForStreams(rows) would give it, column by column; or, where there are fewer rows than threads, some of
  /// the columns.
  void ForGrid(int64_t rows, int64_t columns, absl::FunctionRef<void(int64_t, int64_t)> body)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr int64_t kMaxStreams = 64;
  static constexpr int kMaxLoops = 4;

  /// How many iterations of a stream have been claimed, in a cache line of its own: kClaimedBits bits, and
  /// above them the generation of the loop that they belong to. So who begins a loop need not write to all
  /// streams: where the generation is another, none has been claimed.
  struct alignas(64) Stream {
    std::atomic<uint64_t> claimed{0};
  };

  /// A place for a loop that is running. It belongs to the pool, not to the caller, so that a worker may look
  /// at it when the loop has just ended. All that a worker needs to begin is in the first cache line.
  struct alignas(64) Loop {
    std::atomic<uint64_t> state{0};  // flags and generation: see thread_pool.cc
    int64_t lines = 0, across = 0;   // the streams share the lines; each line has `across` iterations
    int64_t num_streams = 0;         // 1 .. kMaxStreams
    const absl::FunctionRef<void(int64_t, int64_t)>* body =
        nullptr;                     // of the stream's index and an iteration
    uint32_t generation = 0;         // of the last loop here; written by who has taken it
    std::atomic<bool> taken{false};  // by a caller
    Stream streams[kMaxStreams];
  };

  /// A worker says in a cache line of its own where it is, so that as many as there are can come and go at
  /// once.
  struct alignas(64) Worker {
    std::atomic<const Loop*> inside{nullptr};
    uint32_t done[kMaxLoops] = {};  // generations of the loops that it was in last: it saw their ends
    std::thread thread;
  };

  /// Runs body(stream, i) for every i below the stream's share of lines * across iterations.
  void Run(int64_t lines, int64_t across, int64_t num_streams, absl::FunctionRef<void(int64_t, int64_t)> body)
      ABSL_LOCKS_EXCLUDED(mutex_);
  Loop* TakeFreeLoop();
  void Open(Loop& loop) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Returns when no worker is inside any more.
  void Close(Loop& loop) ABSL_LOCKS_EXCLUDED(mutex_);
  /// What thread `thread` does of a loop: the calling one is 0.
  static void RunIterations(Loop& loop, uint32_t generation, int64_t thread);

  void WorkerMain(Worker& worker, int64_t thread) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether loop i is open and the worker has not been in it.
  bool MayEnter(const Worker& worker, int i) const;
  /// A loop that it may enter and is in now. Null: there is none.
  Loop* Enter(Worker& worker);
  void Leave(Worker& worker, Loop& loop) ABSL_LOCKS_EXCLUDED(mutex_);

  Loop loops_[kMaxLoops];
  absl::Mutex mutex_;  // held only to sleep and to wake
  absl::CondVar work_available_;
  absl::CondVar loop_left_;
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stop_{false};
  std::deque<Worker> workers_;
};

}  // namespace kvblend::kernels
