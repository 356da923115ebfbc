// Weight matrices in device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/runtime/memory.h"

namespace kvblend::kernels::cuda {

/// bf16, rows padded with zeros to a multiple of 8. Immutable after creation.
class DeviceWeights final : public PackedWeights {
 public:
  /// Rows that the source keeps as codes cross to the device as such and are dequantized there, to what
  /// ReadRow would give.
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Create(int64_t rows, int64_t cols, WeightUsage usage,
                                                               const WeightSource& source);
  /// Takes bf16 [rows, cols] that lie in device memory already. REQUIRES: cols is a multiple of 8.
  static std::unique_ptr<DeviceWeights> Adopt(int64_t rows, int64_t cols, WeightUsage usage,
                                              std::unique_ptr<DeviceBuffer> buffer) {
    return std::unique_ptr<DeviceWeights>(new DeviceWeights(rows, cols, usage, std::move(buffer)));
  }
  /// kInvalidArgument when the weights were made by a backend of another kind.
  static absl::StatusOr<const DeviceWeights*> From(const PackedWeights& weights);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightUsage usage() const override { return usage_; }
  /// cuBLASLt chooses its algorithms by the number of rows.
  int64_t rows_as_alone() const override { return 0; }
  ConstMatrixView view() const { return {buffer_->data(), DataType::kBF16, rows_, cols_, RoundUp(cols_, 8)}; }

 private:
  DeviceWeights(int64_t rows, int64_t cols, WeightUsage usage, std::unique_ptr<DeviceBuffer> buffer)
      : rows_(rows), cols_(cols), usage_(usage), buffer_(std::move(buffer)) {}
  const int64_t rows_, cols_;
  const WeightUsage usage_;
  const std::unique_ptr<DeviceBuffer> buffer_;
};

}  // namespace kvblend::kernels::cuda
