// What CorrectKv of every backend computes.
#include "kernels/kv_correction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"
#include "tests/conformance/stored_section.h"

namespace kvblend::kernels {
namespace {

constexpr KvEncoding kDense[] = {KvEncoding::kF32, KvEncoding::kBF16, KvEncoding::kF16};
constexpr KvEncoding kOutputs[] = {KvEncoding::kF32, KvEncoding::kBF16};

/// A KvCorrectionSpec with its values.
struct Values {
  int64_t cols, rank;
  std::vector<float> scale, offset, down, up;

  template <typename Value>
  Values(int64_t cols, int64_t rank, const Value& value)
      : cols(cols),
        rank(rank),
        scale(2 * cols),
        offset(kNumKvCorrectionPlaces * 2 * cols),
        down(2 * cols * rank),
        up(2 * cols * rank) {
    for (std::vector<float>* part : {&scale, &offset, &down, &up}) {
      for (float& x : *part) x = value();
    }
  }
  KvCorrectionSpec spec() const { return {cols, rank, scale, offset, down, up}; }
  float offset_at(int64_t token, int64_t channel) const {
    return offset[KvCorrectionPlace(token) * 2 * cols + channel];
  }
};

/// K and V as they are stored, and what has been made of them.
struct Stored {
  Section k, v;
  int64_t rows() const { return k.view().rows; }
  int64_t cols() const { return k.view().cols; }
  double x(int64_t row, int64_t channel) const {
    return channel < cols() ? k.Value(row, channel) : v.Value(row, channel - cols());
  }
};

class KvCorrectionConformance : public ConformanceTest {
 protected:
  struct Case {
    int64_t rows, cols, rank;
  };

  template <typename Value>
  Stored Store(KvEncoding encoding, int64_t rows, int64_t cols, const Value& value) {
    const auto store = [&](KvPart part) {
      Tensor x(backend, kF32, rows, cols);
      x.Fill([&](int64_t, int64_t) { return value(); });
      return Encoded(x, encoding, part);
    };
    Section k = store(KvPart::kKey);
    return {std::move(k), store(KvPart::kValue)};
  }
  Stored RandomStored(KvEncoding encoding, int64_t rows, int64_t cols) {
    return Store(encoding, rows, cols, [&] { return 1 + 2 * normal(rng); });
  }
  Values RandomValues(int64_t cols, int64_t rank) {
    return Values(cols, rank, [&] { return normal(rng); });
  }

  /// In memory for a few rows more, which stay as they are.
  Stored Correct(KvSectionView k, KvSectionView v, const KvCorrection& correction, KvEncoding to) {
    constexpr int64_t kRowsBehind = 9;
    const auto room = [&](KvPart part) { return Section(backend, to, part, k.rows + kRowsBehind, k.cols); };
    Stored room_for{room(KvPart::kKey), room(KvPart::kValue)};
    MutableKvSectionView k_out = room_for.k.view(), v_out = room_for.v.view();
    k_out.rows = v_out.rows = k.rows;
    EXPECT_OK(backend.CorrectKv(stream, k, v, correction, k_out, v_out));
    for (Section* section : {&room_for.k, &room_for.v}) {
      const std::vector<std::byte>& bytes = section->Download();
      EXPECT_TRUE(std::all_of(bytes.begin() + k_out.layout().size_bytes, bytes.end(),
                              [](std::byte byte) { return byte == std::byte{0xA5}; }));
    }
    Stored out{Section(backend, to, KvPart::kKey, k.rows, k.cols),
               Section(backend, to, KvPart::kValue, k.rows, k.cols)};
    for (auto [from, cut] : {std::pair(&room_for.k, &out.k), {&room_for.v, &out.v}}) {
      std::copy_n(from->bytes().begin(), cut->bytes().size(), cut->bytes().begin());
    }
    return out;
  }
  Stored Correct(const Stored& in, const KvCorrection& correction, KvEncoding to) {
    return Correct(in.k.view(), in.v.view(), correction, to);
  }

