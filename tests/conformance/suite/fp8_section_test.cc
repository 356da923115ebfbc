// The fp8 sections of every backend: what codes stand for, and how they are chosen.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/stored_section.h"

namespace kvblend::kernels {
namespace {

constexpr double kValues[256] = {
#include "tests/conformance/suite/e4m3_values.inc"
};

/// The code whose value is nearest; of two, the one with the even mantissa.
int Nearest(double magnitude) {
  const int above =
      static_cast<int>(std::lower_bound(kValues, kValues + 0x7F, magnitude) - kValues);  // 0x7F is NaN
  if (above == 0 || above == 0x7F) return std::min(above, 0x7E);
  const double to_above = kValues[above] - magnitude, to_below = magnitude - kValues[above - 1];
  if (to_above == to_below) return above % 2 == 0 ? above : above - 1;
  return to_above < to_below ? above : above - 1;
}

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

class Fp8SectionConformance : public ConformanceTest {
 protected:
  /// All codes in every column, with steps in turn.
  Section AllCodes(KvPart part, int64_t cols, const std::vector<uint16_t>& steps) {
    Section section(backend, KvEncoding::kFp8, part, 256, cols);
    for (int64_t row = 0; row < 256; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        section.SetStep(row, col, steps[section.ScaleIndex(row, col) % steps.size()]);
        section.bytes()[section.layout().codes + row * cols + col] = static_cast<std::byte>(row + 37 * col);
      }
    }
    section.Upload();
    return section;
  }
};

// V is not rotated, so that f32 pages hold what the codes are decoded to.
TEST_P(Fp8SectionConformance, EveryCodeIsStepTimesItsValue) {
  // 1, 0.82, the smallest subnormal, 2^-120, the largest, 0, NaN
  const std::vector<uint16_t> steps = {0x3F80, 0x3F52, 0x0001, 0x0380, 0x7B12, 0, 0x7FC0};
  const BatchCase batch{.sequences = {{256, Range(0, 256)}}};
  for (const int32_t cols : {34, 64}) {
    SCOPED_TRACE(absl::StrCat(cols, " columns"));
    const Section k = AllCodes(KvPart::kKey, cols, {0x3F80}), v = AllCodes(KvPart::kValue, cols, steps);
    PagedBatch kv(backend, batch, 1, cols, kF32, rng);
    const auto rope = MakeRope(backend, RopeLayout::kInterleaved, cols, 256);
    ASSERT_OK(backend.KvLoad(stream, kv.plan(), *rope, k.view(), v.view(), kv.pages()));
    kv.Download();
    for (int64_t r = 0; r < 256; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const double expected = v.Step(r, c) * kValues[v.Code(r, c)], loaded = kv.v(0, r, 0, c);
        ASSERT_TRUE(Same(loaded, expected)) << v.Step(r, c) << " * code " << v.Code(r, c) << ": " << loaded;
        ASSERT_TRUE(Same(v.Value(r, c), expected));  // which is exact in f32
      }
    }
  }
}

TEST_P(Fp8SectionConformance, EveryCodeIsLoadedAsItIsDecoded) {
  const std::vector<uint16_t> steps = {0x3F80, 0x3F52, 0x3A19, 0x4277, 0x7FC0};
  BatchCase batch{.sequences = {{300, RandomPositions(rng, 256, 300)}}};
  for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
    for (const auto& [head_dim, page_size] : {std::pair{64, 16}, {34, 16}, {64, 64}}) {
      SCOPED_TRACE(absl::StrCat("layout ", static_cast<int>(layout), ", head_dim ", head_dim, ", page_size ",
                                page_size));
      batch.page_size = page_size;
      const int64_t cols = 2 * head_dim;
      Section k = AllCodes(KvPart::kKey, cols, steps), v = AllCodes(KvPart::kValue, cols, steps);
      Tensor k_values(backend, kF32, 256, cols), v_values(backend, kF32, 256, cols);
      k_values.Fill([&](int64_t r, int64_t c) { return k.Value(r, c); });
      v_values.Fill([&](int64_t r, int64_t c) { return v.Value(r, c); });
      Rng same = rng;
      PagedBatch loaded(backend, batch, 2, head_dim, kBF16, rng),
          expected(backend, batch, 2, head_dim, kBF16, same);
      const auto rope = MakeRope(backend, layout, head_dim, 300);
      ASSERT_OK(backend.KvScatter(stream, expected.plan(), *rope, k_values.view(), v_values.view(),
                                  expected.pages()));
      ASSERT_OK(backend.KvLoad(stream, loaded.plan(), *rope, k.view(), v.view(), loaded.pages()));
      for (auto [actual, wanted] : {std::pair(loaded.k_tensor().Values(), expected.k_tensor().Values()),
                                    std::pair(loaded.v_tensor().Values(), expected.v_tensor().Values())}) {
        for (size_t i = 0; i < actual.size(); ++i) ASSERT_TRUE(Same(actual[i], wanted[i])) << i;
      }
    }
  }
}

