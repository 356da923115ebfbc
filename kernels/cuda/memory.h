// Device memory of the CUDA backend: buffers, and streams with the scratch memory of what runs on them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "kernels/cuda/runtime.h"

namespace kvblend::kernels::cuda {

class DeviceBuffer final : public Buffer {
 public:
  /// kInvalidArgument for negative sizes, kResourceExhausted without memory; `op` names the caller.
  static absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(absl::string_view op, int64_t bytes);
  ~DeviceBuffer() override { DeviceFree(data_); }
  void* data() const override { return data_; }
  int64_t size_bytes() const override { return size_bytes_; }

 private:
  DeviceBuffer(void* data, int64_t bytes) : data_(data), size_bytes_(bytes) {}
  void* const data_;
  const int64_t size_bytes_;
};

/// Used by one thread at a time, as Stream is.
class DeviceStream final : public Stream {
 public:
  /// What scratch memory is for; one operation may use each once.
  enum class Scratch : uint8_t { kIndices, kActivations, kWorkspace, kKeySection, kValueSection };

  static absl::StatusOr<std::unique_ptr<DeviceStream>> Create();
  ~DeviceStream() override;

  StreamHandle handle() const { return handle_; }
  /// At least `bytes`, the same memory again and again; grows to the largest request there was.
  absl::StatusOr<void*> ScratchMemory(Scratch use, int64_t bytes);

 private:
  explicit DeviceStream(StreamHandle handle) : handle_(handle) {}

  const StreamHandle handle_;
  std::array<std::unique_ptr<DeviceBuffer>, 5> scratch_;
};

}  // namespace kvblend::kernels::cuda
