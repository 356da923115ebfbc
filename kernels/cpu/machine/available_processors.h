// How many threads can run at a time.
#pragma once

#include <optional>
#include <string>

namespace kvblend::kernels {

/// Those that this process may run on (taskset, a container's cpuset), and no more than AllowedByQuota
/// rounded up. At least 1.
int AvailableProcessors();

/// How many processors' time the control groups of this process leave it (a container's --cpus, a pod's
/// limits.cpu, a service's CPUQuota), 1.5 for example; nothing where they leave it all. With more threads
/// than that all of them stand still for most of each period. Control groups of both versions are known.
/// `root` is where /proc and /sys are looked for.
std::optional<double> AllowedByQuota(const std::string& root);

}  // namespace kvblend::kernels
