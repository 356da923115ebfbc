// What products hold whose activations are codes, of however many bits.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>

#include "kernels/backend.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {

/// Rows 3 and 4 with one element that is not finite, row 5 of values that have no inverse, the others of
/// zeros or ones.
void FillWithWhatIsNotFinite(Tensor& x);

/// out: the product of such rows, downloaded. What is not finite shows throughout its own row and in no
/// other.
void ExpectNotFiniteInItsRow(const Tensor& out, int64_t num_rows, int64_t num_outputs);

/// The product of a row of activations and one of weights, and how far off it may be in wide groups
/// (code_products.h): `largest_weight` gives the largest magnitude that a code would stand for there.
Expected WideProduct(int64_t cols, const std::function<double(int64_t col)>& activation,
                     const std::function<double(int64_t col)>& weight,
                     const std::function<double(int64_t col)>& largest_weight);

/// A row's result is bit for bit the same in the product of all rows and in those of some of them after the
/// other, so many at a time. x: as many rows as that are together.
void ExpectSameInParts(Backend& backend, const PackedWeights& weights, Tensor& x, int64_t num_outputs,
                       std::initializer_list<int64_t> parts);

/// A backend, and what it packs weights for.
struct WayToMultiply {
  Backend* backend;
  WeightUsage usage = WeightUsage::kLinear;
};
/// Rows of normal values have bit for bit the same products with `weights` in both ways.
void ExpectSameProducts(Rng& rng, const WayToMultiply& one, const WayToMultiply& other,
                        const WeightSource& weights, int64_t num_rows, int64_t num_cols, int64_t num_outputs);

/// A row that goes to an expert of one format has the same bits whether its neighbour goes there too, or to
/// one of another format.
void ExpectSameBesideOtherFormats(Backend& backend);

}  // namespace kvblend::kernels