TEST_P(Fp8SectionConformance, CodesAreTheNearestTiesToEven) {
  std::vector<float> values = {0.0f, 0x1p-140f, 0x1p-40f};
  for (int code = 0; code < 0x7E; ++code) {
    const auto low = static_cast<float>(kValues[code]), high = static_cast<float>(kValues[code + 1]);
    const float middle = (low + high) / 2;
    for (const float value : {low, std::nextafter(low, high), std::nextafter(middle, low), middle,
                              std::nextafter(middle, high), std::nextafter(high, low)}) {
      values.push_back(value);
    }
  }
  // Groups of 31 and the largest value, which makes the step 1.
  const int64_t groups = (static_cast<int64_t>(values.size()) + 30) / 31;
  values.resize(groups * 31, 1.0f);
  for (const KvPart part : kParts) {
    for (const float scale : {1.0f, -1.0f, 0x1p-30f, -0x1p60f}) {
      SCOPED_TRACE(absl::StrCat(part == KvPart::kKey ? "K" : "V", " times ", scale));
      const auto value_at = [&](int64_t row, int64_t col) {
        const int64_t group = part == KvPart::kKey ? col : row, i = part == KvPart::kKey ? row : col;
        return scale * (i == 31 ? 448.0f : values[group * 31 + i]);
      };
      Tensor x(backend, kF32, part == KvPart::kKey ? 32 : groups, part == KvPart::kKey ? groups : 32);
      x.Fill(value_at);
      const Section section = Encoded(x, KvEncoding::kFp8, part);
      for (int64_t r = 0; r < x.rows(); ++r) {
        for (int64_t c = 0; c < x.cols(); ++c) {
          const double value = value_at(r, c), step = std::abs(scale);
          ASSERT_EQ(section.Step(r, c), step);
          const int sign = std::signbit(value) ? 0x80 : 0;
          ASSERT_EQ(section.Code(r, c), Nearest(std::abs(value) / step) | sign) << value / step;
        }
      }
    }
  }
}

TEST_P(Fp8SectionConformance, ValuesDecodeToWithinASixteenth) {
  for (const KvPart part : kParts) {
    for (const float largest : {1.0f, 3e-30f, 447.9f, 1e30f, std::numeric_limits<float>::max()}) {
      SCOPED_TRACE(absl::StrCat(part == KvPart::kKey ? "K" : "V", " up to ", largest));
      std::uniform_real_distribution<float> fraction(-1, 1), halvings(0, 30);
      Tensor x(backend, kF32, 100, 65);
      x.Fill([&](int64_t r, int64_t c) {
        if ((r + c) % 50 == 0) return largest;
        return largest * fraction(rng) * std::exp2(-halvings(rng));
      });
      const Section section = Encoded(x, KvEncoding::kFp8, part);
      std::map<int64_t, double> largest_of;  // by ScaleIndex
      for (int64_t r = 0; r < 100; ++r) {
        for (int64_t c = 0; c < 65; ++c) {
          double& found = largest_of[section.ScaleIndex(r, c)];
          found = std::max(found, std::abs(x.at(r, c)));
        }
      }
      for (int64_t r = 0; r < 100; ++r) {
        for (int64_t c = 0; c < 65; ++c) {
          const double top = largest_of[section.ScaleIndex(r, c)];
          const double step = section.Step(r, c), value = x.at(r, c);
          ASSERT_LE(448 * step, std::numeric_limits<float>::max());
          ASSERT_GE(step * (largest > 1e38f ? 1 + 0x1p-7 : 1 + 0x1p-23), top / 448);
          ASSERT_LE(step, top / 448 * (1 + 0x1p-7) + 0x1p-133);
          ASSERT_LE(std::abs(step * kValues[section.Code(r, c)] - value),
                    std::max({std::abs(value) / 16, step * 0x1p-10, 0x1p-119}))
              << "row " << r << ", column " << c;
        }
      }
    }
  }
}

TEST_P(Fp8SectionConformance, WhatIsNotFiniteHasACodeOfItsOwn) {
  for (const KvPart part : kParts) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
      Tensor x(backend, kF32, 32, 32);
      x.Fill([&](int64_t r, int64_t c) { return r == c ? bad : r < c ? -1.5f : 2.5f; });
      const Section section = Encoded(x, KvEncoding::kFp8, part);
      for (int64_t r = 0; r < 32; ++r) {
        for (int64_t c = 0; c < 32; ++c) {
          ASSERT_TRUE(std::isnan(section.Step(r, c)));
          ASSERT_EQ(section.Code(r, c), r == c ? 0x7F : r < c ? 0x80 : 0) << r << ", " << c;
        }
      }
    }
  }
}

INSTANTIATE_CONFORMANCE(Fp8SectionConformance);

}  // namespace
}  // namespace kvblend::kernels
