#include "kernels/device_choice.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvblend::kernels {
namespace {

using Kind = DeviceChoice::Kind;

constexpr std::string_view kIndexed = "cuda:";

// N of "cuda:N".
std::optional<int> IndexOf(std::string_view device) {
  if (device.substr(0, kIndexed.size()) != kIndexed) return std::nullopt;
  const std::string digits(device.substr(kIndexed.size()));
  int index = 0;
  if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos ||
      !absl::SimpleAtoi(digits, &index)) {
    return std::nullopt;
  }
  return index;
}

bool Usable(const CudaDevice& device) { return device.compute_major >= kMinComputeMajor; }

std::string Describe(const CudaDevice& device) {
  return absl::StrCat(device.name, " with compute capability ", device.compute_major, ".",
                      device.compute_minor);
}

// Why there is no usable device, for people.
std::string WhyNone(const CudaProbe& probe) {
  if (!probe.in_build) return "this build has no CUDA";
  if (!probe.error.empty()) return absl::StrCat("no usable GPU: ", probe.error);
  if (probe.devices.empty()) return "no usable GPU: none is visible";
  const std::string seen = absl::StrJoin(probe.devices, ", ", [](std::string* out, const CudaDevice& device) {
    absl::StrAppend(out, Describe(device));
  });
  return absl::StrCat("no usable GPU: ", seen, "; needed: at least ", kMinComputeMajor, ".0");
}

absl::Status NotThere(std::string_view device, const CudaProbe& probe) {
  return absl::FailedPreconditionError(
      absl::StrCat("device is '", std::string(device), "', but ", WhyNone(probe),
                   probe.in_build ? "" : "; it takes a build with -DKVBLEND_CUDA=ON"));
}

std::optional<int> FirstUsable(const CudaProbe& probe) {
  for (size_t i = 0; i < probe.devices.size(); ++i) {
    if (Usable(probe.devices[i])) return static_cast<int>(i);
  }
  return std::nullopt;
}

DeviceChoice Cuda(const CudaProbe& probe, int index) {
  return {.kind = Kind::kCuda, .cuda_index = index, .reason = Describe(probe.devices[index])};
}

}  // namespace

std::string DeviceChoice::name() const {
  switch (kind) {
    case Kind::kCpu:
      return "cpu";
    case Kind::kReference:
      return "reference";
    case Kind::kCuda:
      return absl::StrCat(std::string(kIndexed), cuda_index);
  }
  return "?";
}

absl::Status CheckDeviceName(std::string_view device) {
  for (std::string_view name : {"auto", "cpu", "cuda", "reference"}) {
    if (device == name) return absl::OkStatus();
  }
  if (IndexOf(device).has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("device is '", std::string(device),
                                                 "'; allowed: auto, cpu, cuda, cuda:N (from 0), reference"));
}

absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view device,
                                          absl::FunctionRef<CudaProbe()> look_for_cuda) {
  if (absl::Status status = CheckDeviceName(device); !status.ok()) return status;
  if (device == "cpu") return DeviceChoice{.kind = Kind::kCpu, .reason = "as asked for"};
  if (device == "reference") return DeviceChoice{.kind = Kind::kReference, .reason = "as asked for"};
  const CudaProbe probe = look_for_cuda();
  const std::optional<int> asked = IndexOf(device);
  if (!asked.has_value()) {
    if (const std::optional<int> usable = FirstUsable(probe)) return Cuda(probe, *usable);
    if (device == "auto") return DeviceChoice{.kind = Kind::kCpu, .reason = WhyNone(probe)};
    return NotThere(device, probe);
  }
  if (probe.devices.empty()) return NotThere(device, probe);
  const auto count = static_cast<int>(probe.devices.size());
  if (*asked >= count) {
    return absl::InvalidArgumentError(absl::StrCat("device is '", std::string(device), "', but ", count,
                                                   count == 1 ? " CUDA device is" : " CUDA devices are",
                                                   " visible; allowed: cuda:0",
                                                   count == 1 ? "" : absl::StrCat(" to cuda:", count - 1)));
  }
  if (!Usable(probe.devices[*asked])) {
    return absl::FailedPreconditionError(absl::StrCat("device is '", std::string(device), "', which is ",
                                                      Describe(probe.devices[*asked]), "; needed: at least ",
                                                      kMinComputeMajor, ".0"));
  }
  return Cuda(probe, *asked);
}

}  // namespace kvblend::kernels
