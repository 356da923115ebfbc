// GatedLinear of every backend against double precision, with weights that are values and weights that are
// codes, for every number of rows that changes how it is computed.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/activations.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {
namespace {

class GatedLinearConformance : public ConformanceTest {
 protected:
  struct Weights {
    const PackedWeights& packed;
    std::function<double(int64_t row, int64_t col)> at, magnitude;
  };

  void ExpectGated(const Weights& weights, Activation activation, int64_t rows, DataType x_dtype,
                   DataType out_dtype) {
    const int64_t inputs = weights.packed.cols(), outputs = weights.packed.rows() / 2;
    SCOPED_TRACE(absl::StrCat(rows, " x ", inputs, " to ", outputs, ", activation ",
                              static_cast<int>(activation), ", from ", std::string(Name(x_dtype)), " to ",
                              std::string(Name(out_dtype))));
    const int64_t extra = rows % 3;  // strides with and without padding
    Tensor x(backend, x_dtype, rows, inputs, inputs + extra);
    Tensor both(backend, kF32, rows, 2 * outputs);
    Tensor out(backend, out_dtype, rows, outputs, outputs + 2 * extra);
    x.Randomize(rng);
    ASSERT_OK(backend.GatedLinear(stream, x.view(), weights.packed, activation, both.view(), out.view()));
    struct Sum {
      double value = 0, error = 0;
    };
    const double u = UnitRoundoff(backend.compute_dtype());
    const auto product = [&](int64_t r, int64_t o) {
      Sum sum;
      double squares = 0, magnitude = 0;
      for (int64_t c = 0; c < inputs; ++c) {
        const double term = x.at(r, c) * weights.at(o, c);
        sum.value += term;
        squares += term * term;
        magnitude += std::abs(x.at(r, c)) * weights.magnitude(o, c);
      }
      // As in the tests of Linear.
      sum.error = 6 * u * std::sqrt(squares) + (std::sqrt(inputs) + 4) * 0x1p-24 * magnitude;
      return sum;
    };
    ExpectElements(out, [&](int64_t r, int64_t o) -> Expected {
      const Sum gate = product(r, o), up = product(r, outputs + o);
      const double value = Activated(activation, gate.value, up.value);
      // No activation is steeper than 1.2, and none grows faster than its argument.
      const double factor = std::abs(up.value) + up.error + 1;
      return {value, 1.2 * gate.error * factor + (std::abs(gate.value) + gate.error) * up.error +
                         std::abs(value) * (64 * 0x1p-24 + RoundoffOfGated(out_dtype)) + 1e-30};
    });
  }
};

TEST_P(GatedLinearConformance, OfValues) {
  struct Sizes {
    int64_t outputs, inputs;
  };
  for (const Sizes& w : {Sizes{1, 1}, {16, 32}, {24, 33}, {64, 64}, {80, 96}, {192, 160}}) {
    Tensor values = Random(2 * w.outputs, w.inputs);
    const auto packed = Pack(backend, values, WeightUsage::kLinear);
    const auto at = [&](int64_t row, int64_t col) { return values.at(row, col); };
    const Weights weights{*packed, at, [&](int64_t r, int64_t c) { return std::abs(values.at(r, c)); }};
    for (const int64_t rows : {0, 1, 5, 32, 33, 70, 130}) {
      for (const DataType x_dtype : OutputTypes()) {
        ExpectGated(weights, kActivations[rows % 3], rows, x_dtype, backend.compute_dtype());
      }
    }
  }
}

TEST_P(GatedLinearConformance, OfCodes) {
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{16, 64}, {24, 96}, {112, 288}}) {
    const RandomCodes source(rng, 2 * outputs, inputs, [&](int64_t row) { return kFormats[row / 16 % 4]; });
    const auto packed = backend.PackWeights(2 * outputs, inputs, WeightUsage::kLinear, source);
    ASSERT_OK(packed.status());
    const Weights weights{**packed, [&](int64_t row, int64_t col) { return source.at(row, col); },
                          [&](int64_t row, int64_t col) { return source.Magnitude(row, col); }};
    for (const int64_t rows : {0, 1, 4, 8, 9, 31, 64, 70, 300}) {
      ExpectGated(weights, kActivations[rows % 3], rows, rows % 2 == 0 ? kF32 : backend.compute_dtype(),
                  rows % 5 == 0 ? kF32 : backend.compute_dtype());
    }
  }
}

