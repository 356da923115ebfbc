// Products of a file's codes by activations in 16 bits, through the whole backend: within half a step of the
// activations, and of the weights where a prompt's rows have wide groups; and the same for any number of rows
// up to there, and from there on.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear/code_products.h"
#include "tests/conformance/cpu/linear_properties.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"

namespace kvblend::kernels {
namespace {

using Gemm = CpuBackendOptions::Gemm;

TEST(Int16GemmTest, IsRefusedWhereTheProcessorDoesNotHaveIt) {
  const auto backend = CreateCpuBackend({.num_threads = 1, .gemm = Gemm::kInt16});
  if (const CodeKernels* kernels = BestCodeKernels(); kernels != nullptr) {
    ASSERT_OK(backend.status());
    EXPECT_NE(
        (*backend)->Describe().find(absl::StrCat("GEMM in int16 (", std::string(kernels->name), ") and f32")),
        std::string::npos)
        << (*backend)->Describe();
  } else {
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(backend.status().message().find("gemm is 'int16', which needs AVX2"), absl::string_view::npos)
        << backend.status();
  }
}

// What the processor has is chosen by itself where it is faster than f32, and nothing that is faster still.
TEST(Int16GemmTest, IsWhatAutoChoosesWithoutBf16) {
  const auto backend = CreateCpuBackend({.num_threads = 1});
  ASSERT_OK(backend.status());
  const bool chosen = (*backend)->Describe().find("GEMM in int16") != std::string::npos;
  EXPECT_EQ(chosen, (*backend)->compute_dtype() == kF32 && FasterThanF32Kernels() != nullptr)
      << (*backend)->Describe();
}

class Int16LinearTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = CreateCpuBackend({.num_threads = 3, .gemm = Gemm::kInt16});
    if (absl::IsFailedPrecondition(backend.status())) GTEST_SKIP() << backend.status().message();
    ASSERT_OK(backend.status());
    backend_ = *std::move(backend);
  }
  Stream& stream() { return TestStream(*backend_); }

  std::unique_ptr<Backend> backend_;
  Rng rng_{20261123};
};

// Where more rows are multiplied in bf16.
TEST_F(Int16LinearTest, FewRowsOfAutoGetTheSameBits) {
  const auto chosen = CreateCpuBackend({.num_threads = 2});
  ASSERT_OK(chosen.status());
  if ((*chosen)->Describe().find(", of few rows in int16") == std::string::npos) {
    GTEST_SKIP() << "few rows are multiplied as many are: " << (*chosen)->Describe();
  }
  constexpr int64_t kOutputs = 80, kInputs = 288;
  const RandomCodes weights(rng_, kOutputs, kInputs, [](int64_t row) { return kFormats[row / 16 % 4]; });
  for (const int64_t rows : {1, 2, 8, 9, 32}) {
    const std::vector<double> values = Tensor(*backend_, kF32, rows, kInputs).Randomize(rng_).Values();
    const auto results = [&](Backend& backend) {
      const auto packed = backend.PackWeights(kOutputs, kInputs, WeightUsage::kLinear, weights).value();
      Tensor x(backend, kF32, rows, kInputs), out(backend, kF32, rows, kOutputs);
      x.Fill([&](int64_t row, int64_t col) { return static_cast<float>(values[row * kInputs + col]); });
      EXPECT_OK(backend.Linear(TestStream(backend), x.view(), *packed, /*accumulate=*/false, out.view()));
      return out.Values();
    };
    EXPECT_EQ(results(**chosen), results(*backend_)) << rows << " rows";
  }
}

