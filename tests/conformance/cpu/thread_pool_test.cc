#include "kernels/cpu/machine/thread_pool.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::kernels {
namespace {

std::atomic<int> started{0};
void CountStart() { ++started; }

TEST(ThreadPoolTest, RunsEveryIterationOnce) {
  for (const int threads : {1, 2, 5, 70}) {
    ThreadPool pool(threads, &CountStart);
    EXPECT_EQ(pool.num_threads(), threads);
    for (const int64_t n : {0, 1, 2, 3, 100, 10000}) {
      // Plain ints: each iteration belongs to one thread, and the end is a barrier.
      std::vector<int> counts(n, 0);
      pool.ParallelFor(n, [&](int64_t i) { ++counts[i]; });
      for (const int count : counts) ASSERT_EQ(count, 1);
      pool.ForStreams(n, [&](int64_t i) { ++counts[i]; });
      for (const int count : counts) ASSERT_EQ(count, 2);
    }
    for (const int64_t rows : {0, 1, 2, 3, 5, 8, 71}) {
      for (const int64_t columns : {0, 1, 2, 7, 71}) {
        std::vector<int> counts(rows * columns, 0);
        pool.ForGrid(rows, columns, [&](int64_t row, int64_t column) { ++counts[row * columns + column]; });
        for (const int count : counts) ASSERT_EQ(count, 1) << rows << " x " << columns;
      }
    }
  }
}

TEST(ThreadPoolTest, StartsWorkersOnly) {
  started = 0;
  { const ThreadPool pool(4, &CountStart); }
  EXPECT_EQ(started, 3);
}

// Each stream is read from front to back, and a thread that finds no more of its own takes what others have
// left: here all of it, for they wait in their first iteration until everything else is done.
TEST(ThreadPoolTest, StreamsAreReadInOrderAndFinishedTogether) {
  constexpr int kThreads = 3;
  constexpr int64_t kIterations = 300, kStream = kIterations / kThreads;
  ThreadPool pool(kThreads, &CountStart);
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::map<std::thread::id, std::vector<int64_t>> of_thread;
  std::atomic<int> begun{0};
  pool.ForStreams(kIterations, [&](int64_t i) {
    bool first = false;
    {
      const std::lock_guard lock(mutex);
      std::vector<int64_t>& seen = of_thread[std::this_thread::get_id()];
      first = seen.empty();
      seen.push_back(i);
    }
    if (first) {
      const int order = begun++;
      while (begun < kThreads) std::this_thread::yield();
      if (order > 0) {
        while (done < kIterations - (kThreads - 1)) std::this_thread::yield();
      }
    }
    ++done;
  });
  EXPECT_EQ(of_thread.size(), size_t{kThreads});
  for (const auto& [id, seen] : of_thread) {
    EXPECT_EQ(seen.front() % kStream, 0);
    EXPECT_TRUE(seen.size() == 1 || seen.size() == static_cast<size_t>(kIterations - (kThreads - 1)));
    for (size_t i = 1; i < seen.size(); ++i) {
      if (seen[i] / kStream == seen[i - 1] / kStream) {
        EXPECT_EQ(seen[i], seen[i - 1] + 1);
      }
    }
  }
}

// Which thread an iteration has while all of them are busy: each waits in its first until every thread has
// one.
class ThreadOfLine {
 public:
  explicit ThreadOfLine(int threads) : threads_(threads) {}

  void Note(int64_t line) {
    {
      const std::lock_guard lock(mutex_);
      if (!seen_.insert(std::this_thread::get_id()).second) return;
      lines_[line] = std::this_thread::get_id();
    }
    ++begun_;
    while (begun_ < threads_) std::this_thread::yield();
  }
  const std::map<int64_t, std::thread::id>& lines() const { return lines_; }

