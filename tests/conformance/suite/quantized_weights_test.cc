// Weights that come as codes: Linear and Embed of every backend against double precision, in every format and
// for every number of rows that changes how a product is computed.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {
namespace {

class QuantizedWeightsConformance : public ConformanceTest {
 protected:
  /// `scale_rounding`: relative error that scales and minima may have.
  void ExpectLinear(const RandomCodes& source, int64_t outputs, int64_t inputs, std::vector<int64_t> rows,
                    double scale_rounding = 0) {
    const double u = UnitRoundoff(backend.compute_dtype()) + scale_rounding;
    const auto packed = backend.PackWeights(outputs, inputs, WeightUsage::kLinear, source);
    ASSERT_OK(packed.status());
    EXPECT_EQ((*packed)->rows(), outputs);
    EXPECT_EQ((*packed)->cols(), inputs);
    for (const int64_t n : rows) {
      const bool accumulate = n % 2 == 1;
      SCOPED_TRACE(absl::StrCat(n, " x ", inputs, " to ", outputs, accumulate ? ", accumulated" : ""));
      Tensor x(backend, n % 3 == 0 ? kF32 : backend.compute_dtype(), n, inputs, inputs + n % 3);
      Tensor out = Random(n, outputs, outputs + n % 3);
      x.Randomize(rng);
      ASSERT_OK(backend.Linear(stream, x.view(), **packed, accumulate, out.view()));
      ExpectElements(out, [&](int64_t r, int64_t o) -> Expected {
        double sum = accumulate ? out.at(r, o) : 0, squares = 0, magnitude = std::abs(sum);
        for (int64_t c = 0; c < inputs; ++c) {
          const double product = x.at(r, c) * source.at(o, c);
          sum += product;
          squares += product * product;
          magnitude += std::abs(x.at(r, c)) * source.Magnitude(o, c);
        }
        return {sum, 6 * u * std::sqrt(squares) + scale_rounding * magnitude +
                         (std::sqrt(inputs) + 4) * 0x1p-24 * magnitude + 1e-30};
      });
    }
  }
};

TEST_P(QuantizedWeightsConformance, LinearInEveryFormat) {
  for (const QuantizedFormat& format : kFormats) {
    SCOPED_TRACE(absl::StrCat(format.bits, " bits, groups of ", format.group));
    for (const auto& [outputs, inputs] :
         {std::pair<int64_t, int64_t>{1, 32}, {16, 64}, {100, 96}, {208, 288}}) {
      const RandomCodes source(rng, outputs, inputs, [&](int64_t) { return format; });
      ExpectLinear(source, outputs, inputs, {0, 1, 2, 3, 4, 5, 8, 9, 32, 33, 70});
    }
  }
}

TEST_P(QuantizedWeightsConformance, LinearWithNestedScales) {
  for (const QuantizedFormat& format : kNestedFormats) {
    SCOPED_TRACE(absl::StrCat(format.bits, " bits, groups of ", format.group, ", nested"));
    for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{1, 256}, {35, 768}}) {
      const RandomCodes source(rng, outputs, inputs, [&](int64_t) { return format; });
      ExpectLinear(source, outputs, inputs, {0, 1, 2, 4, 8, 9, 33, 70});
    }
  }
}

// Enough of both that threads may have outputs of their own.
TEST_P(QuantizedWeightsConformance, ManyRowsAndOutputs) {
  for (const int64_t outputs : {450, 900}) {
    const RandomCodes source(rng, outputs, 96, [&](int64_t row) { return kFormats[row / 16 % 4]; });
    ExpectLinear(source, outputs, 96, {256, 257, 300, 319});
  }
}

TEST_P(QuantizedWeightsConformance, EmbeddingsWithNestedScales) {
  const double u = UnitRoundoff(backend.compute_dtype());
  for (const QuantizedFormat& format : kNestedFormats) {
    const RandomCodes source(rng, 20, 512, [&](int64_t) { return format; });
    const auto packed = backend.PackWeights(20, 512, WeightUsage::kEmbedding, source);
    ASSERT_OK(packed.status());
    Tensor out(backend, kF32, 3, 512);
    const std::vector<int32_t> ids = {19, 0, 16};
    ASSERT_OK(backend.Embed(stream, **packed, ids, 1.0f, out.view()));
    ExpectElements(out, [&](int64_t r, int64_t c) -> Expected {
      const double value = source.at(ids[r], c);
      return {value, std::abs(value) * u + source.Magnitude(ids[r], c) * 0x1p-23};
    });
  }
}

TEST_P(QuantizedWeightsConformance, ScalesThatF16DoesNotHold) {
  const RandomCodes source(
      rng, 48, 128, [&](int64_t) { return kFormats[1]; }, /*any_scale=*/true);
  ExpectLinear(source, 48, 128, {1, 9, 70}, 0x1p-11);
}

