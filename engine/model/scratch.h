// Backend memory that is reused from pass to pass and grows to the largest pass seen.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kvblend::model {

/// One growable matrix. Not thread-safe; views die with the next Resize that has to grow.
class ScratchMatrix {
 public:
  /// A dense [rows, cols] view of uninitialised memory. Its contents are valid until the next Resize.
  absl::StatusOr<kernels::MatrixView> Resize(kernels::Backend& backend, int64_t rows, int64_t cols,
                                             kernels::DataType dtype) {
    const int64_t bytes = rows * cols * kernels::SizeOf(dtype);
    if (buffer_ == nullptr || buffer_->size_bytes() < bytes) {
      buffer_.reset();
      absl::StatusOr<std::unique_ptr<kernels::Buffer>> grown = backend.Allocate(bytes);
      if (!grown.ok()) return grown.status();
      buffer_ = std::move(*grown);
    }
    return kernels::MatrixView{buffer_->data(), dtype, rows, cols, cols};
  }

 private:
  std::unique_ptr<kernels::Buffer> buffer_;
};

/// The same for numbers.
class ScratchIndices {
 public:
  absl::StatusOr<kernels::IndicesView> Resize(kernels::Backend& backend, int64_t size) {
    const auto memory = memory_.Resize(backend, 1, size, kernels::DataType::kF32);  // as wide as int32
    if (!memory.ok()) return memory.status();
    return kernels::IndicesView{static_cast<int32_t*>(memory->data), size};
  }

 private:
  ScratchMatrix memory_;
};

}  // namespace kvblend::model
