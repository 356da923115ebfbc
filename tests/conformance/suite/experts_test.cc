// A mixture of experts on every backend: who is chosen and with what weight, products with the experts that
// rows are sent to, and their sums, against double precision; and that rows do not influence each other.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"
#include "tests/conformance/random_codes.h"
#include "tests/support/row_function.h"

namespace kvblend::kernels {
namespace {

using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Numbers in a backend's memory.
class Numbers {
 public:
  Numbers(Backend& backend, const std::vector<int32_t>& values)
      : backend_(backend), size_(static_cast<int64_t>(values.size())) {
    buffer_ = backend.Allocate(std::max<int64_t>(1, size_) * int64_t{sizeof(int32_t)}).value();
    if (size_ > 0) CopyIn(backend, *buffer_, values.data(), size_ * int64_t{sizeof(int32_t)});
  }
  IndicesView view() const { return {static_cast<int32_t*>(buffer_->data()), size_}; }
  std::vector<int32_t> Values() const {
    std::vector<int32_t> values(size_);
    if (size_ > 0) CopyOut(backend_, values.data(), *buffer_, size_ * int64_t{sizeof(int32_t)});
    return values;
  }

 private:
  Backend& backend_;
  const int64_t size_;
  std::unique_ptr<Buffer> buffer_;
};

class ExpertsConformance : public ConformanceTest {
 protected:
  struct Routing {
    std::vector<int32_t> experts;
    std::vector<double> weights;
  };
  Routing Choose(Tensor& logits, const RoutingSpec& spec) {
    Numbers experts(backend, std::vector<int32_t>(logits.rows() * spec.num_chosen, -1));
    Tensor weights(backend, kF32, logits.rows(), spec.num_chosen, spec.num_chosen + 3);
    EXPECT_OK(backend.ChooseExperts(stream, logits.view(), spec, experts.view(), weights.view()));
    return {experts.Values(), weights.Values()};
  }
  Routing ChooseOf(const std::vector<float>& logits, const RoutingSpec& spec) {
    Tensor row(backend, kF32, 1, static_cast<int64_t>(logits.size()));
    row.Fill([&](int64_t, int64_t c) { return logits[c]; });
    return Choose(row, spec);
  }

  /// `rows` lists of `chosen` distinct experts; the last expert gets no row where others are enough.
  std::vector<int32_t> RandomExperts(int64_t rows, int32_t num_experts, int32_t chosen) {
    std::vector<int32_t> all(std::max(chosen, num_experts - 1)), experts;
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < rows; ++i) {
      std::shuffle(all.begin(), all.end(), rng);
      experts.insert(experts.end(), all.begin(), all.begin() + chosen);
    }
    return experts;
  }

  /// Products of `tokens` rows with `chosen` experts each against the source's values.
  template <typename Source>
  void ExpectProducts(const Source& source, const PackedExperts& packed, int64_t tokens, int32_t chosen,
                      bool shared) {
    SCOPED_TRACE(absl::StrCat(tokens, " tokens, ", chosen, " of ", packed.num_experts(), " experts"));
    const double u = UnitRoundoff(backend.compute_dtype());
    const int64_t outputs = packed.rows(), inputs = packed.cols(), rows = tokens * chosen;
    const std::vector<int32_t> chosen_experts = RandomExperts(tokens, packed.num_experts(), chosen);
    const Numbers experts(backend, chosen_experts);
    const int64_t share = shared ? chosen : 1;
    Tensor x(backend, tokens % 2 == 0 ? kF32 : backend.compute_dtype(), rows / share, inputs,
             inputs + tokens % 3);
    x.Randomize(rng);
    Tensor out(backend, kF32, rows, outputs, outputs + tokens % 3);
    ASSERT_OK(backend.ExpertLinear(stream, x.view(), packed, experts.view(), out.view()));
    ExpectElements(out, [&](int64_t i, int64_t o) -> Expected {
      double sum = 0, squares = 0, magnitude = 0;
      for (int64_t c = 0; c < inputs; ++c) {
        const int64_t row = chosen_experts[i] * outputs + o;
        const double product = x.at(i / share, c) * source.at(row, c);
        sum += product;
        squares += product * product;
        magnitude += std::abs(x.at(i / share, c)) * source.Magnitude(row, c);
      }
      return {sum, 6 * u * std::sqrt(squares) + (std::sqrt(inputs) + 4) * 0x1p-24 * magnitude + 1e-30};
    });
  }

