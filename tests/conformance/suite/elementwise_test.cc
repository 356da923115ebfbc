// Embed, Linear, RmsNorm, GatedActivation, AddScaled, SoftCap and GatherRows of every backend against double
// precision.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/conformance/activations.h"
#include "tests/conformance/harness.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

class ElementwiseConformance : public ConformanceTest {};

struct Shape {
  int64_t rows, cols, extra_stride;
};
const Shape kShapes[] = {{0, 8, 0},  {1, 1, 0},  {1, 576, 0},   {3, 17, 5},
                         {2, 15, 0}, {7, 64, 1}, {65, 1536, 0}, {300, 96, 32}};

TEST_P(ElementwiseConformance, RmsNorm) {
  for (const DataType out_dtype : OutputTypes()) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(absl::StrCat(s.rows, " x ", s.cols, " to ", std::string(Name(out_dtype))));
      Tensor x(backend, kF32, s.rows, s.cols, s.cols + s.extra_stride), weight = Random(1, s.cols);
      Tensor out(backend, out_dtype, s.rows, s.cols, s.cols + 2 * s.extra_stride);
      x.Randomize(rng, 3.0);
      const float epsilon = 1e-5f;
      ASSERT_OK(backend.RmsNorm(stream, x.view(), weight.view(), epsilon, out.view()));
      std::vector<double> mean_squares(s.rows);
      for (int64_t r = 0; r < s.rows; ++r) {
        for (int64_t c = 0; c < s.cols; ++c) mean_squares[r] += x.at(r, c) * x.at(r, c) / s.cols;
      }
      const auto expected = [&](int64_t r, int64_t c) -> Expected {
        const double value = x.at(r, c) / std::sqrt(mean_squares[r] + epsilon) * weight.at(0, c);
        return {value,
                std::abs(value) * ((std::sqrt(s.cols) + 6) * 0x1p-24 + UnitRoundoff(out_dtype)) + 1e-30};
      };
      ExpectElements(out, expected);
      if (out_dtype != kF32) continue;
      ASSERT_OK(backend.RmsNorm(stream, x.view(), weight.view(), epsilon, x.view()));  // in place
      ExpectElements(x, expected);
    }
  }
}

// Heads of a row, each normalised on its own, in place and in the columns of a wider row.
TEST_P(ElementwiseConformance, RmsNormOfHeads) {
  struct Heads {
    int64_t rows, heads, head_dim;
  };
  for (const Heads& s : {Heads{0, 2, 8}, {1, 1, 5}, {3, 4, 6}, {9, 3, 64}, {40, 5, 128}, {2, 2, 256}}) {
    SCOPED_TRACE(absl::StrCat(s.rows, " x ", s.heads, " x ", s.head_dim));
    const int64_t cols = s.heads * s.head_dim;
    Tensor wide(backend, kF32, s.rows, cols + 8), weight = Random(1, s.head_dim);
    wide.Randomize(rng, 3.0);
    const MatrixView x = wide.view().Columns(8, cols);
    const float epsilon = 1e-6f;
    std::vector<double> mean_squares(s.rows * s.heads);
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        mean_squares[r * s.heads + c / s.head_dim] += wide.at(r, 8 + c) * wide.at(r, 8 + c) / s.head_dim;
      }
    }
    ASSERT_OK(backend.RmsNorm(stream, x, weight.view(), epsilon, x));
    ExpectElements(wide, [&](int64_t r, int64_t c) -> Expected {
      if (c < 8) return {wide.at(r, c), 0};
      const double inverse = 1 / std::sqrt(mean_squares[r * s.heads + (c - 8) / s.head_dim] + epsilon);
      const double value = wide.at(r, c) * inverse * weight.at(0, (c - 8) % s.head_dim);
      return {value, std::abs(value) * (std::sqrt(s.head_dim) + 6) * 0x1p-24 + 1e-30};
    });
  }
}

