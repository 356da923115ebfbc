#include "engine/blend/costs/pass_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvblend::blend {
namespace {

constexpr int kTerms = 3;
using Terms = std::array<double, kTerms>;

/// One measurement, divided by its time: the terms' shares should add up to 1.
struct Equation {
  Terms shares;
  double weight = 1;

  double Error(const Terms& cost) const {
    double sum = -1;
    for (int i = 0; i < kTerms; ++i) sum += shares[i] * cost[i];
    return sum;
  }
};

/// The cost with the least weighted squared error that has only the terms in `subset`; nothing when the
/// equations can't tell the terms apart, or one would be negative.
std::optional<Terms> Solve(const std::vector<Equation>& equations, const std::vector<int>& subset) {
  const int n = static_cast<int>(subset.size());
  double matrix[kTerms][kTerms + 1] = {};
  for (const Equation& equation : equations) {
    for (int row = 0; row < n; ++row) {
      const double left = equation.weight * equation.shares[subset[row]];
      for (int column = 0; column < n; ++column)
        matrix[row][column] += left * equation.shares[subset[column]];
      matrix[row][n] += left;
    }
  }
  // Terms differ by many orders of magnitude; scaled to a diagonal of ones they can be compared.
  double scale[kTerms];
  for (int i = 0; i < n; ++i) {
    if (!(matrix[i][i] > 0)) return std::nullopt;
    scale[i] = 1 / std::sqrt(matrix[i][i]);
  }
  for (int row = 0; row < n; ++row) {
    for (int column = 0; column < n; ++column) matrix[row][column] *= scale[row] * scale[column];
    matrix[row][n] *= scale[row];
  }
  for (int pivot = 0; pivot < n; ++pivot) {  // positive definite: no exchange of rows
    if (matrix[pivot][pivot] < 1e-6) return std::nullopt;
    for (int row = pivot + 1; row < n; ++row) {
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (int column = pivot; column <= n; ++column) matrix[row][column] -= factor * matrix[pivot][column];
    }
  }
  Terms cost{};
  for (int row = n - 1; row >= 0; --row) {
    double value = matrix[row][n];
    for (int column = row + 1; column < n; ++column) value -= matrix[row][column] * cost[subset[column]];
    cost[subset[row]] = value / matrix[row][row];
  }
  for (int i = 0; i < n; ++i) {
    cost[subset[i]] *= scale[i];
    if (!(cost[subset[i]] >= 0)) return std::nullopt;
  }
  return cost;
}

/// The non-negative least squares by trying every set of terms; of sets that are as good, the smaller.
Terms SolveNonNegative(const std::vector<Equation>& equations) {
  // Tokens alone explain a single measurement best.
  static const std::vector<std::vector<int>> kSubsets = {{1}, {2}, {0}, {1, 2}, {0, 1}, {0, 2}, {0, 1, 2}};
  double total_weight = 0;
  for (const Equation& equation : equations) total_weight += equation.weight;
  Terms best{};
  double best_error = std::numeric_limits<double>::infinity();
  for (const std::vector<int>& subset : kSubsets) {
    const std::optional<Terms> cost = Solve(equations, subset);
    if (!cost.has_value()) continue;
    double error = 0;
    for (const Equation& equation : equations) {
      error += equation.weight * equation.Error(*cost) * equation.Error(*cost);
    }
    error /= total_weight;
    constexpr double kNoise = 1e-8;  // squared relative error
    if (error < best_error - kNoise) {
      best_error = error;
      best = *cost;
    }
  }
  return best;
}

}  // namespace

void PassCostFit::Add(const PassSize& size, double layer_seconds) {
  if (!(size.rows > 0) || !(size.visible_keys > 0) || !(layer_seconds > 0)) return;
  const Bucket bucket(std::ilogb(size.rows), std::ilogb(size.visible_keys / size.rows) / 2);
  std::vector<Sample>& samples = buckets_[bucket];
  if (samples.size() == kSamplesPerBucket) samples.erase(samples.begin());
  samples.push_back({size, layer_seconds, count_++});
}

std::optional<PassCost> PassCostFit::Fit() const {
  std::vector<Equation> equations;
  std::vector<double> age_weights;
  for (const auto& [bucket, samples] : buckets_) {
    for (const Sample& sample : samples) {
      equations.push_back({{1 / sample.layer_seconds, sample.size.rows / sample.layer_seconds,
                            sample.size.visible_keys / sample.layer_seconds}});
      age_weights.push_back(std::exp2(static_cast<double>(sample.number - count_) / kHalfLife));
    }
  }
  if (equations.empty()) return std::nullopt;
  for (size_t i = 0; i < equations.size(); ++i) equations[i].weight = age_weights[i];
  Terms cost = SolveNonNegative(equations);
  // Huber's weights: errors beyond what is usual count linearly, not squared.
  for (int round = 0; round < 5; ++round) {
    std::vector<double> errors;
    errors.reserve(equations.size());
    for (const Equation& equation : equations) errors.push_back(std::abs(equation.Error(cost)));
    std::vector<double> sorted = errors;
    std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
    const double usual = std::max(0.02, 1.5 * sorted[sorted.size() / 2]);
    for (size_t i = 0; i < equations.size(); ++i) {
      equations[i].weight = age_weights[i] * std::min(1.0, usual / std::max(errors[i], 1e-12));
    }
    cost = SolveNonNegative(equations);
  }
  return PassCost{cost[0], cost[1], cost[2]};
}

}  // namespace kvblend::blend