TEST_F(Int16LinearTest, ActivationsAreRoundedToTheNearestCode) {
  constexpr int64_t kOutputs = 112;
  constexpr size_t kNested = std::size(kNestedFormats);
  for (size_t f = 0; f <= kCodeFormats + kNested; ++f) {
    const bool nested = f > kCodeFormats;
    const int64_t cols = nested ? 512 : 320;
    const RandomCodes weights(rng_, kOutputs, cols, [&](int64_t row) -> std::optional<QuantizedFormat> {
      if (nested) return kNestedFormats[f - kCodeFormats - 1];
      return kFormats[f < kCodeFormats ? f : row / 16 % kCodeFormats];
    });
    const auto packed = backend_->PackWeights(kOutputs, cols, WeightUsage::kLinear, weights);
    ASSERT_OK(packed.status());
    for (const int64_t rows : {1, 3, 8, 9, 12, 40, 130}) {
      const bool accumulate = rows % 4 == 0;
      SCOPED_TRACE(testing::Message() << "format " << f << ", " << rows << " rows");
      Tensor x(*backend_, kF32, rows, cols, cols + 3), out(*backend_, kF32, rows, kOutputs, kOutputs + 5);
      // Rows and groups of very different size.
      std::normal_distribution<float> normal;
      x.Fill([&](int64_t row, int64_t col) {
        return std::exp2(static_cast<float>(row % 30 - 15 + col / 32 * 5 % 17)) * normal(rng_);
      });
      out.Randomize(rng_);
      ASSERT_OK(backend_->Linear(stream(), x.view(), **packed, accumulate, out.view()));
      ExpectElements(out, [&](int64_t r, int64_t o) -> Expected {
        double sum = accumulate ? out.at(r, o) : 0, error = 0, magnitude = std::abs(sum);
        if (rows > (*packed)->rows_as_alone()) {
          const Expected wide = WideProduct(
              cols, [&](int64_t c) { return x.at(r, c); }, [&](int64_t c) { return weights.at(o, c); },
              [&](int64_t c) { return weights.LargestOfGroup(o, c); });
          return {sum + wide.value, wide.bound + 0x1p-22 * magnitude};
        }
        for (int64_t first = 0; first < cols; first += 32) {
          double largest = 0, weight = 0;
          for (int64_t c = first; c < first + 32; ++c) {
            sum += x.at(r, c) * weights.at(o, c);
            magnitude += std::abs(x.at(r, c)) * weights.Magnitude(o, c);
            largest = std::max<double>(largest, std::abs(x.at(r, c)));
            weight += std::abs(weights.at(o, c));
          }
          error += largest / (2 * 32512) * weight;  // of codes up to 255 * 127 + 127
        }
        return {sum, 1.001 * error + 16 * 0x1p-24 * magnitude};
      });
    }
  }
}

// Weights that come as values are multiplied as f32's backend multiplies them, bit for bit.
TEST_F(Int16LinearTest, OthersAreAsInF32) {
  constexpr int64_t kCols = 96, kOutputs = 70;
  const auto f32 = CreateCpuBackend({.num_threads = 3, .gemm = Gemm::kF32});
  ASSERT_OK(f32.status());
  const RandomCodes values(rng_, kOutputs, kCols, [](int64_t) { return std::nullopt; });
  for (const int64_t rows : {3, 60}) {
    SCOPED_TRACE(rows);
    ExpectSameProducts(rng_, {backend_.get()}, {f32->get()}, values, rows, kCols, kOutputs);
  }
}

TEST_F(Int16LinearTest, WhatIsNotFiniteShowsInItsRow) {
  constexpr int64_t kCols = 96, kOutputs = 66;
  const RandomCodes weights(rng_, kOutputs, kCols, [](int64_t) { return kFormats[1]; });
  const auto packed = backend_->PackWeights(kOutputs, kCols, WeightUsage::kLinear, weights);
  ASSERT_OK(packed.status());
  for (const int64_t rows : {7, 20, 40}) {
    Tensor x(*backend_, kF32, rows, kCols), out(*backend_, kF32, rows, kOutputs);
    FillWithWhatIsNotFinite(x);
    ASSERT_OK(backend_->Linear(stream(), x.view(), **packed, false, out.view()));
    out.Download();
    ExpectNotFiniteInItsRow(out, rows, kOutputs);
  }
}

