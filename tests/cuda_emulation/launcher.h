// Launches of the emulated runtime, and the list of all kernels in the program with whether they have run.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/device/launch.h"

namespace kvblend::cuda_emulation {

struct KernelEntry {
  std::string name;
  std::atomic<bool> executed{false};
};

/// Registers a kernel for the lifetime of the program; called before main, once per Launch<Kernel> that the
/// program holds, whether or not it is ever reached.
KernelEntry& RegisterKernel(std::string_view pretty_function);

template <auto Kernel>
struct RegisteredKernel {
  static KernelEntry& Register() { return RegisterKernel(__PRETTY_FUNCTION__); }
  static inline KernelEntry& kEntry = Register();
};

/// Names, sorted.
std::vector<std::string> AllKernels();
std::vector<std::string> KernelsNotExecuted();

/// Fails for shapes that a device refuses. The kernel runs when the stream is waited for.
kernels::cuda::LaunchError EnqueueLaunch(kernels::cuda::StreamHandle stream,
                                         const kernels::cuda::LaunchShape& shape, KernelEntry& kernel,
                                         std::function<void()> body);

/// Runs `work` on the host in the stream's order.
void EnqueueHost(kernels::cuda::StreamHandle stream, std::function<void()> work);

}  // namespace kvblend::cuda_emulation
