#include "tests/bench/line_transfer.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace kvblend {
namespace {

bool HoldTo(int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

}  // namespace

double LineTransferSeconds() {
  constexpr int kRounds = 20000;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 0;
  int processors[2], found = 0;
  for (int i = 0; i < CPU_SETSIZE && found < 2; ++i) {
    if (CPU_ISSET(i, &allowed)) processors[found++] = i;
  }
  if (found < 2) return 0;

  alignas(128) std::atomic<int> line{0};
  std::atomic<bool> held{true};
  double seconds = 0;
  // Both threads are new ones, because the calling one is not to be held to a processor.
  std::thread answers([&] {
    if (!HoldTo(processors[1])) held = false;
    for (int i = 0; i < kRounds; ++i) {
      while (line.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      line.store(2 * i + 2, std::memory_order_release);
    }
  });
  std::thread asks([&] {
    if (!HoldTo(processors[0])) held = false;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kRounds; ++i) {
      line.store(2 * i + 1, std::memory_order_release);
      while (line.load(std::memory_order_acquire) != 2 * i + 2) {
      }
    }
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  asks.join();
  answers.join();
  return held ? seconds / (2 * kRounds) : 0;
}

}  // namespace kvblend
