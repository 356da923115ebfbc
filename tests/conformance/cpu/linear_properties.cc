#include "tests/conformance/cpu/linear_properties.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cpu/linear/code_products.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {

void FillWithWhatIsNotFinite(Tensor& x) {
  x.Fill([](int64_t row, int64_t col) {
    if (row == 3) return col == 95 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    if (row == 4) return col == 0 ? -std::numeric_limits<float>::infinity() : 1.0f;
    if (row == 5) return 1e-40f;
    return row % 2 == 0 ? 0.0f : 1.0f;
  });
}

void ExpectNotFiniteInItsRow(const Tensor& out, int64_t num_rows, int64_t num_outputs) {
  for (int64_t r = 0; r < num_rows; ++r) {
    SCOPED_TRACE(testing::Message() << "row " << r << " of " << num_rows);
    for (int64_t o = 0; o < num_outputs; ++o) {
      if (r == 3 || r == 4) {
        ASSERT_TRUE(std::isnan(out.at(r, o)));
      } else if (r % 2 == 0) {
        ASSERT_EQ(out.at(r, o), 0);
      } else {
        ASSERT_TRUE(std::isfinite(out.at(r, o)));
      }
    }
  }
}

Expected WideProduct(int64_t cols, const std::function<double(int64_t)>& activation,
                     const std::function<double(int64_t)>& weight,
                     const std::function<double(int64_t)>& largest_weight) {
  double sum = 0, bound = 0;
  for (int64_t first = 0, group = WideGroup(cols); first < cols; first += group) {
    double activations = 0, weights = 0, largest_activation = 0, largest = 0;
    const int64_t end = std::min(first + group, cols);
    for (int64_t c = first; c < end; ++c) {
      sum += activation(c) * weight(c);
      activations += std::abs(activation(c));
      weights += std::abs(weight(c));
      largest_activation = std::max(largest_activation, std::abs(activation(c)));
      largest = std::max(largest, largest_weight(c));
    }
    const double half_activation = largest_activation / (2 * kLargestRowCode<WideCode>),
                 half_weight = largest / (2 * kLargestWideWeight);
    bound += half_activation * weights + half_weight * activations +
             static_cast<double>(end - first) * half_activation * half_weight +
             0x1p-20 * largest * activations;
  }
  return {sum, 1.001 * bound};
}

void ExpectSameProducts(Rng& rng, const WayToMultiply& one, const WayToMultiply& other,
                        const WeightSource& weights, int64_t num_rows, int64_t num_cols,
                        int64_t num_outputs) {
  std::normal_distribution<float> normal;
  std::vector<float> input(num_rows * num_cols);
  for (float& value : input) value = normal(rng);
  std::vector<Tensor> outs;
  for (const auto& [backend, usage] : {one, other}) {
    const auto packed = backend->PackWeights(num_outputs, num_cols, usage, weights);
    ASSERT_OK(packed.status());
    Tensor x(*backend, kF32, num_rows, num_cols), out(*backend, kF32, num_rows, num_outputs);
    x.Fill([&](int64_t row, int64_t col) { return input[row * num_cols + col]; });
    ASSERT_OK(backend->Linear(TestStream(*backend), x.view(), **packed, false, out.view()));
    out.Download();
    outs.push_back(std::move(out));
  }
  ExpectElements(outs[0], [&](int64_t r, int64_t o) -> Expected { return {outs[1].at(r, o), 0}; });
}

void ExpectSameInParts(Backend& backend, const PackedWeights& weights, Tensor& x, int64_t num_outputs,
                       std::initializer_list<int64_t> parts) {
  const int64_t rows = x.rows();
  Tensor all(backend, kF32, rows, num_outputs), some(backend, kF32, rows, num_outputs);
  const auto begin = [](int64_t row, int64_t col) { return static_cast<float>(row - col) / 7; };
  for (const bool accumulate : {false, true}) {
    all.Fill(begin);
    ASSERT_OK(backend.Linear(TestStream(backend), x.view(), weights, accumulate, all.view()));
    all.Download();
    some.Fill(begin);
    int64_t first = 0;
    for (const int64_t count : parts) {
      ASSERT_OK(backend.Linear(TestStream(backend), ConstMatrixView(x.view()).Rows(first, count), weights,
                               accumulate, some.view().Rows(first, count)));
      first += count;
    }
    ASSERT_EQ(first, rows);
    ExpectElements(some, [&](int64_t r, int64_t o) -> Expected { return {all.at(r, o), 0}; });
  }
}

void ExpectSameBesideOtherFormats(Backend& backend) {
  constexpr int64_t kCols = 64, kOutputs = 50, kRows = 2;
  Rng rng(20261127);
  for (const auto& [first, second] : {std::pair{1, 4}, {4, 1}, {5, 0}, {6, 5}}) {
    SCOPED_TRACE(testing::Message() << "formats " << first << " and " << second);
    const auto formats = std::pair(kFormats[first], kFormats[second]);
    const RandomCodes source(rng, 2 * kOutputs, kCols,
                             [&](int64_t row) { return row < kOutputs ? formats.first : formats.second; });
    const auto experts = backend.PackExperts(2, kOutputs, kCols, source);
    ASSERT_OK(experts.status());
    Tensor x(backend, kF32, kRows, kCols);
    x.Randomize(rng);
    const auto product = [&](std::vector<int32_t> chosen) {
      Tensor out(backend, kF32, kRows, kOutputs);
      EXPECT_OK(
          backend.ExpertLinear(TestStream(backend), x.view(), **experts, {chosen.data(), kRows}, out.view()));
      std::vector<double> values = out.Values();
      values.resize(kOutputs);  // of the first row
      return values;
    };
    EXPECT_EQ(product({0, 1}), product({0, 0}));
  }
}

}  // namespace kvblend::kernels