  std::vector<std::byte> Product(const PackedExperts& packed, const std::vector<int32_t>& of_rows,
                                 ConstMatrixView x) {
    const Numbers experts(backend, of_rows);
    Tensor out(backend, kF32, static_cast<int64_t>(of_rows.size()), packed.rows());
    EXPECT_OK(backend.ExpertLinear(stream, x, packed, experts.view(), out.view()));
    return out.Bytes();
  }
};

TEST_P(ExpertsConformance, ChoosesTheHighestAndTheLowerOfEquals) {
  const auto choose = [&](const std::vector<float>& logits, int32_t count) {
    return ChooseOf(logits, {.num_chosen = count}).experts;
  };
  EXPECT_THAT(choose({1, 7, 3, 7, 2, 7}, 2), ElementsAre(1, 3));
  EXPECT_THAT(choose({1, 7, 3, 7, 2, 7}, 4), ElementsAre(1, 3, 5, 2));
  EXPECT_THAT(choose({5}, 1), ElementsAre(0));
  EXPECT_THAT(choose({0.0f, -0.0f, 0.0f}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(choose({-0.0f, 0.0f, -1e-45f}, 2), ElementsAre(0, 1));
  EXPECT_THAT(choose({kNan, -kInfinity, -5, 9}, 4), ElementsAre(3, 2, 0, 1));
  EXPECT_THAT(choose({-kInfinity, kNan, kNan, -kInfinity}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(ChooseOf({kNan, -kInfinity, 2, 2}, {.num_chosen = 3}).weights, ElementsAre(0.5, 0.5, 0));
  for (const bool renormalise : {false, true}) {
    for (const double weight : ChooseOf({kNan, -kInfinity, kNan}, {2, renormalise}).weights) {
      EXPECT_TRUE(std::isnan(weight));
    }
  }
}

TEST_P(ExpertsConformance, WeightsAreASoftmax) {
  for (const auto& [num_experts, count] : std::vector<std::pair<int32_t, int32_t>>{
           {1, 1}, {2, 1}, {8, 2}, {60, 4}, {128, 8}, {513, 32}, {kMaxExperts, 10}}) {
    for (const bool renormalise : {false, true}) {
      SCOPED_TRACE(absl::StrCat(count, " of ", num_experts, renormalise ? ", renormalised" : ""));
      Tensor logits = Random(7, num_experts, num_experts + 1);
      logits.Randomize(rng, 4.0);
      const Routing routing = Choose(logits, {count, renormalise});
      std::vector<double> expected, bound;
      for (int64_t i = 0; i < logits.rows(); ++i) {
        std::vector<int32_t> order(num_experts);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return logits.at(i, a) > logits.at(i, b); });
        const double max = logits.at(i, order[0]);
        double sum = 0;
        for (int32_t j = 0; j < (renormalise ? count : num_experts); ++j) {
          sum += std::exp(logits.at(i, order[j]) - max);
        }
        for (int32_t j = 0; j < count; ++j) {
          EXPECT_EQ(routing.experts[i * count + j], order[j]) << i << ", " << j;
          const double weight = std::exp(logits.at(i, order[j]) - max) / sum;
          expected.push_back(weight);
          // Differences up to 40 are rounded, then the exponentials, and sums of up to 4096 of them.
          bound.push_back(weight * (40 + 4 + 4 * std::sqrt(num_experts)) * 0x1p-23);
        }
      }
      ExpectWithin(routing.weights, expected, bound);
    }
  }
  Tensor none(backend, kF32, 0, 8);
  EXPECT_TRUE(Choose(none, {.num_chosen = 2}).experts.empty());
}

// Every way in which products are computed: by the number of rows, in every format, with experts that get no
// row, one row, or more than are multiplied at a time.
TEST_P(ExpertsConformance, ProductsInEveryFormat) {
  for (const QuantizedFormat& format : kFormats) {
    SCOPED_TRACE(absl::StrCat(format.bits, " bits, groups of ", format.group));
    for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{1, 32}, {100, 96}}) {
      const int32_t num_experts = 5;
      const RandomCodes source(rng, num_experts * outputs, inputs, [&](int64_t) { return format; });
      const auto packed = backend.PackExperts(num_experts, outputs, inputs, source);
      ASSERT_OK(packed.status());
      EXPECT_EQ((*packed)->num_experts(), num_experts);
      EXPECT_EQ((*packed)->rows(), outputs);
      EXPECT_EQ((*packed)->cols(), inputs);
      for (const int64_t tokens : {0, 1, 3, 20, 21, 50}) {
        ExpectProducts(source, **packed, tokens, 2, tokens % 2 == 1);
      }
    }
  }
}

TEST_P(ExpertsConformance, ProductsOfSomeExpertsInCodes) {
  constexpr int32_t kExperts = 6;
  for (const int64_t coded : {0, 3}) {
    const RandomCodes source(rng, kExperts * 130, 64, [&](int64_t row) {
      return row < coded * 130 ? std::optional(kFormats[0]) : std::nullopt;
    });
    const auto packed = backend.PackExperts(kExperts, 130, 64, source);
    ASSERT_OK(packed.status());
    for (const int64_t tokens : {1, 2, 15, 60}) {
      ExpectProducts(source, **packed, tokens, 4, /*shared=*/true);
      ExpectProducts(source, **packed, tokens, 1, /*shared=*/false);
    }
  }
}

/// Values that are no codes.
class RandomValues final : public WeightSource {
 public:
  RandomValues(Rng& rng, int64_t rows, int64_t cols) : cols_(cols) {
    NormalValues normal;
    for (int64_t i = 0; i < rows * cols; ++i) values_.push_back(normal(rng));
  }
  double at(int64_t row, int64_t col) const { return values_[row * cols_ + col]; }
  double Magnitude(int64_t row, int64_t col) const { return std::abs(at(row, col)); }
  absl::Status ReadRow(int64_t row, absl::Span<float> out) const override {
    std::copy_n(values_.begin() + row * cols_, cols_, out.begin());
    return absl::OkStatus();
  }

