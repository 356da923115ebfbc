#include "kernels/cpu/machine/available_processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvblend::kernels {
namespace {

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// Of two numbers as files have them; nothing where the first is "max" or -1.
std::optional<double> Ratio(absl::string_view quota, absl::string_view period) {
  double time = 0, of = 0;
  if (!absl::SimpleAtod(quota, &time) || !absl::SimpleAtod(period, &of) || time <= 0 || of <= 0) {
    return std::nullopt;
  }
  return time / of;
}

std::optional<double> QuotaOf(const std::string& folder) {
  if (const std::string line = FirstLine(folder + "/cpu.max"); !line.empty()) {  // version 2
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    return words.size() == 2 ? Ratio(words[0], words[1]) : std::nullopt;
  }
  return Ratio(FirstLine(folder + "/cpu.cfs_quota_us"), FirstLine(folder + "/cpu.cfs_period_us"));
}

/// Of a group and of all above it. In a container the path may be the host's, of which only the end is there:
/// the top, which then is the container's own group.
std::optional<double> LeastQuota(const std::string& top, std::string path) {
  std::optional<double> least;
  while (true) {
    if (const std::optional<double> quota = QuotaOf(top + path); quota.has_value()) {
      least = std::min(*quota, least.value_or(*quota));
    }
    if (path.empty()) return least;
    path.resize(path.rfind('/') == path.npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::optional<double> AllowedByQuota(const std::string& root) {
  std::ifstream groups(absl::StrCat(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {
    // "0::/a/b" of version 2, "4:cpu,cpuacct:/a/b" of version 1.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    std::string top = absl::StrCat(root, "/sys/fs/cgroup");
    if (!parts[1].empty()) {
      if (std::find(controllers.begin(), controllers.end(), "cpu") == controllers.end()) continue;
      top += "/cpu";  // also where it is mounted together with another one
    }
    const std::string path = parts[2] == "/" ? "" : parts[2];
    if (const std::optional<double> quota = LeastQuota(top, path); quota.has_value()) return quota;
  }
  return std::nullopt;
}

int AvailableProcessors() {
  cpu_set_t allowed;
  int processors = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                       ? CPU_COUNT(&allowed)
                       : static_cast<int>(std::thread::hardware_concurrency());
  if (const std::optional<double> quota = AllowedByQuota(""); quota.has_value() && *quota < processors) {
    processors = static_cast<int>(std::ceil(*quota));
  }
  return std::max(1, processors);
}

}  // namespace kvblend::kernels
