// Linear layers whose inputs may be rounded to 8 bits, through the whole backend that `auto` makes where
// there are kernels for that: a prompt's rows within half a step, and nothing else in 8 bits.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu/linear/code_products.h"
#include "tests/conformance/cpu/linear_properties.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {
namespace {

using Gemm = CpuBackendOptions::Gemm;

class Int8TolerantLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = CreateCpuBackend({.num_threads = 3});
    ASSERT_OK(backend.status());
    backend_ = *std::move(backend);
    const CodeKernels* kernels = FasterThanF32Kernels();
    const bool amx = backend_->Describe().find("avx512_core_amx") != std::string::npos;
    const bool expected = kernels != nullptr && kernels->HasAsymmetric() && !amx;
    ASSERT_EQ(backend_->Describe().find("asymmetric int8 (") != std::string::npos, expected)
        << backend_->Describe();
    whole_groups_ = kernels != nullptr && kernels->whole_groups.multiply != nullptr;
    if (!expected) GTEST_SKIP() << "auto takes other products here: " << backend_->Describe();
  }

  // What codes of whole groups may be wrong by: half a step of every activation, and what
  // whole_group_products_test.cc has of weights.
  static Expected WithinWholeGroups(const Tensor& x, const RandomCodes& weights,
                                    const QuantizedFormat& format, int64_t cols, int64_t r, int64_t o,
                                    double before) {
    const double fraction = format.bits <= 4 ? 0x1p-6 : 0x1p-5, largest_zero = format.bits <= 4 ? 510 : 1022;
    double sum = before, error = 0, magnitude = std::abs(before);
    for (int64_t g = 0; g < cols / AsymmetricWholeGroup::kInputs; ++g) {
      double least = 0, most = 0, of_group = 0, all = 0, weight = 0;
      const int64_t first = g * AsymmetricWholeGroup::kInputs;
      for (int64_t c = first; c < first + AsymmetricWholeGroup::kInputs; ++c) {
        const double value = x.at(r, c);
        sum += value * weights.at(o, c);
        magnitude += std::abs(value) * weights.Magnitude(o, c);
        least = std::min(least, value);
        most = std::max(most, value);
        of_group += value;
        all += std::abs(value);
        weight += std::abs(weights.at(o, c));
      }
      const double step = (most - least) / 254, own_step = weights.StepOf(o, first),
                   weight_step = std::max(own_step, weights.LargestOfGroup(o, first) / largest_zero);
      error += step / 2 * weight + weight_step * ((std::abs(of_group) + 16 * step) * fraction / 2 + step / 2);
      if (weight_step > own_step) error += (all + 16 * step) * weight_step / 2;
    }
    return {sum, 1.001 * error + 32 * 0x1p-24 * magnitude};
  }

  std::unique_ptr<Backend> backend_;
  bool whole_groups_ = false;
  Rng rng_{20261127};
};

TEST_F(Int8TolerantLinearTest, APromptsRowsAreRoundedToTheNearestCode) {
  constexpr int64_t kOutputs = 112;
  std::vector<QuantizedFormat> formats = {kFormats[0], kFormats[1], kFormats[2], kFormats[3]};
  formats.push_back(kNestedFormats[0]);
  formats.push_back(kNestedFormats[1]);
  for (const QuantizedFormat& format : formats) {
    const int64_t cols = format.nested ? 512 : 320;
    const RandomCodes weights(rng_, kOutputs, cols, [&](int64_t) { return format; });
    const auto packed = backend_->PackWeights(kOutputs, cols, WeightUsage::kVeryTolerantLinear, weights);
    ASSERT_OK(packed.status());
    for (const int64_t rows : {33, 40, 300}) {
      const bool accumulate = rows % 4 == 0;
      SCOPED_TRACE(testing::Message() << format.bits << " bits, " << rows << " rows");
      Tensor x(*backend_, kF32, rows, cols, cols + 3), out(*backend_, kF32, rows, kOutputs, kOutputs + 5);
      std::normal_distribution<float> normal;
      x.Fill([&](int64_t row, int64_t col) {
        return std::exp2(static_cast<float>(row % 30 - 15 + col / 16 * 5 % 17)) * (normal(rng_) + 0.5f);
      });
      out.Randomize(rng_);
      ASSERT_OK(backend_->Linear(TestStream(*backend_), x.view(), **packed, accumulate, out.view()));
      ExpectElements(out, [&](int64_t r, int64_t o) -> Expected {
        if (whole_groups_)
          return WithinWholeGroups(x, weights, format, cols, r, o, accumulate ? out.at(r, o) : 0);
        double sum = accumulate ? out.at(r, o) : 0, error = 0, magnitude = std::abs(sum), largest = 0,
               weight = 0;
        for (int64_t half = 0; half < cols / 16; ++half) {  // the even inputs of 32, or the odd ones
          double least = 0, most = 0, own_weight = 0;
          for (int64_t c = half / 2 * 32 + half % 2; c < (half / 2 + 1) * 32; c += 2) {
            sum += x.at(r, c) * weights.at(o, c);
            magnitude += std::abs(x.at(r, c)) * weights.Magnitude(o, c);
            least = std::min<double>(least, x.at(r, c));
            most = std::max<double>(most, x.at(r, c));
            own_weight += std::abs(weights.at(o, c));
          }
          largest = std::max(largest, most - least);
          error += (most - least) / (2 * 254) * own_weight;
          weight += own_weight;
        }
        // Steps are whole multiples of one.
        const double unit = largest / AsymmetricGroup::kLargestMultiple;
        error += unit / (2 * 254) * weight;
        magnitude += unit * weight;
        return {sum, 1.001 * error + 32 * 0x1p-24 * magnitude};
      });
    }
  }
}