// An answer does not depend on how many are decoded with it, nor a prompt's row on how many are computed with
// it, in any format.
TEST_F(Int16LinearTest, ARowsResultDoesNotDependOnTheOthers) {
  constexpr int64_t kCols = 320, kOutputs = 130;
  std::normal_distribution<float> normal;
  const auto value = [&](int64_t row, int64_t col) {
    return std::exp2(static_cast<float>(row % 9 - 4 + col / 16 % 5)) * normal(rng_);
  };
  Tensor few(*backend_, kF32, 32, kCols), many(*backend_, kF32, 100, kCols);
  few.Fill(value);
  many.Fill(value);
  for (size_t f = 0; f <= kCodeFormats; ++f) {
    SCOPED_TRACE(f);
    const RandomCodes weights(rng_, kOutputs, kCols,
                              [&](int64_t row) { return kFormats[f < kCodeFormats ? f : row / 16 % f]; });
    const auto packed = backend_->PackWeights(kOutputs, kCols, WeightUsage::kLinear, weights).value();
    EXPECT_EQ(packed->rows_as_alone(), few.rows());
    ExpectSameInParts(*backend_, *packed, few, kOutputs, {1, 2, 3, 4, 5, 6, 11});
    ExpectSameInParts(*backend_, *packed, few, kOutputs, {8, 7, 9, 8});
    ExpectSameInParts(*backend_, *packed, many, kOutputs, {33, 67});
  }
}

// Experts' products are those of their matrices, bit for bit, of few rows and of many, whatever rows go to
// the others.
TEST_F(Int16LinearTest, ExpertsAreAsTheirMatrices) {
  constexpr int64_t kCols = 96, kOutputs = 70;
  const RandomCodes source(rng_, kOutputs, kCols, [](int64_t) { return kFormats[1]; });
  // Two experts, of which the first is the matrix and gets most of the rows.
  class Twice final : public WeightSource {
   public:
    explicit Twice(const RandomCodes& matrix) : matrix_(matrix) {}
    absl::Status ReadRow(int64_t row, absl::Span<float> values) const override {
      return matrix_.ReadRow(row % kOutputs, values);
    }
    std::optional<QuantizedFormat> FormatOf(int64_t row) const override {
      return matrix_.FormatOf(row % kOutputs);
    }
    absl::Status ReadCodes(int64_t row, const QuantizedRow& codes) const override {
      return matrix_.ReadCodes(row % kOutputs, codes);
    }

   private:
    const RandomCodes& matrix_;
  };
  const auto experts = backend_->PackExperts(2, kOutputs, kCols, Twice(source));
  ASSERT_OK(experts.status());
  const auto packed = backend_->PackWeights(kOutputs, kCols, WeightUsage::kLinear, source);
  ASSERT_OK(packed.status());
  for (const int64_t rows : {1, 9, 15, 60}) {
    SCOPED_TRACE(rows);
    Tensor x(*backend_, kF32, rows, kCols), out(*backend_, kF32, rows, kOutputs),
        expected(*backend_, kF32, rows, kOutputs);
    x.Randomize(rng_);
    std::vector<int32_t> chosen(rows);
    for (int64_t row = 0; row < rows; ++row) chosen[row] = row % 7 == 0 ? 1 : 0;
    ASSERT_OK(backend_->ExpertLinear(stream(), x.view(), **experts, {chosen.data(), rows}, out.view()));
    ASSERT_OK(backend_->Linear(stream(), x.view(), **packed, false, expected.view()));
    expected.Download();
    ExpectElements(out, [&](int64_t r, int64_t o) -> Expected { return {expected.at(r, o), 0}; });
  }
}

TEST_F(Int16LinearTest, ExpertsOfSeveralFormatsLeaveEachOtherAlone) {
  ExpectSameBesideOtherFormats(*backend_);
}

}  // namespace
}  // namespace kvblend::kernels