  NormalValues normal;
};

// By the definition, in double.
Expected CorrectedByDefinition(const Stored& in, const Values& w, int64_t row, int64_t channel,
                               const std::vector<double>& inner, const std::vector<double>& inner_squares,
                               DataType compute, DataType to) {
  const int64_t channels = 2 * w.cols;
  const double scaled = double{w.scale[channel]} * in.x(row, channel), offset = w.offset_at(row, channel);
  double sum = 0, squares = 0;
  for (int64_t r = 0; r < w.rank; ++r) {
    const double up = w.up[r * channels + channel];
    sum += inner[r] * up;
    squares += inner_squares[r] * up * up;
  }
  // x, down, x down and up may each be rounded to the compute dtype. These errors are independent of each
  // other, and so are those of the sums: they grow with the root of the sum of squares of the products.
  const double products =
      std::sqrt(squares) * (8 * UnitRoundoff(compute) +
                            (4 * std::sqrt(static_cast<double>(channels + w.rank)) + 4) * UnitRoundoff(kF32));
  // The sums of the products may begin with these two.
  const double others =
      (std::abs(scaled) + std::abs(offset)) * static_cast<double>(w.rank + 4) * UnitRoundoff(kF32);
  // Where the output is rounded anyway, x may be rounded before it is scaled.
  const double early = to == kF32 ? 0 : std::abs(scaled) * UnitRoundoff(compute);
  const double value = scaled + offset + sum, bound = products + others + early;
  const double rounding = to == kF32 ? 0 : (std::abs(value) + bound) * UnitRoundoff(to);
  return {value, bound + rounding + 1e-38};
}

void ExpectCorrected(const Stored& in, const Values& w, const Stored& actual, DataType compute, DataType to) {
  const int64_t channels = 2 * w.cols;
  std::vector<double> found, expected, bounds;
  for (int64_t row = 0; row < in.rows(); ++row) {
    std::vector<double> inner(w.rank), squares(w.rank);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t r = 0; r < w.rank; ++r) {
        const double product = in.x(row, c) * w.down[c * w.rank + r];
        inner[r] += product;
        squares[r] += product * product;
      }
    }
    for (int64_t c = 0; c < channels; ++c) {
      const auto [value, bound] = CorrectedByDefinition(in, w, row, c, inner, squares, compute, to);
      found.push_back(actual.x(row, c));
      expected.push_back(value);
      bounds.push_back(bound);
    }
  }
  ExpectWithin(found, expected, bounds);
}

TEST_P(KvCorrectionConformance, IsTheDefinition) {
  for (const auto& [rows, cols, rank] : {Case{0, 8, 4},
                                         {1, 1, 0},
                                         {1, 1, 1},
                                         {2, 2, 1},
                                         {5, 7, 7},
                                         {40, 96, 0},
                                         {9, 33, 16},
                                         {33, 65, 33},
                                         {8, 64, 16},
                                         {20, 48, 24},
                                         {17, 320, 7},
                                         {530, 32, 3},
                                         {3, 1536, 33}}) {
    const Values values = RandomValues(cols, rank);
    const auto correction = backend.CreateKvCorrection(values.spec()).value();
    EXPECT_EQ(correction->cols(), cols);
    for (const KvEncoding encoding : kEncodings) {
      const Stored stored = RandomStored(encoding, rows, cols);
      for (const KvEncoding to : kOutputs) {
        SCOPED_TRACE(absl::StrCat(std::string(Name(encoding)), " to ", std::string(Name(to)), ", [", rows,
                                  ", ", cols, "], rank ", rank));
        ExpectCorrected(stored, values, Correct(stored, *correction, to), backend.compute_dtype(),
                        DenseType(to));
      }
    }
  }
}

TEST_P(KvCorrectionConformance, RanksMayBeLarge) {
  for (const auto& [rows, cols, rank] : {Case{3, 20, 255}, {9, 11, 300}, {2, 24, kMaxKvCorrectionRank}}) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const Values values = RandomValues(cols, rank);
    const auto correction = backend.CreateKvCorrection(values.spec()).value();
    const Stored stored = RandomStored(KvEncoding::kInt8, rows, cols);
    ExpectCorrected(stored, values, Correct(stored, *correction, KvEncoding::kF32), backend.compute_dtype(),
                    kF32);
  }
}

// Small whole numbers, that no rounding to bf16 and no order of sums changes: not one product may be missing.
TEST_P(KvCorrectionConformance, WholeNumbersAreExact) {
  std::uniform_int_distribution<int> numbers(-2, 2), signs(-2, 2);
  for (const auto& [rows, cols, rank] : {Case{3, 1, 3},
                                         {8, 128, 64},
                                         {33, 65, 16},
                                         {19, 272, 8},
                                         {2, 1000, 128},
                                         {4, 40, 520},
                                         {3, 1536, 33}}) {
    const Values values(cols, rank, [&] { return static_cast<float>(signs(rng) / 2); });  // mostly zeros
    const auto correction = backend.CreateKvCorrection(values.spec()).value();
    for (const KvEncoding encoding : kDense) {
      SCOPED_TRACE(absl::StrCat(std::string(Name(encoding)), ", [", rows, ", ", cols, "], rank ", rank));
      const Stored stored = Store(encoding, rows, cols, [&] { return static_cast<float>(numbers(rng)); });
      const Stored actual = Correct(stored, *correction, KvEncoding::kF32);
      for (int64_t row = 0; row < rows; ++row) {
        std::vector<double> inner(rank);
        for (int64_t c = 0; c < 2 * cols; ++c) {
          for (int64_t r = 0; r < rank; ++r) inner[r] += stored.x(row, c) * values.down[c * rank + r];
        }
        for (const double sum : inner) ASSERT_LE(std::abs(sum), 256) << "which bf16 does not hold exactly";
        for (int64_t c = 0; c < 2 * cols; ++c) {
          double expected = values.scale[c] * stored.x(row, c) + values.offset_at(row, c);
          for (int64_t r = 0; r < rank; ++r) expected += inner[r] * values.up[r * 2 * cols + c];
          ASSERT_EQ(actual.x(row, c), expected) << "row " << row << ", channel " << c;
        }
      }
    }
  }
}

