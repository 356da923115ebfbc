// Products in 8 bits: exact where activations and weights are codes already, within half a step of each
// otherwise.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/linear/code_products.h"
#include "tests/conformance/cpu/linear_properties.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"
#include "tests/conformance/random_codes.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

using Gemm = CpuBackendOptions::Gemm;
using Size = struct { int64_t rows, cols, outputs; };

// Up to 8 rows go another way than more. A number of inputs that 32 does not divide keeps weights as values.
constexpr Size kSizes[] = {{1, 64, 70}, {2, 96, 16}, {3, 576, 100},   {7, 64, 1},      {8, 32, 64},
                           {9, 64, 64}, {65, 33, 1}, {130, 576, 100}, {300, 200, 320}, {66, 1536, 70}};
constexpr int64_t kGroup = 32;  // inputs that share a step

TEST(Int8GemmTest, IsRefusedWhereTheProcessorDoesNotHaveIt) {
  const auto backend = CreateCpuBackend({.num_threads = 1, .gemm = Gemm::kInt8});
  if (const CodeKernels* kernels = BestCodeKernels(); kernels != nullptr) {
    ASSERT_TRUE(backend.ok()) << backend.status();
    EXPECT_NE(
        (*backend)->Describe().find(absl::StrCat("GEMM in int8 (", std::string(kernels->name), ") and ")),
        std::string::npos)
        << (*backend)->Describe();
  } else {
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(backend.status().message().find("gemm is 'int8', which needs AVX2"), absl::string_view::npos)
        << backend.status();
  }
}

class Int8LinearTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = CreateCpuBackend({.num_threads = 3, .gemm = Gemm::kInt8});
    if (absl::IsFailedPrecondition(backend.status())) GTEST_SKIP() << backend.status().message();
    ASSERT_OK(backend.status());
    backend_ = *std::move(backend);
  }
  Stream& stream() { return TestStream(*backend_); }

  float Code() { return static_cast<float>(static_cast<int>(rng_() % 255) - 127); }

  std::unique_ptr<Backend> backend_;
  Rng rng_{20261122};
};

TEST_F(Int8LinearTest, CodesAreMultipliedExactly) {
  for (const auto& [rows, cols, outputs] : kSizes) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << cols << " -> " << outputs << ", " << accumulate);
      Tensor x(*backend_, kF32, rows, cols, cols + 3), w(*backend_, kF32, outputs, cols),
          out(*backend_, kF32, rows, outputs, outputs + 5);
      // Whole numbers up to 127, which every group has: each is its own code.
      const auto code = [&](int64_t, int64_t col) { return col % kGroup == 0 ? -127.0f : Code(); };
      x.Fill(code);
      w.Fill(code);
      out.Randomize(rng_);
      ASSERT_OK(backend_->Linear(stream(), x.view(), *Pack(*backend_, w, WeightUsage::kLinear), accumulate,
                                 out.view()));
      ExpectElements(out, [&, cols = cols](int64_t r, int64_t o) -> Expected {
        double sum = accumulate ? out.at(r, o) : 0, size = std::abs(sum);
        for (int64_t c = 0; c < cols; ++c) {
          sum += x.at(r, c) * w.at(o, c);
          size = std::max(size, std::abs(sum));
        }
        return {sum, 8 * 0x1p-24 * (std::abs(sum) + size + 127 * 127)};
      });
    }
  }
}

// Weights that come as codes keep them: activations that are codes give exact sums in every format, also
// where neighbours' groups differ.
TEST_F(Int8LinearTest, AFilesCodesAreMultipliedAsTheyAre) {
  constexpr int64_t kRows = 64, kOutputs = 112;
  constexpr size_t kNested = std::size(kNestedFormats);
  for (size_t f = 0; f <= kCodeFormats + kNested; ++f) {
    SCOPED_TRACE(f);
    const bool nested = f > kCodeFormats;
    const int64_t cols = nested ? 512 : 320;
    const RandomCodes weights(rng_, kOutputs, cols, [&](int64_t row) -> std::optional<QuantizedFormat> {
      if (nested) return kNestedFormats[f - kCodeFormats - 1];
      return kFormats[f < kCodeFormats ? f : row / 16 % kCodeFormats];
    });
    Tensor x(*backend_, kF32, kRows, cols), out(*backend_, kF32, kRows, kOutputs);
    x.Fill([&](int64_t, int64_t col) { return col % 16 == 3 ? 127.0f : Code(); });
    const auto packed = backend_->PackWeights(kOutputs, cols, WeightUsage::kLinear, weights);
    ASSERT_OK(packed.status());
    ASSERT_OK(backend_->Linear(stream(), x.view(), **packed, false, out.view()));
    ExpectElements(out, [&](int64_t r, int64_t o) -> Expected {
      double sum = 0, magnitude = 0;
      for (int64_t c = 0; c < cols; ++c) {
        sum += x.at(r, c) * weights.at(o, c);
        magnitude += std::abs(x.at(r, c)) * weights.Magnitude(o, c);
      }
      return {sum, 16 * 0x1p-24 * magnitude};
    });
  }
}

