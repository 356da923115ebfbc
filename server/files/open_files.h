// How many files the process may have open: each connection of a listener is one.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <atomic>

namespace kvblend::server {

/// Asks the system for room for so many open files beside those that were asked for before. Shells start
/// programs with few of them, and let them ask for more, up to a limit of their own. Thread-safe.
inline void AllowMoreFiles(rlim_t files) {
  constexpr rlim_t kOtherFiles = 512;
  static std::atomic<rlim_t> wanted{kOtherFiles};
  const rlim_t all = wanted += files;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= all) return;
  limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? all : std::min<rlim_t>(all, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace kvblend::server