TEST_F(Int8TolerantLinearTest, ARowsResultDoesNotDependOnTheOthers) {
  constexpr int64_t kCols = 320, kOutputs = 130;
  std::normal_distribution<float> normal;
  Tensor many(*backend_, kF32, 100, kCols);
  many.Fill([&](int64_t row, int64_t col) {
    return std::exp2(static_cast<float>(row % 9 - 4 + col / 16 % 5)) * normal(rng_);
  });
  const RandomCodes weights(rng_, kOutputs, kCols, [&](int64_t row) { return kFormats[row / 16 % 4]; });
  const auto packed =
      backend_->PackWeights(kOutputs, kCols, WeightUsage::kVeryTolerantLinear, weights).value();
  ExpectSameInParts(*backend_, *packed, many, kOutputs, {33, 67});
}

TEST_F(Int8TolerantLinearTest, WhatIsNotFiniteShowsInItsRow) {
  constexpr int64_t kCols = 96, kOutputs = 66, kRows = 40;
  const RandomCodes weights(rng_, kOutputs, kCols, [](int64_t) { return kFormats[1]; });
  const auto packed =
      backend_->PackWeights(kOutputs, kCols, WeightUsage::kVeryTolerantLinear, weights).value();
  Tensor x(*backend_, kF32, kRows, kCols), out(*backend_, kF32, kRows, kOutputs);
  FillWithWhatIsNotFinite(x);
  ASSERT_OK(backend_->Linear(TestStream(*backend_), x.view(), *packed, false, out.view()));
  out.Download();
  ExpectNotFiniteInItsRow(out, kRows, kOutputs);
}

// Few rows are as in decoding, and weights in more bits or in smaller groups have no kernels in 8 bits: both
// are as in layers that tolerate nothing, bit for bit.
TEST_F(Int8TolerantLinearTest, OthersAreAsInLayersThatTolerateNothing) {
  constexpr int64_t kCols = 96, kOutputs = 70;
  for (size_t f = 0; f < std::size(kFormats); ++f) {
    const RandomCodes weights(rng_, kOutputs, kCols, [&](int64_t) { return kFormats[f]; });
    for (const int64_t rows : {1, 9, 32, 60}) {
      if (rows > 32 && f < 4) continue;
      SCOPED_TRACE(testing::Message() << "format " << f << ", " << rows << " rows");
      ExpectSameProducts(rng_, {backend_.get(), WeightUsage::kVeryTolerantLinear}, {backend_.get()}, weights,
                         rows, kCols, kOutputs);
    }
  }
}

// What bf16 costs leaves less for 8 bits.
TEST_F(Int8TolerantLinearTest, BesideBf16OnlyVeryTolerantLayersAreIn8Bits) {
  constexpr int64_t kCols = 96, kOutputs = 70, kRows = 60;
  const RandomCodes weights(rng_, kOutputs, kCols, [](int64_t) { return kFormats[1]; });
  const bool bf16 = backend_->compute_dtype() == kBF16;
  ExpectSameProducts(rng_, {backend_.get(), WeightUsage::kTolerantLinear},
                     {backend_.get(), bf16 ? WeightUsage::kLinear : WeightUsage::kVeryTolerantLinear},
                     weights, kRows, kCols, kOutputs);
}

// Of whole blocks and others, with inputs for one pass and for two.
TEST_F(Int8TolerantLinearTest, GateAndUpTogetherAreAsOneAfterTheOther) {
  std::normal_distribution<float> normal;
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{128, 96}, {70, 96}, {64, 2112}}) {
    const RandomCodes weights(rng_, 2 * outputs, inputs, [&](int64_t row) { return kFormats[row / 16 % 4]; });
    const auto packed =
        backend_->PackWeights(2 * outputs, inputs, WeightUsage::kVeryTolerantLinear, weights).value();
    for (const int64_t rows : {33, 36, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << inputs << " to " << outputs);
      Tensor x(*backend_, backend_->compute_dtype(), rows, inputs), both(*backend_, kF32, rows, 2 * outputs),
          together(*backend_, kF32, rows, outputs), apart(*backend_, kF32, rows, outputs, outputs + 3);
      x.Fill([&](int64_t, int64_t) { return normal(rng_); });
      Stream& stream = TestStream(*backend_);
      ASSERT_OK(
          backend_->GatedLinear(stream, x.view(), *packed, Activation::kSilu, both.view(), together.view()));
      ASSERT_OK(backend_->Linear(stream, x.view(), *packed, /*accumulate=*/false, both.view()));
      ASSERT_OK(backend_->GatedActivation(stream, Activation::kSilu, both.view().Columns(0, outputs),
                                          both.view().Columns(outputs, outputs), apart.view()));
      EXPECT_EQ(together.Values(), apart.Values());
    }
  }
}

// --gemm int16 means what it says.
TEST_F(Int8TolerantLinearTest, LayersAskedForIn16BitsAre) {
  constexpr int64_t kCols = 96, kOutputs = 70, kRows = 60;
  auto int16 = CreateCpuBackend({.num_threads = 3, .gemm = Gemm::kInt16});
  ASSERT_OK(int16.status());
  const RandomCodes weights(rng_, kOutputs, kCols, [](int64_t) { return kFormats[1]; });
  ExpectSameProducts(rng_, {int16->get(), WeightUsage::kVeryTolerantLinear}, {int16->get()}, weights, kRows,
                     kCols, kOutputs);
}

}  // namespace
}  // namespace kvblend::kernels
