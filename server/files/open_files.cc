#include "server/files/open_files.h"

#include <algorithm>
#include <atomic>

namespace kvblend::server {
namespace {

constexpr rlim_t kOtherFiles = 512;  // beside connections

/// That no connection of a client's gets; of very few open files a quarter.
constexpr rlim_t kSpareFiles = 128;
constexpr rlim_t kSpareShare = 4;

std::atomic<rlim_t> wanted_files{kOtherFiles};

/// What the system allows now. RLIM_INFINITY, which is above all numbers, where it does not say.
rlim_t AllowedFiles() {
  rlimit limit;
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

void AllowMoreFiles(rlim_t files) {
  const rlim_t all = wanted_files += files;
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= all) return;
  limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? all : std::min<rlim_t>(all, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::optional<FileShortage> ShortageOfFiles() {
  const rlim_t allowed = AllowedFiles(), wanted = wanted_files;
  if (allowed >= wanted) return std::nullopt;
  return FileShortage{.allowed = static_cast<int64_t>(allowed), .wanted = static_cast<int64_t>(wanted)};
}

bool LeavesSpareFiles(int descriptor) {
  const rlim_t allowed = AllowedFiles();
  return static_cast<rlim_t>(descriptor) < allowed - std::min(kSpareFiles, allowed / kSpareShare);
}

}  // namespace kvblend::server
