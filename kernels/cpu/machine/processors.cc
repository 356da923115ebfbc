#include "kernels/cpu/machine/processors.h"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace kvblend::kernels {

std::vector<int> AllowedProcessors() {
  std::vector<int> processors;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &allowed)) processors.push_back(i);
    }
  }
  if (processors.empty()) {  // more of them than a cpu_set_t counts
    processors.resize(std::max(1u, std::thread::hardware_concurrency()));
    std::iota(processors.begin(), processors.end(), 0);
  }
  return processors;
}

bool PinThisThread(int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return false;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  return sched_setaffinity(0, sizeof(one), &one) == 0;
}

}  // namespace kvblend::kernels