TEST_F(Int8LinearTest, OtherValuesAreRoundedToTheNearestCode) {
  for (const auto& [rows, cols, outputs] : kSizes) {
    for (const DataType dtype : {kF32, backend_->compute_dtype()}) {
      SCOPED_TRACE(testing::Message()
                   << rows << " x " << cols << " -> " << outputs << " " << std::string(Name(dtype)));
      Tensor x(*backend_, dtype, rows, cols), w(*backend_, kF32, outputs, cols),
          out(*backend_, kF32, rows, outputs);
      // Rows, outputs and groups of very different size.
      NormalValues normal;
      const auto size = [](int64_t row, int64_t col) {
        return std::exp2(static_cast<float>(row % 30 - 15 + col / kGroup * 5 % 17));
      };
      x.Fill([&](int64_t row, int64_t col) { return size(row, col) * normal(rng_); });
      // Steps of weights are kept in f16.
      w.Fill([&](int64_t row, int64_t col) {
        return std::exp2(static_cast<float>(row % 9 - 4 + col / kGroup * 5 % 7)) * normal(rng_);
      });
      // Half a quantization step for each group of a row.
      const auto half_steps = [cols = cols](const Tensor& tensor, int64_t row) {
        std::vector<double> errors((cols + kGroup - 1) / kGroup);
        for (int64_t c = 0; c < cols; ++c) {
          errors[c / kGroup] = std::max(errors[c / kGroup], std::abs(tensor.at(row, c)) / 254);
        }
        return errors;
      };
      std::vector<std::vector<double>> x_errors, w_errors;
      for (int64_t r = 0; r < rows; ++r) x_errors.push_back(half_steps(x, r));
      for (int64_t o = 0; o < outputs; ++o) w_errors.push_back(half_steps(w, o));
      ASSERT_OK(
          backend_->Linear(stream(), x.view(), *Pack(*backend_, w, WeightUsage::kLinear), false, out.view()));
      ExpectElements(out, [&, cols = cols](int64_t r, int64_t o) -> Expected {
        double sum = 0, error = 0;
        for (int64_t c = 0; c < cols; ++c) {
          const double x_size = std::abs(x.at(r, c)), w_size = std::abs(w.at(o, c)),
                       x_error = x_errors[r][c / kGroup];
          sum += x.at(r, c) * w.at(o, c);
          const double w_error = w_errors[o][c / kGroup] + w_size * UnitRoundoff(backend_->compute_dtype());
          error += x_error * w_size + x_size * w_error + x_error * w_error;
        }
        return {sum, 1.001 * error};
      });
    }
  }
}

TEST_F(Int8LinearTest, ZerosStayZerosAndWhatIsNotFiniteShows) {
  constexpr int64_t kRows = 70, kCols = 96, kOutputs = 66;
  Tensor x(*backend_, kF32, kRows, kCols), w(*backend_, kF32, kOutputs, kCols),
      out(*backend_, kF32, kRows, kOutputs);
  w.Randomize(rng_);
  FillWithWhatIsNotFinite(x);
  ASSERT_OK(
      backend_->Linear(stream(), x.view(), *Pack(*backend_, w, WeightUsage::kLinear), false, out.view()));
  out.Download();
  ExpectNotFiniteInItsRow(out, kRows, kOutputs);
}

// An answer does not depend on how many rows it is computed with: not on whether it is decoded alone, beside
// seven others, or with a prompt's rows. In every format, and where the weights came as values.
TEST_F(Int8LinearTest, ARowsResultDoesNotDependOnTheOthers) {
  constexpr int64_t kRows = 100, kCols = 320, kOutputs = 130;
  Tensor x(*backend_, kF32, kRows, kCols), w(*backend_, kF32, kOutputs, kCols);
  x.Randomize(rng_);
  w.Randomize(rng_);
  for (size_t f = 0; f <= kCodeFormats; ++f) {
    SCOPED_TRACE(f);
    std::unique_ptr<PackedWeights> packed;
    if (f < kCodeFormats) {
      const RandomCodes weights(rng_, kOutputs, kCols, [&](int64_t) { return kFormats[f]; });
      packed = backend_->PackWeights(kOutputs, kCols, WeightUsage::kLinear, weights).value();
    } else {
      packed = Pack(*backend_, w, WeightUsage::kLinear);
    }
    EXPECT_GE(packed->rows_as_alone(), kRows);
    ExpectSameInParts(*backend_, *packed, x, kOutputs, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 44});
  }
}