 private:
  const int64_t cols_;
  std::vector<float> values_;
};

TEST_P(ExpertsConformance, ProductsOfShapesThatSuitNobody) {
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{3, 1}, {67, 23}, {1, 200}}) {
    const RandomValues source(rng, 3 * outputs, inputs);
    const auto packed = backend.PackExperts(3, outputs, inputs, source);
    ASSERT_OK(packed.status());
    for (const int64_t tokens : {1, 5, 40}) ExpectProducts(source, **packed, tokens, 2, tokens % 2 == 1);
  }
}

// As many experts as real models have, of which most get nothing.
TEST_P(ExpertsConformance, EightOf128) {
  const RandomCodes source(rng, 128 * 48, 64, [](int64_t) { return kFormats[1]; });
  const auto packed = backend.PackExperts(128, 48, 64, source);
  ASSERT_OK(packed.status());
  for (const int64_t tokens : {1, 2, 70}) ExpectProducts(source, **packed, tokens, 8, /*shared=*/true);
}

// What is decoded or prefilled beside a row, and where that goes, changes no bit of it.
TEST_P(ExpertsConformance, ARowDoesNotDependOnTheOthers) {
  constexpr int32_t kExperts = 4;
  constexpr int64_t kOutputs = 70, kInputs = 96;
  for (const std::optional<QuantizedFormat>& format :
       {std::optional(kFormats[0]), std::optional(kFormats[4]), std::optional<QuantizedFormat>()}) {
    const RandomCodes source(rng, kExperts * kOutputs, kInputs, [&](int64_t) { return format; });
    const auto packed = backend.PackExperts(kExperts, kOutputs, kInputs, source);
    ASSERT_OK(packed.status());
    for (const int64_t rows : {2, 9, 32, 33, 100}) {
      SCOPED_TRACE(
          absl::StrCat(rows, " rows", format.has_value() ? absl::StrCat(", ", format->bits, " bits") : ""));
      Tensor x = Random(rows, kInputs), other = Random(rows, kInputs);
      std::vector<int32_t> experts = RandomExperts(rows, kExperts, 1);
      const std::vector<std::byte> before = Product(**packed, experts, x.view());
      // The same row in other company, which all goes to one expert.
      const int64_t kept = rows / 2;
      for (int64_t i = 0; i < rows; ++i) {
        if (i != kept) experts[i] = rows % 2 == 0 ? experts[kept] : 0;
      }
      other.Fill(
          [&](int64_t r, int64_t c) { return static_cast<float>(r == kept ? x.at(r, c) : other.at(r, c)); });
      const std::vector<std::byte> after = Product(**packed, experts, other.view());
      constexpr int64_t kRowBytes = kOutputs * int64_t{sizeof(float)};
      EXPECT_EQ(std::memcmp(before.data() + kept * kRowBytes, after.data() + kept * kRowBytes, kRowBytes), 0);
    }
  }
}

