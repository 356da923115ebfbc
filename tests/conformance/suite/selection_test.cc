// MassScores and SelectTopK of every backend, exactly.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"

namespace kvblend::kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Square(float x) { return x * x; }

class SelectionConformance : public ConformanceTest {
 protected:
  std::vector<int32_t> Select(const std::vector<float>& scores, int64_t k) {
    Tensor row(backend, kF32, 1, scores.size());
    row.Fill([&](int64_t, int64_t c) { return scores[c]; });
    const auto buffer = backend.Allocate(k * int64_t{sizeof(int32_t)}).value();
    EXPECT_OK(backend.SelectTopK(stream, row.view(), {static_cast<int32_t*>(buffer->data()), k}));
    std::vector<int32_t> chosen(k);
    CopyOut(backend, chosen.data(), *buffer, buffer->size_bytes());
    return chosen;
  }

  using Rows = std::vector<std::vector<float>>;

  std::vector<double> Scores(const Rows& mass, const Rows& lengths, const std::vector<ColumnRange>& counted,
                             const std::vector<ColumnRange>& wanted) {
    int64_t columns = 0;
    for (const ColumnRange& range : wanted) columns += range.end - range.begin;
    Tensor of_mass(backend, kF32, mass.size(), mass[0].size(), mass[0].size() + 3),
        of_lengths(backend, kF32, mass.size(), mass[0].size(), mass[0].size() + 5);
    of_mass.Fill([&](int64_t r, int64_t c) { return mass[r][c]; });
    of_lengths.Fill([&](int64_t r, int64_t c) { return lengths[r][c]; });
    Tensor out(backend, kF32, 1, columns);
    EXPECT_OK(backend.MassScores(stream, of_mass.view(), of_lengths.view(), counted, wanted, out.view()));
    return out.Values();
  }
  /// All values are of one length.
  std::vector<double> Scores(const Rows& mass, const std::vector<ColumnRange>& counted,
                             const std::vector<ColumnRange>& wanted) {
    return Scores(mass, Rows(mass.size(), std::vector<float>(mass[0].size(), 2.0f)), counted, wanted);
  }
};

