#include "engine/kv/fits/leading_directions.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

namespace kvblend::kv {
namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;

/// T - shift, T symmetric and tridiagonal, as L U with rows swapped where that makes pivots larger.
class ShiftedTridiagonal {
 public:
  /// `least` (> 0) replaces smaller pivots, which a shift that is an eigenvalue brings about.
  ShiftedTridiagonal(const Vector& diagonal, const Vector& beside, double shift, double least)
      : pivots_(diagonal.array() - shift),
        first_(beside),
        second_(Vector::Zero(beside.size())),
        factors_(beside.size()),
        swapped_(beside.size()) {
    const int64_t size = pivots_.size();
    const auto at_least = [least](double& pivot) {
      if (std::abs(pivot) < least) pivot = std::copysign(least, pivot);
    };
    for (int64_t i = 0; i + 1 < size; ++i) {
      const double below = beside[i];
      swapped_[i] = std::abs(below) > std::abs(pivots_[i]);
      if (swapped_[i]) {
        factors_[i] = pivots_[i] / below;
        pivots_[i] = below;
        const double next = std::exchange(first_[i], pivots_[i + 1]);
        pivots_[i + 1] = next - factors_[i] * first_[i];
        if (i + 2 < size) {
          second_[i] = first_[i + 1];
          first_[i + 1] *= -factors_[i];
        }
      } else {
        at_least(pivots_[i]);
        factors_[i] = below / pivots_[i];
        pivots_[i + 1] -= factors_[i] * first_[i];
      }
    }
    at_least(pivots_[size - 1]);
  }

  void Solve(Vector& x) const {
    const int64_t size = pivots_.size();
    for (int64_t i = 0; i + 1 < size; ++i) {
      if (swapped_[i]) std::swap(x[i], x[i + 1]);
      x[i + 1] -= factors_[i] * x[i];
    }
    for (int64_t i = size - 1; i >= 0; --i) {
      if (i + 1 < size) x[i] -= first_[i] * x[i + 1];
      if (i + 2 < size) x[i] -= second_[i] * x[i + 2];
      x[i] /= pivots_[i];
    }
  }

 private:
  Vector pivots_, first_, second_;  // of U: its diagonals
  Vector factors_;                  // of L
  std::vector<bool> swapped_;
};

}  // namespace

std::optional<LeadingDirections> FindLeadingDirections(absl::Span<const double> matrix, int64_t size,
                                                       int32_t count, absl::FunctionRef<bool()> keep_going) {
  const Eigen::Map<const Matrix> given(matrix.data(), size, size);
  // So that squares neither underflow nor overflow.
  const double largest = given.cwiseAbs().maxCoeff();
  const double scale = largest >= std::numeric_limits<double>::min() ? largest : 1;
  const Eigen::Tridiagonalization<Matrix> tridiagonal(given / scale);
  if (!keep_going()) return std::nullopt;
  const Vector diagonal = tridiagonal.diagonal(), beside = tridiagonal.subDiagonal();
  Eigen::SelfAdjointEigenSolver<Matrix> solver;
  solver.computeFromTridiagonal(diagonal, beside, Eigen::EigenvaluesOnly);
  if (!keep_going()) return std::nullopt;
  const Vector values = solver.eigenvalues().reverse().head(count);  // they are ascending

  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  const double norm = diagonal.cwiseAbs().maxCoeff() + (size > 1 ? 2 * beside.cwiseAbs().maxCoeff() : 0.0);
  const double least = kEpsilon * std::max(norm, 1.0);
  Matrix vectors(size, count);
  std::minstd_rand random(1);
  double shift = std::numeric_limits<double>::infinity();
  for (int32_t j = 0; j < count; ++j) {
    // Equal shifts would give equal vectors, of which orthogonalization leaves only rounding errors.
    shift = std::min(values[j], shift - 10 * least);
    const ShiftedTridiagonal shifted(diagonal, beside, shift, least);
    Vector x(size);
    for (double& value : x) value = static_cast<double>(random()) / std::minstd_rand::max() - 0.5;
    const auto before = vectors.leftCols(j);
    const auto make_orthonormal = [&] {
      x.normalize();
      for (int i = 0; i < 2; ++i) x -= before * (before.transpose() * x);
      x.normalize();
    };
    make_orthonormal();
    constexpr int kIterations = 4;  // the first one is nearly always enough
    for (int i = 0; i < kIterations; ++i) {
      shifted.Solve(x);
      make_orthonormal();
    }
    vectors.col(j) = x;
  }
  LeadingDirections leading{.values = std::vector<double>(count),
                            .vectors = std::vector<double>(size * count)};
  Eigen::Map<Vector>(leading.values.data(), count) = scale * values;
  Eigen::Map<Matrix>(leading.vectors.data(), size, count) = tridiagonal.matrixQ() * vectors;
  return leading;
}

}  // namespace kvblend::kv
