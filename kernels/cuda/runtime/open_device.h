// What both runtimes check when a device is opened.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/device_choice.h"

namespace kvblend::kernels::cuda {

/// OK when `index` names a device that the kernels run on.
inline absl::Status CheckDeviceIndex(int index, const std::vector<DeviceInfo>& devices) {
  if (devices.empty()) return absl::FailedPreconditionError("no CUDA device is visible");
  if (index < 0 || index >= static_cast<int>(devices.size())) {
    return absl::InvalidArgumentError(absl::StrCat("there is no CUDA device ", index, "; visible are ",
                                                   devices.size(), ", counted from 0"));
  }
  const DeviceInfo& device = devices[index];
  if (device.compute_major < kMinComputeMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA device ", device.name, " has compute capability ", device.compute_major, ".",
                     device.compute_minor, "; needed: at least ", kMinComputeMajor, ".0"));
  }
  return absl::OkStatus();
}

inline absl::Status AnotherDevice(int used, int asked) {
  return absl::FailedPreconditionError(
      absl::StrCat("this process uses cuda:", used, " already; cuda:", asked, " takes another process"));
}

}  // namespace kvblend::kernels::cuda