// Up to as many rows as the backend promises (QuantizedWeightsConformance has matrices).
TEST_P(ExpertsConformance, ATokenIsWhatItIsAlone) {
  constexpr int32_t kExperts = 9, kChosen = 3;
  const RandomCodes source(rng, kExperts * 50, 64, [](int64_t) { return kFormats[1]; });
  const auto packed = backend.PackExperts(kExperts, 50, 64, source);
  ASSERT_OK(packed.status());
  const int64_t tokens = std::min<int64_t>((*packed)->rows_as_alone() / kChosen, 40);
  ASSERT_GE(tokens, 8);
  Tensor x = Random(tokens, 64);
  const std::vector<int32_t> experts = RandomExperts(tokens, kExperts, kChosen);
  std::vector<std::byte> alone;
  for (int64_t token = 0; token < tokens; ++token) {
    const std::vector<int32_t> own(experts.begin() + token * kChosen,
                                   experts.begin() + (token + 1) * kChosen);
    const std::vector<std::byte> bytes = Product(**packed, own, x.view().Rows(token, 1));
    alone.insert(alone.end(), bytes.begin(), bytes.end());
  }
  EXPECT_EQ(Product(**packed, experts, x.view()), alone);
}

TEST_P(ExpertsConformance, ABiasIsThatOfTheExpert) {
  for (const auto& [rows, cols, num_experts] : std::vector<std::tuple<int64_t, int64_t, int32_t>>{
           {0, 8, 2}, {1, 1, 1}, {3, 37, 2}, {5, 512, 8}, {300, 24, 128}}) {
    SCOPED_TRACE(absl::StrCat(rows, " x ", cols, ", ", num_experts, " experts"));
    const std::vector<int32_t> chosen = RandomExperts(rows, num_experts, 1);
    const Numbers experts(backend, chosen);
    Tensor bias = Random(num_experts, cols, cols + 1), out = Random(rows, cols, cols + 3);
    ASSERT_OK(backend.AddExpertBias(stream, bias.view(), experts.view(), out.view()));
    ExpectElements(out, [&](int64_t r, int64_t c) -> Expected {
      const double added = bias.at(chosen[r], c);
      return {out.at(r, c) + added, (std::abs(out.at(r, c)) + std::abs(added)) * 0x1p-23};
    });
  }
}

TEST_P(ExpertsConformance, SumsAreWeighted) {
  for (const auto& [rows, cols, count] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {0, 8, 2}, {1, 1, 1}, {3, 37, 2}, {5, 512, 8}, {70, 24, 32}}) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(absl::StrCat(rows, " x ", cols, ", ", count, " each", accumulate ? ", accumulated" : ""));
      Tensor x = Random(rows * count, cols, cols + 1), weights = Random(rows, count, count + 2);
      Tensor out = Random(rows, cols, cols + 3);
      ASSERT_OK(backend.SumExperts(stream, x.view(), weights.view(), accumulate, out.view()));
      ExpectElements(out, [&, count = count](int64_t r, int64_t c) -> Expected {
        double sum = accumulate ? out.at(r, c) : 0, magnitude = std::abs(sum);
        for (int64_t j = 0; j < count; ++j) {
          sum += weights.at(r, j) * x.at(r * count + j, c);
          magnitude += std::abs(weights.at(r, j) * x.at(r * count + j, c));
        }
        return {sum, static_cast<double>(count + 1) * 0x1p-24 * magnitude};
      });
    }
  }
}

