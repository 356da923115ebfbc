// Buffers, streams and copies of backends whose memory is the host's.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

/// Uninitialised bytes aligned to 64. kInvalidArgument for negative sizes, kResourceExhausted without memory.
absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(int64_t bytes);

/// Operations run before they return, so a stream holds no state.
class HostStream final : public Stream {};

/// The copy that both CopyFromHost and CopyToHost are. `op` names the caller in errors.
absl::Status CopyHostBytes(absl::string_view op, void* dst, const void* src, int64_t bytes);

}  // namespace kvblend::kernels
