// The largest eigenvalues of a symmetric matrix and their vectors: of hundreds or thousands only a few, which
// takes a fraction of what all of them take. The matrix is made tridiagonal (Householder), the eigenvalues
// are found by QR steps without vectors, and each vector by inverse iteration, orthogonal to those before it
// (G. Golub, C. Van Loan: "Matrix computations", 1996, sections 8.3 and 8.2.2).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace kvblend::kv {

struct LeadingDirections {
  std::vector<double> values;   // [count], descending
  std::vector<double> vectors;  // [count, size], orthonormal
};

/// `matrix`: [size, size], symmetric. What is not finite gives what is not finite. keep_going is asked
/// between steps, of which the first takes nearly all of the time; false ends it with nothing. REQUIRES: 1 <=
/// count <= size
std::optional<LeadingDirections> FindLeadingDirections(absl::Span<const double> matrix, int64_t size,
                                                       int32_t count, absl::FunctionRef<bool()> keep_going);

}  // namespace kvblend::kv