TEST_P(ExpertsConformance, SumsHaveTheOrderOfTheChoice) {
  Tensor x(backend, kF32, 3, 8), weights(backend, kF32, 1, 3), out(backend, kF32, 1, 8);
  weights.Fill([](int64_t, int64_t) { return 1.0f; });
  constexpr float kTerms[] = {1.0f, 0x1p24f, -0x1p24f};  // 1 + 2^24 is rounded to 2^24
  x.Fill([&](int64_t r, int64_t) { return kTerms[r]; });
  ASSERT_OK(backend.SumExperts(stream, x.view(), weights.view(), false, out.view()));
  EXPECT_THAT(out.Values(), testing::Each(0.0));
}

TEST_P(ExpertsConformance, SourceErrorsArePassedOn) {
  RandomCodes source(rng, 3 * 20, 64, [](int64_t) { return kFormats[0]; });
  source.failing_row = 47;
  EXPECT_EQ(backend.PackExperts(3, 20, 64, source).status(), absl::DataLossError("a torn row"));
}

TEST_P(ExpertsConformance, WhatIsRefused) {
  const test_support::RowFunction zeros([](int64_t, absl::Span<float> out) {
    std::fill(out.begin(), out.end(), 0.0f);
    return absl::OkStatus();
  });
  ExpectInvalid(backend.PackExperts(0, 4, 4, zeros).status(),
                {"PackExperts", "num_experts is 0", "1 .. 4096"});
  ExpectInvalid(backend.PackExperts(4097, 4, 4, zeros).status(), {"num_experts is 4097"});
  ExpectInvalid(backend.PackExperts(4, 0, 4, zeros).status(), {"rows is 0"});
  ExpectInvalid(backend.PackExperts(4, 1 << 30, 4, zeros).status(), {"rows is 1073741824", "536870911"});
  ExpectInvalid(backend.PackExperts(4, 4, 0, zeros).status(), {"cols is 0"});

  Tensor logits = Random(2, 6), weights(backend, kF32, 2, 3);
  const Numbers six(backend, std::vector<int32_t>(6, 0)), five(backend, std::vector<int32_t>(5, 0));
  const std::vector<std::byte> before = weights.Bytes();
  const auto choose = [&](ConstMatrixView from, int32_t count, IndicesView experts, MatrixView to) {
    return backend.ChooseExperts(stream, from, {.num_chosen = count}, experts, to);
  };
  ExpectInvalid(choose(logits.view(), 0, six.view(), weights.view()),
                {"ChooseExperts", "num_chosen is 0", "1 .. 6"});
  ExpectInvalid(choose(logits.view(), 7, six.view(), weights.view()), {"num_chosen is 7"});
  ExpectInvalid(choose(logits.view(), 3, five.view(), weights.view()), {"experts.size is 5", "6"});
  ExpectInvalid(choose(logits.view(), 2, six.view(), weights.view()), {"experts.size is 6", "4"});
  ExpectInvalid(choose(logits.view(), 3, {nullptr, 6}, weights.view()), {"experts.data is null"});
  ExpectInvalid(choose(logits.view(), 3, six.view(), weights.view().Columns(0, 2)),
                {"weights.cols is 2", "3"});
  ExpectInvalid(choose(logits.view(), 3, six.view(), logits.view().Columns(1, 3)),
                {"weights overlaps logits"});
  ExpectInvalid(choose(logits.view(), 3, {static_cast<int32_t*>(weights.view().data), 6}, weights.view()),
                {"experts overlaps weights"});
  MatrixView none = logits.view();
  none.cols = 0;
  ExpectInvalid(choose(none, 1, six.view(), weights.view()), {"logits.cols is 0"});

  const auto packed = backend.PackExperts(4, 5, 8, zeros);
  ASSERT_OK(packed.status());
  Tensor x = Random(3, 8), wide = Random(3, 9), out(backend, kF32, 6, 5);
  const auto product = [&](ConstMatrixView from, IndicesView experts, MatrixView to) {
    return backend.ExpertLinear(stream, from, **packed, experts, to);
  };
  ExpectInvalid(product(wide.view(), six.view(), out.view()), {"ExpertLinear", "x.cols is 9", "8"});
  ExpectInvalid(product(x.view(), six.view(), out.view().Columns(0, 4)), {"out.cols is 4", "5"});
  ExpectInvalid(product(x.view(), five.view(), out.view().Rows(0, 5)),
                {"out.rows is 5", "multiples of x.rows = 3"});
  ExpectInvalid(product(x.view().Rows(0, 0), six.view(), out.view()),
                {"out.rows is 6", "multiples of x.rows = 0"});
  ExpectInvalid(product(x.view(), five.view(), out.view()), {"experts.size is 5", "6"});
  Backend& other = TestBackend(backend.name() == "reference" ? TestBackendNames().back() : "reference");
  if (&other != &backend) {
    const auto foreign = other.PackExperts(4, 5, 8, zeros);
    ASSERT_OK(foreign.status());
    ExpectInvalid(backend.ExpertLinear(stream, x.view(), **foreign, six.view(), out.view()),
                  {"PackedExperts", "another kind"});
  }
  if (!backend.device_memory().has_value()) {
    for (const int32_t expert : {-1, 4}) {
      const Numbers beyond(backend, {0, 1, expert});
      ExpectInvalid(product(x.view(), beyond.view(), out.view().Rows(0, 3)),
                    {"ExpertLinear", absl::StrCat("experts[2] is ", expert), "0 .. 3"});
    }
  } else {
    const Numbers beyond(backend, {-1, 1, 4});
    out.Randomize(rng);
    const double first = out.at(0, 4), last = out.at(2, 4);
    ASSERT_OK(product(x.view(), beyond.view(), out.view().Rows(0, 3)));
    out.Download();
    EXPECT_THAT((std::vector<double>{out.at(0, 4), out.at(1, 4), out.at(2, 4)}), ElementsAre(first, 0, last));
  }

  Tensor bias = Random(4, 5), biased = Random(3, 5);
  const auto add_bias = [&](ConstMatrixView from, IndicesView experts, MatrixView to) {
    return backend.AddExpertBias(stream, from, experts, to);
  };
  const IndicesView three{six.view().data, 3};
  ExpectInvalid(add_bias(bias.view().Columns(0, 4), three, biased.view()),
                {"AddExpertBias", "bias.cols is 4", "5"});
  ExpectInvalid(add_bias(bias.view().Rows(0, 0), three, biased.view()), {"bias.rows is 0", "1 .. 4096"});
  ExpectInvalid(add_bias(bias.view(), six.view(), biased.view()), {"experts.size is 6", "3"});
  ExpectInvalid(add_bias(bias.view(), three, bias.view().Rows(1, 3)), {"out overlaps bias"});
  const Numbers beyond_bias(backend, {-1, 1, 4});
  if (!backend.device_memory().has_value()) {
    ExpectInvalid(add_bias(bias.view(), beyond_bias.view(), biased.view()),
                  {"AddExpertBias", "experts[0] is -1", "0 .. 3"});
  } else {
    const std::vector<double> was = biased.Values();
    ASSERT_OK(add_bias(bias.view(), beyond_bias.view(), biased.view()));
    biased.Download();
    EXPECT_EQ(biased.at(0, 2), was[2]);
    EXPECT_EQ(biased.at(2, 2), was[12]);
    EXPECT_NE(biased.at(1, 2), was[7]);
  }

  Tensor sum(backend, kF32, 3, 5), of_two = Random(3, 2);
  const auto add = [&](ConstMatrixView from, ConstMatrixView by, MatrixView to) {
    return backend.SumExperts(stream, from, by, false, to);
  };
  ExpectInvalid(add(out.view(), of_two.view().Columns(0, 0), sum.view()),
                {"SumExperts", "weights.cols is 0"});
  ExpectInvalid(add(out.view(), of_two.view().Columns(0, 1), sum.view()), {"x.rows is 6", "3"});
  ExpectInvalid(add(out.view(), of_two.view().Rows(0, 2), sum.view()), {"weights.rows is 2", "3"});
  ExpectInvalid(add(out.view(), of_two.view(), out.view().Rows(0, 3)), {"out overlaps x"});
  EXPECT_EQ(weights.Bytes(), before);
}

INSTANTIATE_CONFORMANCE(ExpertsConformance);

}  // namespace
}  // namespace kvblend::kernels