TEST_P(ElementwiseConformance, GatedActivation) {
  for (const Activation activation : kActivations) {
    for (const DataType out_dtype : OutputTypes()) {
      for (const Shape& s : kShapes) {
        SCOPED_TRACE(absl::StrCat(s.rows, " x ", s.cols, " to ", std::string(Name(out_dtype)),
                                  ", activation ", static_cast<int>(activation)));
        // gate and up are the two halves of one product, as the model computes them.
        Tensor both(backend, kF32, s.rows, 2 * s.cols, 2 * s.cols + s.extra_stride);
        Tensor out(backend, out_dtype, s.rows, s.cols, s.cols + s.extra_stride);
        both.Randomize(rng, activation == Activation::kGeluTanh ? 2.0 : 8.0);
        const MatrixView gate = both.view().Columns(0, s.cols), up = both.view().Columns(s.cols, s.cols);
        ASSERT_OK(backend.GatedActivation(stream, activation, gate, up, out.view()));
        const auto expected = [&](int64_t r, int64_t c) -> Expected {
          const double z = both.at(r, c), up = both.at(r, s.cols + c), value = Activated(activation, z, up);
          // An exponent t is rounded, which changes exp(-t) by a factor of 1 + |t| u: GELU's grows with z^3.
          const double exponent = activation == Activation::kGeluTanh
                                      ? std::abs(1.6 * z + 0.08 * z * z * z)
                                      : (activation == Activation::kSilu ? 1 : 1.702) * std::abs(z);
          const double u = 8 * 0x1p-24 + 4 * exponent * 0x1p-24 + RoundoffOfGated(out_dtype);
          return {value, std::abs(value) * u + 1e-30};
        };
        ExpectElements(out, expected);
        if (out_dtype != kF32) continue;
        ASSERT_OK(backend.GatedActivation(stream, activation, gate, up, gate));  // in place
        ExpectElements(both, [&](int64_t r, int64_t c) -> Expected {
          return c < s.cols ? expected(r, c) : Expected{both.at(r, c), 0};
        });
      }
    }
  }
}

TEST_P(ElementwiseConformance, GatedActivationOfExtremes) {
  const float big = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> gates = {0.0f, -0.0f, 100.0f, -100.0f, 1000.0f, -1000.0f, big, infinity};
  const std::vector<double> expected = {0, 0, 100, 0, 1000, 0, big, infinity};
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    Tensor gate(backend, kF32, 1, gates.size()), up(backend, kF32, 1, gates.size());
    Tensor out(backend, kF32, 1, gates.size());
    gate.Fill([&](int64_t, int64_t c) { return gates[c]; });
    up.Fill([](int64_t, int64_t) { return 1.0f; });
    ASSERT_OK(backend.GatedActivation(stream, activation, gate.view(), up.view(), out.view()));
    ExpectElements(out, [&](int64_t, int64_t c) -> Expected {
      return {expected[c], std::abs(expected[c]) * 1e-6 + 1e-34};
    });
  }
}

// Both the gate and what it gates stop at their limits, the gate at the upper one alone.
TEST_P(ElementwiseConformance, GatedActivationThatIsClamped) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> gates = {7, 8, 1000, infinity, 0, -1000, 7, 7, 7, 7, 7},
                           ups = {0, 0, 0, 0, 5, 5, 7, 9, infinity, -9, -1};
  Tensor gate(backend, kF32, 1, gates.size()), up(backend, kF32, 1, gates.size());
  Tensor out(backend, kF32, 1, gates.size());
  gate.Fill([&](int64_t, int64_t c) { return gates[c]; });
  up.Fill([&](int64_t, int64_t c) { return ups[c]; });
  ASSERT_OK(backend.GatedActivation(stream, Activation::kClampedSilu, gate.view(), up.view(), out.view()));
  const double full = 7 / (1 + std::exp(-7 * 1.702));
  const std::vector<double> expected = {full,     full,     full,     full,      0, 0,
                                        8 * full, 8 * full, 8 * full, -6 * full, 0};
  ExpectElements(out, [&](int64_t, int64_t c) -> Expected {
    return {expected[c], std::abs(expected[c]) * 1e-6 + 1e-34};
  });
}

