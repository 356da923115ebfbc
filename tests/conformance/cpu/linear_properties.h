// What products hold whose activations are codes, of however many bits.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {

/// Rows 3 and 4 with one element that is not finite, row 5 of values that have no inverse, the others of zeros or ones.
void FillWithWhatIsNotFinite(Tensor& x);

/// out: the product of such rows, downloaded. What is not finite shows throughout its own row and in no other.
void ExpectNotFiniteInItsRow(const Tensor& out, int64_t num_rows, int64_t num_outputs);

/// A row's result is bit for bit the same, alone, beside others or with a prompt's rows. x: 100 rows.
void ExpectRowsAsAlone(Backend& backend, const PackedWeights& weights, Tensor& x, int64_t num_outputs);

}  // namespace kvblend::kernels
