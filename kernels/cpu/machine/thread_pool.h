// Worker threads that share the iterations of a loop.
//
// Why not OpenMP: the engine's own code must be clean under ThreadSanitizer, which cannot see libgomp's
// synchronisation, and every operation of a model is followed by the next within microseconds, for which
// a short spin before sleeping matters more than anything OpenMP offers.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace kvblend::kernels {

/// Thread-safe: several threads may run loops at once; each caller works on its own loop, so that a loop
/// finishes even when all workers are busy elsewhere. Loops may not be nested.
class ThreadPool {
 public:
  /// `num_threads` >= 1 counts the calling thread: num_threads - 1 workers are started, or as many as the system lets
  /// it start, which num_threads() tells. `on_start` runs once in every worker.
  ThreadPool(int num_threads, void (*on_start)());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(i) once for every i in 0 .. n-1, in any order, on any threads; returns when all are done.
  /// Iterations are claimed one at a time, lowest first: put the longest ones first.
  void ParallelFor(int64_t n, absl::FunctionRef<void(int64_t)> body) ABSL_LOCKS_EXCLUDED(mutex_);

  /// The same for iterations whose memory lies one behind the other: every thread has a stream of neighbours, the same in each
  /// loop. What it fetches ahead is what it reads next, and what it wrote in one loop is in its own caches in the next. A
  /// thread that has come to the end of its stream helps with the others.
  void ForStreams(int64_t n, absl::FunctionRef<void(int64_t)> body) ABSL_LOCKS_EXCLUDED(mutex_);

  /// Calls body(row, column) once for every cell of a grid. A thread's stream is some of the rows, those that ForStreams(rows)
  /// would give it, column by column; or, where there are fewer rows than threads, some of the columns.
  void ForGrid(int64_t rows, int64_t columns, absl::FunctionRef<void(int64_t, int64_t)> body)
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  /// Iterations that are claimed one at a time, in order; in a cache line of its own.
  struct alignas(64) Stream {
    std::atomic<int64_t> next;  // first unclaimed iteration
    int64_t end;
  };
  static constexpr int64_t kMaxStreams = 64;

  struct Loop {
    Loop(absl::Span<Stream> of_streams, absl::FunctionRef<void(int64_t, int64_t)> function)
        : streams(of_streams), body(function) {}
    bool HasUnclaimed() const;

    const absl::Span<Stream> streams;
    const absl::FunctionRef<void(int64_t, int64_t)> body;  // of the stream's index and an iteration of it
    std::atomic<int> num_workers{0};                       // workers inside; changed under mutex_
  };

  /// What thread `thread` does of a loop: the calling one is 0.
  static void RunIterations(Loop& loop, int64_t thread);
  void WorkerMain(int64_t thread) ABSL_LOCKS_EXCLUDED(mutex_);
  void Run(Loop& loop) ABSL_LOCKS_EXCLUDED(mutex_);
  Loop* FindLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  absl::CondVar work_available_;
  absl::CondVar loop_left_;
  std::vector<Loop*> loops_ ABSL_GUARDED_BY(mutex_);  // each lives on its caller's stack
  int num_sleeping_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> epoch_{0};  // grows with every loop, so that spinning workers need no lock
  std::vector<std::thread> workers_;
};

}  // namespace kvblend::kernels