// Also where limits hold values back.
TEST_P(ElementwiseConformance, NaNStaysNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t cols : {1, 3, 40}) {
    const auto row_of = [&](float value) {
      Tensor row(backend, kF32, 1, cols);
      row.Fill([=](int64_t, int64_t c) { return c % 3 == 0 ? value : 1.0f; });
      return row;
    };
    const auto expect_nan = [&](Tensor& row) {
      row.Download();
      for (int64_t c = 0; c < cols; ++c) EXPECT_EQ(std::isnan(row.at(0, c)), c % 3 == 0) << c;
    };
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSilu}) {
      for (const DataType out_dtype : OutputTypes()) {
        for (const bool in_gate : {false, true}) {
          SCOPED_TRACE(
              absl::StrCat("activation ", static_cast<int>(activation), in_gate ? ", gate" : ", up"));
          Tensor gate = row_of(in_gate ? nan : 1.0f), up = row_of(in_gate ? 1.0f : nan);
          Tensor out(backend, out_dtype, 1, cols);
          ASSERT_OK(backend.GatedActivation(stream, activation, gate.view(), up.view(), out.view()));
          expect_nan(out);
        }
      }
    }
    Tensor capped = row_of(nan);
    ASSERT_OK(backend.SoftCap(stream, 30.0f, capped.view()));
    expect_nan(capped);
  }
}

TEST_P(ElementwiseConformance, AddScaled) {
  for (const Shape& s : kShapes) {
    for (const bool one_row : {false, true}) {
      SCOPED_TRACE(absl::StrCat(s.rows, " x ", s.cols, one_row ? ", a bias" : ""));
      Tensor x = Random(one_row ? 1 : s.rows, s.cols, s.cols + s.extra_stride);
      Tensor out = Random(s.rows, s.cols, s.cols + 2 * s.extra_stride);
      ASSERT_OK(backend.AddScaled(stream, x.view(), 0.7f, out.view()));
      ExpectElements(out, [&](int64_t r, int64_t c) -> Expected {
        const double before = out.at(r, c), added = static_cast<double>(0.7f) * x.at(one_row ? 0 : r, c);
        return {before + added, (std::abs(before) + std::abs(added)) * 0x1p-23};
      });
    }
  }
}

TEST_P(ElementwiseConformance, SoftCap) {
  for (const Shape& s : kShapes) {
    for (const float cap : {0.01f, 1.0f, 30.0f}) {
      SCOPED_TRACE(absl::StrCat(s.rows, " x ", s.cols, ", cap ", cap));
      Tensor x(backend, kF32, s.rows, s.cols, s.cols + s.extra_stride);
      x.Randomize(rng, 3.0);
      ASSERT_OK(backend.SoftCap(stream, cap, x.view()));
      ExpectElements(x, [&](int64_t r, int64_t c) -> Expected {
        const double capped = cap * std::tanh(x.at(r, c) / cap);
        return {capped, std::abs(capped) * 8 * 0x1p-24};
      });
    }
  }
  // Far from the values that a model has.
  const std::vector<float> far = {0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, HUGE_VALF, -HUGE_VALF, NAN};
  Tensor x(backend, kF32, 1, far.size());
  x.Fill([&](int64_t, int64_t c) { return far[c]; });
  ASSERT_OK(backend.SoftCap(stream, 30.0f, x.view()));
  ExpectElements(x, [&](int64_t, int64_t c) -> Expected {
    const double capped = 30 * std::tanh(far[c] / 30.0);
    return {capped, std::abs(capped) * 8 * 0x1p-24};
  });
}

TEST_P(ElementwiseConformance, Linear) {
  std::vector<DataType> inputs = OutputTypes();
  const double u = UnitRoundoff(backend.compute_dtype());
  struct Sizes {
    int64_t out_features, in_features;
  };
  for (const Sizes& w : {Sizes{1, 1}, {5, 7}, {64, 64}, {100, 96}, {300, 33}, {520, 128}, {192, 577}}) {
    Tensor weights = Random(w.out_features, w.in_features);
    const auto packed = Pack(backend, weights, WeightUsage::kLinear);
    for (const int64_t rows : {0, 1, 3, 4, 5, 8, 33, 64, 130}) {
      for (const DataType x_dtype : inputs) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(absl::StrCat(rows, " x ", w.in_features, " to ", w.out_features, " from ",
                                    std::string(Name(x_dtype)), accumulate ? ", accumulated" : ""));
          const int64_t extra = rows % 3;  // strides with and without padding
          Tensor x(backend, x_dtype, rows, w.in_features, w.in_features + extra);
          Tensor out = Random(rows, w.out_features, w.out_features + 2 * extra);
          x.Randomize(rng);
          ASSERT_OK(backend.Linear(stream, x.view(), *packed, accumulate, out.view()));
          ExpectElements(out, [&](int64_t r, int64_t n) -> Expected {
            const double before = accumulate ? out.at(r, n) : 0;
            double sum = before, squares = 0, magnitude = std::abs(before);
            for (int64_t c = 0; c < w.in_features; ++c) {
              const double product = x.at(r, c) * weights.at(n, c);
              sum += product;
              squares += product * product;
              magnitude += std::abs(product);
            }
            // Roundings of x and W are independent; 6 u times the 2-norm of the products is 7 standard
            // deviations.
            return {sum, 6 * u * std::sqrt(squares) + (std::sqrt(w.in_features) + 4) * 0x1p-24 * magnitude +
                             1e-30};
          });
        }
      }
    }
  }
}