// Each part of the spec by itself, with values that tell its elements from each other.
TEST_P(KvCorrectionConformance, TellsChannelsApart) {
  constexpr int64_t kCols = 37, kRows = 513;  // tokens in all places
  const auto wanted = [&](const Values& values, auto expected) {
    const Stored stored = RandomStored(KvEncoding::kBF16, kRows, kCols);
    const auto correction = backend.CreateKvCorrection(values.spec()).value();
    const Stored actual = Correct(stored, *correction, KvEncoding::kF32);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t c = 0; c < 2 * kCols; ++c) {
        ASSERT_EQ(actual.x(row, c), expected(stored, row, c)) << "row " << row << ", channel " << c;
      }
    }
  };
  const auto zero = [] { return 0.0f; };
  Values scales(kCols, 0, zero), offsets(kCols, 0, zero), routes(kCols, 3, zero);
  for (int c = 0; c < 2 * kCols; ++c) scales.scale[c] = static_cast<float>(c + 1);
  for (int i = 0; i < kNumKvCorrectionPlaces * 2 * kCols; ++i) offsets.offset[i] = static_cast<float>(i + 1);
  wanted(scales,
         [](const Stored& in, int64_t row, int64_t c) { return static_cast<double>(c + 1) * in.x(row, c); });
  wanted(offsets, [](const Stored&, int64_t row, int64_t c) {
    constexpr int64_t kBegins[] = {0, 1, 4, 16, 64, 128, 256, 512};
    const int64_t place =
        std::upper_bound(std::begin(kBegins), std::end(kBegins), row) - std::begin(kBegins) - 1;
    return static_cast<double>(place * 2 * kCols + c + 1);
  });
  // Inner value 1 is a channel of V, and goes to one of K.
  routes.down[(kCols + 5) * 3 + 1] = 2;
  routes.up[1 * 2 * kCols + 30] = 4;
  wanted(routes,
         [](const Stored& in, int64_t row, int64_t c) { return c == 30 ? 8 * in.x(row, kCols + 5) : 0; });
}

TEST_P(KvCorrectionConformance, WhatIsNotFiniteStaysInItsRow) {
  const Values values = RandomValues(40, 5);
  const auto correction = backend.CreateKvCorrection(values.spec()).value();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
    const Stored good = RandomStored(KvEncoding::kF32, 11, 40);
    const Stored expected = Correct(good, *correction, KvEncoding::kF32);
    Stored spoilt = RandomStored(KvEncoding::kF32, 11, 40);
    spoilt.k.bytes() = good.k.bytes();
    spoilt.v.bytes() = good.v.bytes();
    std::memcpy(spoilt.v.bytes().data() + (6 * 40 + 3) * sizeof(float), &bad, sizeof(float));
    spoilt.k.Upload();
    spoilt.v.Upload();
    const Stored actual = Correct(spoilt, *correction, KvEncoding::kF32);
    for (int64_t row = 0; row < 11; ++row) {
      for (int64_t c = 0; c < 80; ++c) {
        if (row == 6) {
          ASSERT_FALSE(std::isfinite(actual.x(row, c))) << "channel " << c;
        } else {
          ASSERT_EQ(actual.x(row, c), expected.x(row, c)) << "row " << row << ", channel " << c;
        }
      }
    }
  }
}

// The store keeps sections in host memory, whatever memory the backend has.
TEST_P(KvCorrectionConformance, SectionsMayLieInHostMemory) {
  const Values values = RandomValues(48, 16);
  const auto correction = backend.CreateKvCorrection(values.spec()).value();
  for (const KvEncoding encoding : kEncodings) {
    SCOPED_TRACE(std::string(Name(encoding)));
    const Stored stored = RandomStored(encoding, 21, 48);
    const auto in_host_memory = [](const Section& section) {
      auto memory = TestBackend("reference").Allocate(section.layout().size_bytes).value();
      std::memcpy(memory->data(), section.bytes().data(), section.bytes().size());
      KvSectionView view = section.view();
      view.data = memory->data();
      return std::pair(view, std::move(memory));
    };
    const auto [k, k_memory] = in_host_memory(stored.k);
    const auto [v, v_memory] = in_host_memory(stored.v);
    const Stored expected = Correct(stored, *correction, KvEncoding::kF32);
    const Stored actual = Correct(k, v, *correction, KvEncoding::kF32);
    EXPECT_EQ(actual.k.bytes(), expected.k.bytes());
    EXPECT_EQ(actual.v.bytes(), expected.v.bytes());
  }
}

INSTANTIATE_CONFORMANCE(KvCorrectionConformance);

}  // namespace
}  // namespace kvblend::kernels
