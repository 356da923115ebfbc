// Products with packed weights: which way is fastest depends on the number of rows, on whether the weights
// are quantized, and on what the processor can do.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear/packed_weights.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/specs.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// How a product is multiplied; the functions below have one each.
enum class LinearWay : uint8_t { kFewRows, kTiles, kOneDnn, kInt8, kAsymmetric, kInt16 };
/// The way of a product with so many rows, which depends on nothing else.
LinearWay WayOfLinear(const CpuContext& context, int64_t num_rows, const CpuWeights& weights);

/// Backend::Linear with checked arguments. REQUIRES: a OneDnnThreadScope.
absl::Status CpuLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                       MatrixView out);

// Its ways. REQUIRES: x.rows > 0.

/// Reads the weights once, as they lie, from memory. REQUIRES: x.rows <= simd::kMaxMatVecRows, or
/// simd::kMaxQuantizedRows where they are quantized.
absl::Status FewRowsLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                           MatrixView out);
/// Own tiles, block by block of weights. REQUIRES: tiles.dtype == weights.dtype().
absl::Status TiledLinear(CpuContext& context, const Tiles& tiles, ConstMatrixView x,
                         const CpuWeights& weights, bool accumulate, MatrixView out);
/// TiledLinear's way where tiles.linear_pair is not null: in pairs of columns of weights.
absl::Status PairedLinear(CpuContext& context, const Tiles& tiles, ConstMatrixView x,
                          const CpuWeights& weights, bool accumulate, MatrixView out);
/// Backend::GatedLinear with checked arguments, whose results are made while their two sums are in the
/// first-level cache. REQUIRES: TakesGatedPairs.
absl::Status PairedGatedLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                               Activation activation, MatrixView out);
/// Whether gate and up are multiplied in pairs, and have whole columns of weights.
bool TakesGatedPairs(const CpuContext& context, int64_t num_rows, const CpuWeights& weights);
absl::Status OneDnnLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                          MatrixView out);
/// Rows of x rounded to 8 bits in groups (code_products.h), any number of them; a row's result does not
/// depend on the others. REQUIRES: context.codes and weights.quantized() are not null.
absl::Status Int8Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                        MatrixView out);

/// Whether weights tolerate asymmetric codes of 8 bits, and there are such kernels for them.
bool HasAsymmetricCodes(const CpuContext& context, const CpuWeights& weights);
/// The same in asymmetric codes. REQUIRES: HasAsymmetricCodes
absl::Status AsymmetricLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                              bool accumulate, MatrixView out);
/// Whether gate and up are multiplied in asymmetric codes, and have whole blocks of weights.
bool TakesGatedAsymmetricCodes(const CpuContext& context, int64_t num_rows, const CpuWeights& weights);
/// Backend::GatedLinear with checked arguments in asymmetric codes, whose results are made while their two
/// sums are in a cache; bit for bit those of AsymmetricLinear and GatedActivation.
/// REQUIRES: TakesGatedAsymmetricCodes
absl::Status AsymmetricGatedLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                                   Activation activation, MatrixView out);

/// The same with rows of x rounded to 16 bits, up to weights.rows_as_alone() rows; more of them are
/// WideInt16Linear's.
/// REQUIRES: weights.quantized() is not null, and neither is context.pairs or, for so few rows,
/// context.few_pairs.
absl::Status Int16Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                         MatrixView out);
/// In wide groups (code_products.h), any number of rows; a row's result does not depend on the others.
/// REQUIRES: as Int16Linear.
absl::Status WideInt16Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                             bool accumulate, MatrixView out);

/// In how many parts so many rows are multiplied, each of which prepares a block's weights for itself: of
/// `most` rows at most, and the same number for every thread where there are enough.
inline int64_t RowTasks(const ThreadPool& pool, int64_t rows, int64_t most) {
  const int64_t tasks = (rows + most - 1) / most, threads = pool.num_threads();
  return tasks < threads ? tasks : RoundUp(tasks, threads);
}

inline absl::Status NoMemoryForLinear(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("Linear: no memory for ", what));
}

}  // namespace kvblend::kernels