// q, k and v of one layer may come in different formats, at boundaries that suit nobody; some rows in none.
TEST_P(QuantizedWeightsConformance, MixedFormats) {
  for (const int64_t boundary : {48, 50}) {
    const RandomCodes source(rng, 160, 64,
                             [&](int64_t row) { return row < boundary ? kFormats[1] : kFormats[4]; });
    ExpectLinear(source, 160, 64, {1, 6, 20, 70});
  }
  const RandomCodes some(rng, 96, 64,
                         [](int64_t row) { return row < 32 ? std::optional(kFormats[0]) : std::nullopt; });
  ExpectLinear(some, 96, 64, {1, 6, 70});
}

// Neither a number of inputs that no chunk divides nor scales beyond f16 may change a result.
TEST_P(QuantizedWeightsConformance, WhatDoesNotFitIsKeptAsValues) {
  const RandomCodes narrow(rng, 40, 48, [](int64_t) { return kFormats[4]; });
  ExpectLinear(narrow, 40, 48, {1, 6, 70});
  RandomCodes large(rng, 40, 64, [](int64_t) { return kFormats[0]; });
  large.set_scale(39, 1, 70000.0f);
  ExpectLinear(large, 40, 64, {1, 6, 70});
  RandomCodes small(rng, 40, 64, [](int64_t) { return kFormats[2]; });
  for (int64_t row = 0; row < 40; ++row) {  // as some of MXFP4's may be: f16 would have 0
    for (int64_t group = 0; group < 2; ++group) small.set_scale(row, group, 0x1p-40f);
  }
  ExpectLinear(small, 40, 64, {1, 6, 70});
}

TEST_P(QuantizedWeightsConformance, EmbedAndTiedWeights) {
  const double u = UnitRoundoff(backend.compute_dtype());
  for (const QuantizedFormat& format : kFormats) {
    const RandomCodes source(rng, 130, 96, [&](int64_t) { return format; });
    const std::vector<int32_t> ids = {0, 129, 15, 16, 16, 77};
    for (const WeightUsage usage : {WeightUsage::kEmbedding, WeightUsage::kLinearAndEmbedding}) {
      const auto packed = backend.PackWeights(130, 96, usage, source);
      ASSERT_OK(packed.status());
      Tensor out(backend, kF32, ids.size(), 96, 97);
      ASSERT_OK(backend.Embed(stream, **packed, ids, 1.0f, out.view()));
      ExpectElements(out, [&](int64_t r, int64_t c) -> Expected {
        const double value = source.at(ids[r], c);
        return {value, std::abs(value) * u + source.Magnitude(ids[r], c) * 0x1p-23};
      });
      if (usage == WeightUsage::kEmbedding) continue;
      Tensor x(backend, kF32, 1, 96), logits(backend, kF32, 1, 130);
      x.Fill([](int64_t, int64_t c) { return c == 33 ? 1.0f : 0.0f; });  // chooses a column
      ASSERT_OK(backend.Linear(stream, x.view(), **packed, false, logits.view()));
      ExpectElements(logits, [&](int64_t, int64_t o) -> Expected {
        const double value = source.at(o, 33);
        return {value, std::abs(value) * u + source.Magnitude(o, 33) * 0x1p-22};
      });
    }
  }
}

// An answer may not depend on what is decoded beside it, up to as many rows as the backend promises, which
// are eight at least.
TEST_P(QuantizedWeightsConformance, ARowIsWhatItIsAlone) {
  for (const QuantizedFormat& format : kFormats) {
    const RandomCodes source(rng, 70, 96, [&](int64_t) { return format; });
    const auto packed = backend.PackWeights(70, 96, WeightUsage::kLinear, source);
    ASSERT_OK(packed.status());
    if ((*packed)->rows_as_alone() == 0) GTEST_SKIP() << "a row's bits depend on how many rows there are";
    const int64_t most = std::min<int64_t>((*packed)->rows_as_alone(), 40);
    ASSERT_GE(most, 8);
    Tensor x = Random(most, 96), out(backend, kF32, most, 70);
    for (int64_t count = 2; count <= most; count += count < 9 ? 1 : 3) {
      ASSERT_OK(backend.Linear(stream, x.view().Rows(0, count), **packed, false, out.view().Rows(0, count)));
      const std::vector<double> together = out.Values();
      for (int64_t row = 0; row < count; ++row) {
        ASSERT_OK(backend.Linear(stream, x.view().Rows(row, 1), **packed, false, out.view().Rows(row, 1)));
      }
      EXPECT_EQ(together, out.Values()) << count << " rows, " << format.bits << " bits";
    }
  }
}

TEST_P(QuantizedWeightsConformance, SourceErrorsArePassedOn) {
  RandomCodes source(rng, 40, 64, [](int64_t) { return kFormats[0]; });
  source.failing_row = 33;
  EXPECT_EQ(backend.PackWeights(40, 64, WeightUsage::kLinear, source).status(),
            absl::DataLossError("a torn row"));
}

INSTANTIATE_CONFORMANCE(QuantizedWeightsConformance);

}  // namespace
}  // namespace kvblend::kernels
