// Weight matrices as the CPU backend keeps them: panels of output features, each in oneDNN's layout, and rows
// for embeddings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

/// Immutable after creation, so any number of threads may read it.
class CpuWeights final : public PackedWeights {
 public:
  /// Output features [first, first + count) of W: a part of all().
  struct Panel {
    int64_t first;
    int64_t count;
    dnnl::memory memory;  // only ever read
  };

  /// `dtype`: kF32 or kBF16, in which the products are computed. REQUIRES: a OneDnnThreadScope.
  static absl::StatusOr<std::unique_ptr<CpuWeights>> Create(int64_t rows, int64_t cols, WeightUsage usage,
                                                            DataType dtype, RowReader reader);
  /// kInvalidArgument when the weights were made by a backend of another kind or with another GEMM dtype.
  static absl::StatusOr<const CpuWeights*> From(const PackedWeights& weights, DataType dtype);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightUsage usage() const override { return usage_; }
  DataType dtype() const { return dtype_; }
  /// All output features; for few rows better taken in panels, which several threads can share.
  const Panel& all() const { return all_; }
  const std::vector<Panel>& panels() const { return panels_; }

  /// Row `index` of an embedding, [cols] of dtype().
  const void* embedding_row(int64_t index) const { return embedding_.get() + index * cols_ * SizeOf(dtype_); }

 private:
  struct HugeDelete {
    void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{kHugePage}); }
  };
  using HugeBytes = std::unique_ptr<std::byte[], HugeDelete>;
  static constexpr size_t kHugePage = size_t{2} << 20;

  CpuWeights(int64_t rows, int64_t cols, WeightUsage usage, DataType dtype)
      : rows_(rows), cols_(cols), usage_(usage), dtype_(dtype) {}
  static HugeBytes AllocateHuge(int64_t bytes);
  absl::Status LayOut();
  absl::Status Pack(RowReader reader);

  const int64_t rows_, cols_;
  const WeightUsage usage_;
  const DataType dtype_;
  HugeBytes embedding_, packed_;
  Panel all_{0, 0, {}};
  std::vector<Panel> panels_;
};

}  // namespace kvblend::kernels