 private:
  const int threads_;
  std::mutex mutex_;
  std::set<std::thread::id> seen_;
  std::map<int64_t, std::thread::id> lines_;
  std::atomic<int> begun_{0};
};

// What a thread wrote in one loop it finds in its own caches in the next: it begins with the same rows every
// time, in loops of rows and of grids of them; where a grid has too few rows, with the same columns.
TEST(ThreadPoolTest, AThreadBeginsWhereItBeganBefore) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads, &CountStart);
  const auto of_rows = [&] {
    ThreadOfLine threads(kThreads);
    pool.ForStreams(100, [&](int64_t i) { threads.Note(i); });
    return threads.lines();
  };
  const std::map<int64_t, std::thread::id> lines = of_rows();
  ASSERT_EQ(lines.size(), size_t{kThreads});
  EXPECT_EQ(lines.at(0), std::this_thread::get_id());
  for (int loop = 0; loop < 50; ++loop) {
    ASSERT_EQ(of_rows(), lines);
    ThreadOfLine grid(kThreads), wide(kThreads);
    pool.ForGrid(100, 3, [&](int64_t row, int64_t) { grid.Note(row); });
    ASSERT_EQ(grid.lines(), lines);
    pool.ForGrid(kThreads - 1, 100, [&](int64_t, int64_t column) { wide.Note(column); });
    ASSERT_EQ(wide.lines(), lines);
  }
}

TEST(ThreadPoolTest, AGridIsReadColumnByColumn) {
  ThreadPool alone(1, &CountStart);
  std::vector<std::pair<int64_t, int64_t>> cells;
  alone.ForGrid(2, 3, [&](int64_t row, int64_t column) { cells.emplace_back(row, column); });
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}};
  EXPECT_EQ(cells, expected);
}

// Back to back and after pauses longer than the spin: no loop is lost, none is entered after it has ended.
TEST(ThreadPoolTest, ManyShortLoops) {
  ThreadPool pool(3, &CountStart);
  int64_t sum = 0;
  for (int loop = 0; loop < 3000; ++loop) {
    std::atomic<int64_t> local{0};
    pool.ParallelFor(loop % 7, [&](int64_t i) { local += i + 1; });
    sum += local;
    if (loop % 500 == 0) std::this_thread::yield();
  }
  int64_t expected = 0;
  for (int loop = 0; loop < 3000; ++loop) expected += (loop % 7) * (loop % 7 + 1) / 2;
  EXPECT_EQ(sum, expected);
}

// Loops that every thread has to come to, behind pauses in which they fell asleep.
TEST(ThreadPoolTest, SleepersAreWoken) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads, &CountStart);
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(loop % 5));
    ThreadOfLine threads(kThreads);
    pool.ForStreams(kThreads, [&](int64_t i) { threads.Note(i); });
    ASSERT_EQ(threads.lines().size(), size_t{kThreads});
  }
}

// A stream keeps a few bits of the generation of the loop that it was in last. A loop with the same bits must
// not take that one's iterations for its own: here the second stream rests for about as many loops as there
// are such generations.
TEST(ThreadPoolTest, AStreamThatRestedKnowsThatTheLoopIsAnother) {
  constexpr int kGenerations = 1 << 16;
  ThreadPool pool(2, &CountStart);
  for (int rest = kGenerations - 3; rest <= kGenerations + 1; ++rest) {
    int counts[2] = {};
    pool.ForStreams(2, [&](int64_t i) { ++counts[i]; });
    std::atomic<int64_t> between{0};
    for (int loop = 0; loop < rest; ++loop) {
      pool.ParallelFor(2, [&](int64_t) { between.fetch_add(1, std::memory_order_relaxed); });
    }
    pool.ForStreams(2, [&](int64_t i) { ++counts[i]; });
    ASSERT_EQ(between, 2 * int64_t{rest});
    ASSERT_EQ(counts[0], 2) << rest;
    ASSERT_EQ(counts[1], 2) << rest;
  }
}

// More of them than loops have places: some run theirs alone.
TEST(ThreadPoolTest, ConcurrentCallers) {
  ThreadPool pool(3, &CountStart);
  std::vector<std::thread> callers;
  std::vector<int64_t> sums(9, 0);
  for (size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int loop = 0; loop < 300; ++loop) {
        std::vector<int64_t> values(50);
        pool.ParallelFor(50, [&](int64_t i) { values[i] = i * static_cast<int64_t>(caller + 1); });
        sums[caller] += std::accumulate(values.begin(), values.end(), int64_t{0});
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (size_t caller = 0; caller < sums.size(); ++caller) {
    EXPECT_EQ(sums[caller], 300 * 1225 * static_cast<int64_t>(caller + 1));
  }
}

}  // namespace
}  // namespace kvblend::kernels
