// Sections of stored KV may lie in host memory, where the store keeps them: these bring them to the device,
// where DeviceStream::AwaitSections and ReleaseSections go on.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/runtime/memory.h"
#include "kernels/kv_section.h"

namespace kvblend::kernels::cuda {

/// Points the section to device memory. kFailedPrecondition while a step is recorded.
absl::Status BringToDevice(DeviceStream& stream, KvSectionView& section);
/// The same of both. The store keeps the V of a layer right behind its K: one copy then.
absl::Status BringToDevice(DeviceStream& stream, KvSectionView& k, KvSectionView& v);

}  // namespace kvblend::kernels::cuda