// Products of experts in 8 bits are those of their matrices, bit for bit, of few rows and of many.
TEST_F(Int8LinearTest, ExpertsAreAsTheirMatricesOfCodes) {
  constexpr int64_t kCols = 96, kOutputs = 70;
  constexpr int32_t kExperts = 3;
  const RandomCodes source(rng_, kExperts * kOutputs, kCols, [](int64_t) { return kFormats[1]; });
  const auto experts = backend_->PackExperts(kExperts, kOutputs, kCols, source);
  ASSERT_OK(experts.status());
  for (const int64_t rows : {1, 5, 24, 60}) {
    SCOPED_TRACE(rows);
    Tensor x(*backend_, kF32, rows, kCols), out(*backend_, kF32, rows, kOutputs),
        expected(*backend_, kF32, rows, kOutputs);
    x.Randomize(rng_);
    std::vector<int32_t> chosen(rows);
    for (int64_t row = 0; row < rows; ++row) chosen[row] = static_cast<int32_t>(row * row % kExperts);
    ASSERT_OK(backend_->ExpertLinear(stream(), x.view(), **experts, {chosen.data(), rows}, out.view()));
    for (int32_t e = 0; e < kExperts; ++e) {
      // The rows of the source that are the expert's matrix, as codes.
      class Part final : public WeightSource {
       public:
        Part(const RandomCodes& all, int64_t first) : all_(all), first_(first) {}
        absl::Status ReadRow(int64_t row, absl::Span<float> values) const override {
          return all_.ReadRow(first_ + row, values);
        }
        std::optional<QuantizedFormat> FormatOf(int64_t row) const override {
          return all_.FormatOf(first_ + row);
        }
        absl::Status ReadCodes(int64_t row, const QuantizedRow& codes) const override {
          return all_.ReadCodes(first_ + row, codes);
        }

       private:
        const RandomCodes& all_;
        const int64_t first_;
      };
      const auto packed =
          backend_->PackWeights(kOutputs, kCols, WeightUsage::kLinear, Part(source, e * kOutputs));
      ASSERT_OK(packed.status());
      for (int64_t row = 0; row < rows; ++row) {
        if (chosen[row] != e) continue;
        ASSERT_OK(backend_->Linear(stream(), ConstMatrixView(x.view()).Rows(row, 1), **packed, false,
                                   expected.view().Rows(row, 1)));
      }
    }
    expected.Download();
    ExpectElements(out, [&](int64_t r, int64_t o) -> Expected { return {expected.at(r, o), 0}; });
  }
}

TEST_F(Int8LinearTest, ExpertsOfSeveralFormatsLeaveEachOtherAlone) {
  ExpectSameBesideOtherFormats(*backend_);
}

// And close to those of matrices that come as values.
TEST_F(Int8LinearTest, ExpertsAreAsTheirMatrices) {
  constexpr int64_t kRows = 60, kCols = 64, kOutputs = 70;
  constexpr int32_t kExperts = 3;
  const RandomCodes source(rng_, kExperts * kOutputs, kCols, [](int64_t) { return kFormats[1]; });
  const auto experts = backend_->PackExperts(kExperts, kOutputs, kCols, source);
  ASSERT_OK(experts.status());
  Tensor x(*backend_, kF32, kRows, kCols), out(*backend_, kF32, kRows, kOutputs);
  x.Randomize(rng_);
  std::vector<int32_t> chosen(kRows);
  for (int64_t row = 0; row < kRows; ++row) chosen[row] = row < 30 ? 2 : 0;
  ASSERT_OK(backend_->ExpertLinear(stream(), x.view(), **experts, {chosen.data(), kRows}, out.view()));
  for (const auto& [expert, first] : {std::pair<int64_t, int64_t>{2, 0}, {0, 30}}) {
    const test_support::RowFunction matrix([&, e = expert](int64_t row, absl::Span<float> values) {
      return source.ReadRow(e * kOutputs + row, values);
    });
    // Codes of the values' own groups, with steps to the nearest of 255: alike, not the same.
    const auto packed = backend_->PackWeights(kOutputs, kCols, WeightUsage::kLinear, matrix);
    ASSERT_OK(packed.status());
    Tensor expected(*backend_, kF32, 30, kOutputs);
    ASSERT_OK(backend_->Linear(stream(), ConstMatrixView(x.view()).Rows(first, 30), **packed, false,
                               expected.view()));
    expected.Download();
    out.Download();
    double squares = 0, differences = 0;
    for (int64_t r = 0; r < 30; ++r) {
      for (int64_t o = 0; o < kOutputs; ++o) {
        squares += expected.at(r, o) * expected.at(r, o);
        differences += std::pow(expected.at(r, o) - out.at(first + r, o), 2);
      }
    }
    EXPECT_LT(std::sqrt(differences / squares), 0.02);
  }
}

}  // namespace
}  // namespace kvblend::kernels
