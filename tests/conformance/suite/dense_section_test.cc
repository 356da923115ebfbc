// The values that dense encodings round, and the two 16-bit types' every pattern.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"
#include "tests/conformance/stored_section.h"

namespace kvblend::kernels {
namespace {

class DenseSectionConformance : public ConformanceTest {};

TEST_P(DenseSectionConformance, RoundsToNearestEven) {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               -1.0f,
                               65504.0f,
                               65519.0f,
                               65520.0f,
                               -65520.0f,
                               1e38f,
                               3.4e38f,
                               0x1p-14f,
                               0x1p-15f,
                               0x1p-24f,
                               0x1p-25f,
                               0x1.8p-25f,
                               0x1.8p-24f,
                               0x1p-40f,
                               1.0f + 0x1p-8f,
                               1.0f + 0x3p-8f,
                               1.0f + 0x1p-11f,
                               1.0f + 0x3p-11f,
                               1.0f + 0x1p-8f + 0x1p-20f,
                               INFINITY,
                               -INFINITY,
                               NAN};
  NormalValues normal;
  for (int i = 0; i < 1000; ++i) values.push_back(normal(rng) * std::exp(4 * normal(rng)));
  const auto n = static_cast<int64_t>(values.size());
  Tensor in(backend, kF32, 1, n);
  in.Fill([&](int64_t, int64_t c) { return values[c]; });
  struct Format {
    KvEncoding encoding;
    int digits, min_exponent;
    double max;
  };
  for (const Format& f :
       {Format{KvEncoding::kBF16, 8, -126, 0x1.FEp127}, {KvEncoding::kF16, 11, -14, 65504}}) {
    SCOPED_TRACE(std::string(Name(f.encoding)));
    const Section section = Encoded(in, f.encoding, KvPart::kValue);
    std::vector<double> expected, actual;
    for (int64_t c = 0; c < n; ++c) {
      // Independent of bit patterns: a multiple of the spacing at this magnitude, nearest with ties to even.
      const float value = values[c];
      int exponent = 0;
      std::frexp(value, &exponent);
      const double spacing = std::ldexp(1.0, std::max(exponent - 1, f.min_exponent) - (f.digits - 1));
      double rounded = std::isfinite(value) ? std::nearbyint(value / spacing) * spacing : double{value};
      if (std::abs(rounded) > f.max)
        rounded = std::copysign(std::numeric_limits<double>::infinity(), rounded);
      expected.push_back(rounded);
      actual.push_back(section.Value(0, c));
    }
    ExpectWithin(actual, expected, std::vector<double>(expected.size(), 0.0));
  }
}

// Every 16-bit pattern survives the way from f32 into a section, and from there into pages of either type.
TEST_P(DenseSectionConformance, KeepsEveryPattern) {
  const BatchCase batch{.sequences = {{256, Range(0, 256)}}};
  const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 256, 256);
  for (const DataType dtype : {kBF16, kF16}) {
    Tensor all(backend, kF32, 256, 256, 300);
    // NaN patterns collapse into one, all others are distinct.
    all.Fill([&](int64_t r, int64_t c) {
      const auto bits = static_cast<uint32_t>(r * 256 + c);
      if (dtype == kBF16) return std::bit_cast<float>(bits << 16);
      const double magnitude =
          (bits & 0x7C00u) == 0 ? std::ldexp(bits & 0x3FFu, -24)
          : (bits & 0x7C00u) == 0x7C00u
              ? ((bits & 0x3FFu) != 0 ? std::nan("") : HUGE_VAL)
              : std::ldexp(1024 + (bits & 0x3FFu), static_cast<int>((bits >> 10) & 31) - 25);
      return static_cast<float>((bits & 0x8000u) != 0 ? -magnitude : magnitude);
    });
    const Section k = Encoded(all, DenseEncoding(dtype), KvPart::kKey),
                  v = Encoded(all, DenseEncoding(dtype), KvPart::kValue);
    ExpectElements(all, [&](int64_t r, int64_t c) -> Expected { return {v.Value(r, c), 0}; });
    for (const DataType pages : {kF32, dtype}) {
      PagedBatch kv(backend, batch, 1, 256, pages, rng);
      ASSERT_OK(backend.KvLoad(stream, kv.plan(), *rope, k.view(), v.view(), kv.pages()));
      kv.Download();
      ExpectElements(all, [&](int64_t r, int64_t c) -> Expected { return {kv.v(0, r, 0, c), 0}; });
    }
  }
}

INSTANTIATE_CONFORMANCE(DenseSectionConformance);

}  // namespace
}  // namespace kvblend::kernels
