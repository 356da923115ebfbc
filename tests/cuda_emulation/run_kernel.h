// For the emulator's own tests: runs a small kernel and waits for it.
#pragma once

#include "gtest/gtest.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/runtime/runtime.h"

namespace kvblend::kernels::cuda {

template <auto Kernel, typename Params>
void RunKernel(const LaunchShape& shape, const Params& params) {
  const auto stream = CreateDeviceStream();
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(Launch<Kernel>(*stream, shape, params).ok());
  ASSERT_TRUE(SynchronizeStream(*stream).ok());
  DestroyDeviceStream(*stream);
}

}  // namespace kvblend::kernels::cuda
