// Which device a process computes on: from what was asked for and what is there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

struct CudaDevice {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
};

/// The oldest compute capability that the kernels are built for.
inline constexpr int kMinComputeMajor = 8;

/// What a search for CUDA devices found.
struct CudaProbe {
  bool in_build = false;            // this build has the CUDA backend
  std::string error;                // the CUDA runtime's words when it could not list devices
  std::vector<CudaDevice> devices;  // those visible to the process, in the runtime's order
};

struct DeviceChoice {
  enum class Kind : uint8_t { kCpu, kReference, kCuda } kind = Kind::kCpu;
  int cuda_index = 0;  // among the visible devices
  std::string reason;  // for people

  std::string name() const;  // "cpu", "reference", "cuda:0"
};

/// OK for auto, cpu, cuda, cuda:N and reference; kInvalidArgument listing them otherwise.
absl::Status CheckDeviceName(std::string_view device);

/// `probe` is called only when a CUDA device may be chosen.
///   auto       the first usable CUDA device, else the CPU; the reason says why
///   cuda       the first usable one; cuda:N: the N-th that is visible
///   reference  the definition of all operations, for comparisons
/// kInvalidArgument: no such name, or N beyond the devices. kFailedPrecondition: a build without CUDA, or no
/// device that the kernels run on.
absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view device, absl::FunctionRef<CudaProbe()> probe);

/// Looks for the devices of this machine, in a build that has CUDA.
CudaProbe ProbeCuda();

/// `cpu` matters only when the choice is the CPU.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const DeviceChoice& choice,
                                                       const CpuBackendOptions& cpu);

}  // namespace kvblend::kernels
