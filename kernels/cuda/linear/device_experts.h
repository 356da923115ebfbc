// The experts of a layer in device memory: one matrix, one expert below the other.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/checks.h"
#include "kernels/cuda/linear/device_weights.h"

namespace kvblend::kernels::cuda {

/// Immutable after creation.
class DeviceExperts final : public PackedExperts {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceExperts>> Create(int32_t num_experts, int64_t rows,
                                                               int64_t cols, const WeightSource& source) {
    auto all = DeviceWeights::Create(num_experts * rows, cols, WeightUsage::kLinear, source);
    if (!all.ok()) return all.status();
    return std::unique_ptr<DeviceExperts>(new DeviceExperts(num_experts, rows, *std::move(all)));
  }
  /// kInvalidArgument when the weights were made by a backend of another kind.
  static absl::StatusOr<const DeviceExperts*> From(const PackedExperts& experts) {
    return OfOwnKind<DeviceExperts>(experts, "the PackedExperts were");
  }

  int32_t num_experts() const override { return num_experts_; }
  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return all_->cols(); }
  /// bf16 [num_experts * rows, cols]
  ConstMatrixView view() const { return all_->view(); }

 private:
  DeviceExperts(int32_t num_experts, int64_t rows, std::unique_ptr<DeviceWeights> all)
      : num_experts_(num_experts), rows_(rows), all_(std::move(all)) {}
  const int32_t num_experts_;
  const int64_t rows_;
  const std::unique_ptr<DeviceWeights> all_;
};

}  // namespace kvblend::kernels::cuda
