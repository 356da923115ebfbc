#include "kernels/cuda/runtime/bring_sections.h"

#include <cstddef>
#include <cstdint>

#include "base/status_macros.h"
#include "kernels/cuda/runtime/step_recording.h"

namespace kvblend::kernels::cuda {
namespace {

// Brings the `bytes` at `source` to the device, and returns where they will be.
absl::StatusOr<const void*> Bring(DeviceStream& stream, const void* source, int64_t bytes) {
  KVBLEND_RETURN_IF_ERROR(CheckNotRecorded(stream, "Reading a section", "reads host memory"));
  return stream.BringSection(source, bytes);
}

}  // namespace

absl::Status BringToDevice(DeviceStream& stream, KvSectionView& section) {
  const int64_t bytes = section.layout().size_bytes;
  if (bytes == 0 || IsDeviceMemory(section.data)) return absl::OkStatus();
  KVBLEND_ASSIGN_OR_RETURN(section.data, Bring(stream, section.data, bytes));
  return absl::OkStatus();
}

absl::Status BringToDevice(DeviceStream& stream, KvSectionView& k, KvSectionView& v) {
  const auto* const k_bytes = static_cast<const std::byte*>(k.data);
  const int64_t k_size = k.layout().size_bytes, v_size = v.layout().size_bytes;
  if (k_size == 0 || v_size == 0 || k_bytes + k_size != v.data || IsDeviceMemory(k.data)) {
    KVBLEND_RETURN_IF_ERROR(BringToDevice(stream, k));
    return BringToDevice(stream, v);
  }
  KVBLEND_ASSIGN_OR_RETURN(k.data, Bring(stream, k.data, k_size + v_size));
  v.data = static_cast<const std::byte*>(k.data) + k_size;
  return absl::OkStatus();
}

}  // namespace kvblend::kernels::cuda
