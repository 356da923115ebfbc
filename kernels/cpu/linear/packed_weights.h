// Weight matrices as the CPU backend keeps them: as the codes of the model file where those are quantized
// (quantized_matrix.h), otherwise as panels of output features, each in oneDNN's layout, and rows for
// embeddings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/linear/quantized_matrix.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/cpu/machine/weight_arena.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {

/// Output features [first, first + count) of a matrix, for oneDNN.
struct WeightPanel {
  int64_t first;
  int64_t count;
  dnnl::memory memory;  // only ever read
};

/// A matrix in blocks (onednn.h), as a whole and in panels that several threads can share.
struct WeightPanels {
  /// `data`: PackedGemmDesc(dtype, cols, rows) bytes, written afterwards; not owned. Throws dnnl::error.
  static WeightPanels Over(DataType dtype, int64_t rows, int64_t cols, std::byte* data);
  static int64_t Bytes(DataType dtype, int64_t rows, int64_t cols);

  WeightPanel all;
  std::vector<WeightPanel> panels;
};

/// Immutable after creation, so any number of threads may read it.
class CpuWeights final : public PackedWeights {
 public:
  /// For products in context.value_dtype; with context.codes, values of linear layers are rounded to codes of
  /// 8 bits in groups of 32 inputs where that can be done. REQUIRES: a OneDnnThreadScope.
  static absl::StatusOr<std::unique_ptr<CpuWeights>> Create(CpuContext& context, int64_t rows, int64_t cols,
                                                            WeightUsage usage, const WeightSource& source);
  /// kInvalidArgument when the weights were made by a backend of another kind or with another GEMM dtype.
  static absl::StatusOr<const CpuWeights*> From(const PackedWeights& weights, DataType dtype);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightUsage usage() const override { return usage_; }
  int64_t rows_as_alone() const override {
    if (quantized_ == nullptr) return simd::kMaxMatVecRows;
    return in_8_bits_ ? PackedWeights::rows_as_alone() : simd::kMaxQuantizedRows;
  }
  DataType dtype() const { return dtype_; }

  /// Null where the weights are kept as values.
  const QuantizedMatrix* quantized() const { return quantized_.get(); }
  /// REQUIRES: quantized() == nullptr
  const WeightPanels& panels() const { return panels_; }

  /// kPackedBlock outputs as [steps][kPackedBlock] words of dtype() (tiles.h): where they lie, or dequantized
  /// into `scratch` of as many words.
  const uint32_t* Block(int64_t index, uint32_t* scratch) const;

  /// kColumnOutputs outputs as [steps] rows of words, *stride apart: where they lie, or dequantized into
  /// `scratch` of steps * kColumnOutputs words. Zeros behind the last output.
  const uint32_t* Column(int64_t index, uint32_t* scratch, int64_t* stride) const;

  /// Row `index` of an embedding as f32; out: [cols]
  void ReadEmbeddingRow(int64_t index, float* out) const;

 private:
  CpuWeights(int64_t rows, int64_t cols, WeightUsage usage, const CpuContext& context)
      : rows_(rows),
        cols_(cols),
        usage_(usage),
        dtype_(context.value_dtype),
        in_8_bits_(context.codes != nullptr) {}
  absl::Status PackValues(CpuContext& context, const WeightSource& source);

  const int64_t rows_, cols_;
  const WeightUsage usage_;
  const DataType dtype_;
  const bool in_8_bits_;  // products, where the weights are kept as codes
  std::unique_ptr<QuantizedMatrix> quantized_;
  WeightBytes embedding_, packed_;
  WeightPanels panels_;
};

}  // namespace kvblend::kernels