TEST_P(ElementwiseConformance, EmbedAndTiedWeights) {
  Tensor table = Random(300, 40);
  const double u = backend.compute_dtype() == kF32 ? 0 : UnitRoundoff(backend.compute_dtype());
  const std::vector<int32_t> ids = {0, 299, 7, 7, 150};
  for (const WeightUsage usage : {WeightUsage::kEmbedding, WeightUsage::kLinearAndEmbedding}) {
    const auto packed = Pack(backend, table, usage);
    EXPECT_EQ(packed->rows(), 300);
    EXPECT_EQ(packed->cols(), 40);
    EXPECT_EQ(packed->usage(), usage);
    Tensor out(backend, kF32, ids.size(), 40, 41);
    for (const float scale : {1.0f, 22.5f}) {
      ASSERT_OK(backend.Embed(stream, *packed, ids, scale, out.view()));
      ExpectElements(out, [&](int64_t r, int64_t c) -> Expected {
        const double value = scale * table.at(ids[r], c);
        return {value, std::abs(value) * (u + (scale == 1 ? 0 : 0x1p-24))};
      });
    }
    Tensor none(backend, kF32, 0, 40);
    ASSERT_OK(backend.Embed(stream, *packed, {}, 1.0f, none.view()));
  }
  // The output layer's product from the same weights: a row against itself is its squared length.
  const auto packed = Pack(backend, table, WeightUsage::kLinearAndEmbedding);
  Tensor logits(backend, kF32, 300, 300);
  ASSERT_OK(backend.Linear(stream, table.view(), *packed, false, logits.view()));
  logits.Download();
  for (int64_t r = 0; r < 300; ++r) {
    double length = 0;
    for (int64_t c = 0; c < 40; ++c) length += table.at(r, c) * table.at(r, c);
    EXPECT_NEAR(logits.at(r, r), length, length * (2 * UnitRoundoff(backend.compute_dtype()) + 1e-5));
  }
}

TEST_P(ElementwiseConformance, PackWeightsPassesReaderErrorsOn) {
  const test_support::RowFunction torn([](int64_t row, absl::Span<float> out) -> absl::Status {
    std::fill(out.begin(), out.end(), 1.0f);
    if (row == 7) return absl::DataLossError("row 7 is torn");
    return absl::OkStatus();
  });
  EXPECT_EQ(backend.PackWeights(10, 4, WeightUsage::kLinear, torn).status(),
            absl::DataLossError("row 7 is torn"));
}

TEST_P(ElementwiseConformance, GatherRows) {
  const std::vector<int32_t> indices = {4, 0, 0, 29, 13};
  for (const DataType dtype : {kF32, kBF16, kF16}) {
    Tensor in(backend, dtype, 30, 21, 25), out(backend, dtype, indices.size(), 21, 22);
    in.Randomize(rng);
    ASSERT_OK(backend.GatherRows(stream, in.view(), indices, out.view()));
    const std::vector<double> values = out.Values();
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], in.at(indices[i / 21], i % 21));
    Tensor none(backend, dtype, 0, 21);
    ASSERT_OK(backend.GatherRows(stream, in.view(), {}, none.view()));
  }
}

INSTANTIATE_CONFORMANCE(ElementwiseConformance);

}  // namespace
}  // namespace kvblend::kernels