TEST_P(SelectionConformance, TakesTheHighestAscendingAndTheLowerOfEquals) {
  const std::vector<float> scores = {1, 7, 3, 7, 2, 7};
  EXPECT_THAT(Select(scores, 2), ElementsAre(1, 3));
  EXPECT_THAT(Select(scores, 4), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(Select(scores, 6), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Select(scores, 0), ElementsAre());
  EXPECT_THAT(Select({}, 0), ElementsAre());
}

TEST_P(SelectionConformance, NanIsAsLowAsMinusInfinityAndZerosAreEqual) {
  EXPECT_THAT(Select({kNan, -kInfinity, -5, kInfinity}, 2), ElementsAre(2, 3));
  EXPECT_THAT(Select({kNan, -kInfinity, -5, kInfinity}, 3), ElementsAre(0, 2, 3));
  EXPECT_THAT(Select({-kInfinity, kNan, -5, kInfinity}, 3), ElementsAre(0, 2, 3));
  EXPECT_THAT(Select({-0.0f, 0.0f, -1e-45f, 0.0f}, 1), ElementsAre(0));
  EXPECT_THAT(Select({-1e-45f, 0.0f, -0.0f, 1e-45f}, 3), ElementsAre(1, 2, 3));
}

TEST_P(SelectionConformance, AgreesWithSorting) {
  for (const int64_t n : {1, 2, 31, 32, 33, 500, 512, 513, 6000}) {
    for (const bool ties : {false, true}) {
      NormalValues normal;
      std::vector<float> scores(n);
      for (float& score : scores) score = ties ? std::round(normal(rng)) : normal(rng);
      std::vector<int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
      for (const int64_t k : {int64_t{1}, (n + 6) / 7, n / 2, n}) {
        SCOPED_TRACE(absl::StrCat(k, " of ", n, ties ? ", many equal" : ""));
        std::vector<int32_t> expected(order.begin(), order.begin() + k);
        std::sort(expected.begin(), expected.end());
        EXPECT_EQ(Select(scores, k), expected);
      }
    }
  }
}

TEST_P(SelectionConformance, ScoresAreTheSumOfEachRowsSquaredShare) {
  // Two layers, six positions: anchor 0, chunk A (exact) 1-2, chunk B (candidate) 3-4, question 5.
  const std::vector<std::vector<float>> mass = {{9, 1, 1, 2, 0, 1},   // chunk total 4
                                                {0, 0, 0, 3, 9, 0}};  // chunk total 12
  EXPECT_THAT(Scores(mass, {{1, 3}, {3, 5}}, {{3, 5}}), ElementsAre(0.25 + 0.0625, 0.5625));
}

TEST_P(SelectionConformance, LongValuesCountMore) {
  // Where there is attention lengths are 7 / 3 on average; what is not counted may be anything.
  EXPECT_THAT(Scores({{9, 1, 1, 2, 0, 1}}, {{kNan, 1, 2, 4, 1, kInfinity}}, {{1, 5}}, {{1, 5}}),
              ElementsAre(Square(3 / 28.0f), Square(6 / 28.0f), Square(24 / 28.0f), 0));
  // Nor does it matter what lies where nobody looks.
  EXPECT_THAT(Scores({{0, 3, 1}}, {{kNan, 1, 3}}, {{0, 3}}, {{0, 3}}), ElementsAre(0, 0.140625, 0.140625));
  // Of two layers that look at one column each, the one that finds more there has more say.
  EXPECT_THAT(Scores({{4, 1e-20f}, {1e-20f, 4}}, {{1, 3}, {1, 3}}, {{0, 2}}, {{0, 2}}),
              ElementsAre(0.25, 2.25));
}

TEST_P(SelectionConformance, ARowThatSeesNothingCountedHasNoSay) {
  EXPECT_THAT(Scores({{5, 0, 0, 1}}, {{1, 3}}, {{1, 3}}), ElementsAre(0, 0));
  EXPECT_THAT(Scores({{5, 0, 0, 1}, {0, 1, 3, 0}}, {{1, 3}}, {{0, 1}, {2, 4}}), ElementsAre(0, 0.5625, 0));
  EXPECT_THAT(Scores({{5, kNan, 1}, {1, 1, 1}}, {{0, 3}}, {{0, 3}}), Each(Square(1 / 3.0f)));
  EXPECT_THAT(Scores({{1, 2}}, {}, {{0, 2}}), ElementsAre(0, 0));
}

TEST_P(SelectionConformance, ScoresOfManyLayersBitByBit) {
  const int64_t columns = 700;
  std::exponential_distribution<float> share;
  Rows mass(5, std::vector<float>(columns)), lengths = mass;
  for (Rows* rows : {&mass, &lengths}) {
    for (auto& row : *rows) {
      for (float& value : row) value = share(rng);
    }
  }
  const std::vector<ColumnRange> counted = {{3, 40}, {40, 41}, {100, 100}, {128, 660}};
  const std::vector<ColumnRange> wanted = {{3, 20}, {200, 640}};
  const auto total = [&](const std::vector<float>& row) {
    double sums = 0;
    for (const ColumnRange& part : counted) {
      double sum = 0;
      for (int32_t j = part.begin; j < part.end; ++j) sum += row[j];
      sums += sum;
    }
    return sums;
  };
  std::vector<double> expected;
  for (const ColumnRange& range : wanted) {
    for (int32_t c = range.begin; c < range.end; ++c) {
      float score = 0;
      for (size_t r = 0; r < mass.size(); ++r) {
        const double totals = total(mass[r]) * total(lengths[r]);
        const float product = mass[r][c] * lengths[r][c];
        score += Square(product * static_cast<float>(570.0 / totals));
      }
      expected.push_back(score);
    }
  }
  EXPECT_EQ(Scores(mass, lengths, counted, wanted), expected);
}

TEST_P(SelectionConformance, Errors) {
  Tensor mass(backend, kF32, 2, 10), lengths(backend, kF32, 2, 10), half(backend, kF16, 2, 10),
      out(backend, kF32, 1, 4);
  const std::vector<ColumnRange> all = {{0, 10}}, four = {{2, 4}, {8, 10}}, beyond = {{0, 2}, {4, 11}},
                                 backwards = {{4, 3}}, negative = {{-1, 3}};
  const auto scores = [&](ConstMatrixView in, absl::Span<const ColumnRange> counted,
                          absl::Span<const ColumnRange> wanted, MatrixView to) {
    return backend.MassScores(stream, in, lengths.view(), counted, wanted, to);
  };
  ASSERT_OK(scores(mass.Fill([](int64_t, int64_t) { return 1.0f; }).view(), all, four, out.view()));
  ExpectInvalid(scores(half.view(), all, four, out.view()), {"MassScores", "mass.dtype is f16"});
  ExpectInvalid(scores(mass.view(), beyond, four, out.view()),
                {"counted[1] is columns 4 to 11", "within 0 to 10"});
  ExpectInvalid(scores(mass.view(), all, backwards, out.view()), {"wanted[0] is columns 4 to 3"});
  ExpectInvalid(scores(mass.view(), negative, four, out.view()), {"counted[0] is columns -1 to 3"});
  ExpectInvalid(scores(mass.view(), all, all, out.view()), {"out.cols is 4", "10"});
  ExpectInvalid(scores(mass.view(), all, four, mass.view().Rows(0, 1).Columns(0, 4)), {"out overlaps mass"});

  const auto indices = backend.Allocate(64).value();
  auto* data = static_cast<int32_t*>(indices->data());
  ExpectInvalid(backend.SelectTopK(stream, mass.view(), {data, 4}), {"SelectTopK", "scores.rows is 2", "1"});
  ExpectInvalid(backend.SelectTopK(stream, half.view().Rows(0, 1), {data, 4}), {"scores.dtype is f16"});
  ExpectInvalid(backend.SelectTopK(stream, mass.view().Rows(0, 1), {data, 11}),
                {"out.size is 11", "scores.cols = 10"});
  ExpectInvalid(backend.SelectTopK(stream, mass.view().Rows(0, 1), {data, -1}), {"out.size is -1"});
  ExpectInvalid(backend.SelectTopK(stream, mass.view().Rows(0, 1), {nullptr, 4}), {"out.data is null"});
  ExpectInvalid(
      backend.SelectTopK(stream, mass.view().Rows(0, 1), {static_cast<int32_t*>(mass.view().data), 4}),
      {"out overlaps scores"});
}

INSTANTIATE_CONFORMANCE(SelectionConformance);

}  // namespace
}  // namespace kvblend::kernels