// An answer does not depend on what is computed beside it.
TEST_P(GatedLinearConformance, ARowDoesNotDependOnTheOthers) {
  const int64_t outputs = 32, inputs = 64, rows = 100;
  const RandomCodes source(rng, 2 * outputs, inputs, [&](int64_t) { return kFormats[0]; });
  const auto packed = backend.PackWeights(2 * outputs, inputs, WeightUsage::kLinear, source);
  ASSERT_OK(packed.status());
  Tensor x(backend, backend.compute_dtype(), rows, inputs), both(backend, kF32, rows, 2 * outputs);
  Tensor all(backend, kF32, rows, outputs), some(backend, kF32, 70, outputs);
  x.Randomize(rng);
  const auto gated = [&](ConstMatrixView in, Tensor& out) {
    return backend.GatedLinear(stream, in, **packed, Activation::kSilu, both.view().Rows(0, in.rows),
                               out.view());
  };
  ASSERT_OK(gated(x.view(), all));
  ASSERT_OK(gated(x.view().Rows(20, 70), some));
  all.Download();
  ExpectElements(some, [&](int64_t r, int64_t o) -> Expected {
    const double value = all.at(r + 20, o);
    return {value, std::abs(value) * 1e-5 + 1e-4};
  });
}

// Nor on whether its tile is a whole one, with sums that are added to what was there.
TEST_P(GatedLinearConformance, AmxGivesARowTheSameBitsInTilesOfAnySize) {
  if (GetParam() != "cpu_amx_emulated") GTEST_SKIP() << "of AMX's tiles alone";
  constexpr int64_t kOutputs = 48, kInputs = 96, kRows = 96, kSome = 70;
  const RandomCodes source(rng, kOutputs, kInputs, [](int64_t) { return kFormats[1]; });
  const auto packed = backend.PackWeights(kOutputs, kInputs, WeightUsage::kLinear, source);
  ASSERT_OK(packed.status());
  Tensor x(backend, backend.compute_dtype(), kRows, kInputs), all = Random(kRows, kOutputs),
                                                              some(backend, kF32, kSome, kOutputs);
  x.Randomize(rng);
  some.Fill([&](int64_t row, int64_t col) { return static_cast<float>(all.at(row, col)); });
  ASSERT_OK(backend.Linear(stream, x.view(), **packed, /*accumulate=*/true, all.view()));
  ASSERT_OK(backend.Linear(stream, x.view().Rows(0, kSome), **packed, /*accumulate=*/true, some.view()));
  std::vector<double> of_all = all.Values();
  of_all.resize(kSome * kOutputs);
  EXPECT_EQ(some.Values(), of_all);
}

TEST_P(GatedLinearConformance, Errors) {
  Tensor values = Random(8, 6), odd = Random(7, 6), x = Random(3, 6), both(backend, kF32, 3, 8);
  Tensor out(backend, kF32, 3, 4), wide(backend, kF32, 3, 16);
  const auto weights = Pack(backend, values, WeightUsage::kLinear),
             seven = Pack(backend, odd, WeightUsage::kLinear),
             table = Pack(backend, values, WeightUsage::kEmbedding);
  const auto gated = [&](const PackedWeights& w, ConstMatrixView in, MatrixView memory, MatrixView to,
                         Activation activation = Activation::kSilu) {
    return backend.GatedLinear(stream, in, w, activation, memory, to);
  };
  ExpectInvalid(gated(*weights, x.view(), both.view(), out.view(), static_cast<Activation>(7)),
                {"GatedLinear", "activation is 7", "kSilu"});
  ExpectInvalid(gated(*table, x.view(), both.view(), out.view()), {"GatedLinear", "kEmbedding", "kLinear"});
  ExpectInvalid(gated(*seven, x.view(), both.view(), out.view()), {"weights has 7 rows", "even"});
  ExpectInvalid(gated(*weights, x.view().Columns(0, 5), both.view(), out.view()), {"x.cols is 5", "6"});
  ExpectInvalid(gated(*weights, x.view(), both.view().Rows(0, 2), out.view()), {"both.rows is 2", "3"});
  ExpectInvalid(gated(*weights, x.view(), both.view(), out.view().Columns(0, 3)), {"out.cols is 3", "4"});
  ExpectInvalid(gated(*weights, x.view(), wide.view().Columns(0, 8), wide.view().Columns(6, 4)),
                {"out overlaps both"});
}

INSTANTIATE_CONFORMANCE(GatedLinearConformance);

}  // namespace
}  // namespace kvblend::kernels
