// The processors that this process may run on.
#pragma once

#include <vector>

namespace kvblend::kernels {

/// Their numbers, ascending; never empty.
std::vector<int> AllowedProcessors();

/// Keeps the calling thread on one of them. False when the system refuses, which costs speed alone.
bool PinThisThread(int processor);

}  // namespace kvblend::kernels
