#include "tests/conformance/cpu/linear_properties.h"

#include <cmath>
#include <limits>

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

void ExpectRowsAsAlone(Backend& backend, const PackedWeights& weights, Tensor& x, int64_t num_outputs) {
  constexpr int64_t kRows = 100;
  EXPECT_GE(weights.rows_as_alone(), kRows);
  Tensor all(backend, kF32, kRows, num_outputs), some(backend, kF32, kRows, num_outputs);
  const auto begin = [](int64_t row, int64_t col) { return static_cast<float>(row - col) / 7; };
  for (const bool accumulate : {false, true}) {
    all.Fill(begin);
    ASSERT_OK(backend.Linear(TestStream(backend), x.view(), weights, accumulate, all.view()));
    all.Download();
    some.Fill(begin);
    int64_t first = 0;
    for (const int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 44}) {
      ASSERT_OK(backend.Linear(TestStream(backend), ConstMatrixView(x.view()).Rows(first, count), weights,
                               accumulate, some.view().Rows(first, count)));
      first += count;
    }
    ASSERT_EQ(first, kRows);
    ExpectElements(some, [&](int64_t r, int64_t o) -> Expected { return {all.at(r, o), 0}; });
  }
}

}  // namespace kvblend::kernels
