// EncodeKv, KvLoad and KvDeviation of every backend.
#include "kernels/kv_section.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/normal_values.h"
#include "tests/conformance/stored_section.h"

namespace kvblend::kernels {
namespace {

std::string Describe(KvEncoding encoding, KvPart part, int64_t rows, int64_t cols) {
  return absl::StrCat(std::string(Name(encoding)), part == KvPart::kKey ? " K [" : " V [", rows, ", ", cols,
                      "]");
}

struct Shape {
  int64_t rows, cols;
};
constexpr Shape kShapes[] = {{0, 8},    {1, 1},    {1, 64},    {31, 33},   {32, 32}, {33, 7},
                             {64, 192}, {100, 65}, {257, 130}, {65, 1536}, {300, 96}};

class KvSectionConformance : public ConformanceTest {
 protected:
  // Values like K's: channels of very different size and mean.
  Tensor Values(int64_t rows, int64_t cols) {
    Tensor x(backend, kF32, rows, cols, cols + 5);
    NormalValues normal;
    std::vector<float> mean(cols), size(cols);
    for (int64_t c = 0; c < cols; ++c) {
      mean[c] = 10 * normal(rng);
      size[c] = std::exp(2 * normal(rng));
    }
    return std::move(x.Fill([&](int64_t, int64_t c) { return mean[c] + size[c] * normal(rng); }));
  }
  /// `values` becomes what its section decodes to.
  static Section EncodedAndBack(Tensor& values, KvEncoding encoding, KvPart part) {
    Section section = Encoded(values, encoding, part);
    values.Fill([&](int64_t r, int64_t c) { return section.Value(r, c); });
    return section;
  }
  // Slots that nobody owns hold NaN, so bytes are compared, not values.
  static void ExpectSamePages(PagedBatch& actual, PagedBatch& expected) {
    ASSERT_EQ(actual.k_tensor().Bytes(), expected.k_tensor().Bytes());
    ASSERT_EQ(actual.v_tensor().Bytes(), expected.v_tensor().Bytes());
  }
};

TEST_P(KvSectionConformance, CodesStandForTheirValuesToWithinHalfAStep) {
  for (const KvEncoding encoding : {KvEncoding::kInt8, KvEncoding::kInt4}) {
    const double max_code = encoding == KvEncoding::kInt8 ? 255 : 15;
    for (const KvPart part : kParts) {
      for (const auto& [rows, cols] : kShapes) {
        SCOPED_TRACE(Describe(encoding, part, rows, cols));
        Tensor x = Values(rows, cols);
        const Section section = Encoded(x, encoding, part);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            // The group's range, from the values.
            double low = INFINITY, high = -INFINITY;
            const int64_t r0 = part == KvPart::kKey ? r / 32 * 32 : r,
                          c0 = part == KvPart::kKey ? c : c / 32 * 32;
            for (int64_t i = r0; i < std::min(rows, part == KvPart::kKey ? r0 + 32 : r0 + 1); ++i) {
              for (int64_t j = c0; j < std::min(cols, part == KvPart::kKey ? c0 + 1 : c0 + 32); ++j) {
                low = std::min(low, x.at(i, j));
                high = std::max(high, x.at(i, j));
              }
            }
            const double offset = section.Offset(r, c), step = section.Step(r, c);
            const double rounding = 0x1p-22 * (std::abs(low) + std::abs(high));
            ASSERT_LE(offset, low);
            ASSERT_GE(offset, low - 0x1p-7 * std::abs(low));
            ASSERT_GE(offset + max_code * step, high - rounding);
            ASSERT_LE(step, (high - offset) / max_code * (1 + 0x1p-7) + rounding);
            const double value = offset + step * section.Code(r, c);
            ASSERT_LE(std::abs(value - x.at(r, c)), step / 2 + rounding) << "row " << r << ", column " << c;
            ASSERT_EQ(section.Value(r, c), static_cast<float>(value));  // step * code is exact in f32
          }
        }
      }
    }
  }
}

// Equal values give equal bytes, on every backend, padding included.
TEST_P(KvSectionConformance, BytesAreTheReferences) {
  Backend& reference = TestBackend("reference");
  for (const KvEncoding encoding : kEncodings) {
    for (const KvPart part : kParts) {
      for (const auto& [rows, cols] : kShapes) {
        SCOPED_TRACE(Describe(encoding, part, rows, cols));
        Tensor x = Values(rows, cols);
        Tensor same(reference, kF32, rows, cols);
        same.Fill([&](int64_t r, int64_t c) { return static_cast<float>(x.at(r, c)); });
        ASSERT_EQ(Encoded(x, encoding, part).bytes(), Encoded(same, encoding, part).bytes());
      }
    }
  }
}

TEST_P(KvSectionConformance, EqualValuesAreExactAndExtremesStayInRange) {
  for (const KvEncoding encoding : {KvEncoding::kInt8, KvEncoding::kInt4, KvEncoding::kFp8}) {
    for (const KvPart part : kParts) {
      for (const float value : {0.0f, -0.0f, 1.5f, -1.5f, 3.0e38f, -3.0e38f, 1e-40f}) {
        SCOPED_TRACE(absl::StrCat(Describe(encoding, part, 40, 40), " of ", value));
        Tensor x(backend, kF32, 40, 40);
        x.Fill([&](int64_t, int64_t) { return value; });
        const Section section = Encoded(x, encoding, part);
        // What the step was rounded by; half of that of the offset, where there is one.
        const double rounding = encoding == KvEncoding::kFp8 ? 0x1p-7 : 0x1p-8 / 15;
        ExpectElements(x, [&](int64_t r, int64_t c) -> Expected {
          return {section.Value(r, c), rounding * std::abs(value) + 1e-38};
        });
      }
    }
  }
}

TEST_P(KvSectionConformance, AGroupWithoutAFiniteValueIsNanAndItsNeighboursAreNot) {
  for (const KvEncoding encoding : {KvEncoding::kInt8, KvEncoding::kInt4, KvEncoding::kFp8}) {
    for (const KvPart part : kParts) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
        for (const auto& [bad_row, bad_col] : {Shape{0, 0}, {31, 63}, {40, 17}}) {
          SCOPED_TRACE(
              absl::StrCat(Describe(encoding, part, 70, 70), " ", bad, " at ", bad_row, ", ", bad_col));
          Tensor x = Values(70, 70);
          Tensor spoilt(backend, kF32, 70, 70);
          spoilt.Fill([&, row = bad_row, col = bad_col](int64_t r, int64_t c) {
            return r == row && c == col ? bad : static_cast<float>(x.at(r, c));
          });
          const Section section = Encoded(spoilt, encoding, part);
          for (int64_t r = 0; r < 70; ++r) {
            for (int64_t c = 0; c < 70; ++c) {
              const bool in_group = part == KvPart::kKey ? r / 32 == bad_row / 32 && c == bad_col
                                                         : r == bad_row && c / 32 == bad_col / 32;
              ASSERT_EQ(std::isnan(section.Value(r, c)), in_group) << r << ", " << c;
            }
          }
        }
      }
    }
  }
}

TEST_P(KvSectionConformance, KvLoadIsDecodeThenScatter) {
  // Positions that follow each other, from even and odd ones on, within tiles and across them, and such that
  // do not.
  BatchCase batch{.sequences = {{200, RandomPositions(rng, 61, 200)},
                                {17, Range(0, 17)},
                                {33, {32}},
                                {90, {4, 5, 6, 9, 10, 31, 32, 33, 63, 64, 65, 80, 89}},
                                {250, Range(23, 250)},
                                {200, Range(16, 200)}}};
  for (const KvEncoding encoding : kEncodings) {
    for (const DataType pages : {kF32, kBF16, kF16}) {
      for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
        for (const auto& [head_dim, page_size] :
             {std::pair{2, 16}, {34, 16}, {64, 16}, {128, 16}, {64, 64}, {128, 64}, {32, 64}, {64, 192}}) {
          const bool tiled = backend.best_page_layout(pages, page_size, head_dim) == PageLayout::kTiles;
          if (page_size % kPageTile == 0 && !tiled) continue;
          batch.page_size = page_size;
          SCOPED_TRACE(absl::StrCat(std::string(Name(encoding)), " to ", std::string(Name(pages)),
                                    ", layout ", static_cast<int>(layout), ", head_dim ", head_dim,
                                    ", page_size ", page_size));
          const int64_t rows = batch.num_rows(), cols = 3 * head_dim;
          Rng same = rng;
          PagedBatch loaded(backend, batch, 3, head_dim, pages, rng),
              expected(backend, batch, 3, head_dim, pages, same);
          const auto rope = MakeRope(backend, layout, head_dim, 256);
          Tensor k_values = Values(rows, cols), v_values = Values(rows, cols);
          const Section k = EncodedAndBack(k_values, encoding, KvPart::kKey),
                        v = EncodedAndBack(v_values, encoding, KvPart::kValue);
          ASSERT_OK(backend.KvScatter(stream, expected.plan(), *rope, k_values.view(), v_values.view(),
                                      expected.pages()));
          ASSERT_OK(backend.KvLoad(stream, loaded.plan(), *rope, k.view(), v.view(), loaded.pages()));
          ExpectSamePages(loaded, expected);
        }
      }
    }
  }
}

// The store keeps sections in host memory, whatever memory the backend has.
TEST_P(KvSectionConformance, SectionsMayLieInHostMemory) {
  const BatchCase batch{.sequences = {{90, RandomPositions(rng, 41, 90)}}};
  for (const KvEncoding encoding : kEncodings) {
    SCOPED_TRACE(std::string(Name(encoding)));
    const int64_t rows = batch.num_rows(), cols = 2 * 32;
    Rng same = rng;
    PagedBatch loaded(backend, batch, 2, 32, kBF16, rng), expected(backend, batch, 2, 32, kBF16, same);
    const auto rope = MakeRope(backend, RopeLayout::kSplitHalf, 32, 128);
    Tensor k_values = Values(rows, cols), v_values = Values(rows, cols);
    Tensor fresh = Values(rows, cols);
    const Section k = Encoded(k_values, encoding, KvPart::kKey),
                  v = Encoded(v_values, encoding, KvPart::kValue);
    const auto host_memory = [&](Tensor& values, const Section& section) {
      auto memory = TestBackend("reference").Allocate(section.layout().size_bytes).value();
      MutableKvSectionView host = section.view();
      host.data = memory->data();
      EXPECT_OK(backend.EncodeKv(stream, values.view(), host));
      Tensor from_section(backend, kF32, 1, rows), from_host(backend, kF32, 1, rows);
      EXPECT_OK(backend.KvDeviation(stream, fresh.view(), section.view(), from_section.view()));
      EXPECT_OK(backend.KvDeviation(stream, fresh.view(), host, from_host.view()));
      EXPECT_EQ(from_section.Bytes(), from_host.Bytes());  // which synchronizes
      EXPECT_EQ(std::memcmp(section.bytes().data(), host.data, section.bytes().size()), 0);
      return std::pair(host, std::move(memory));
    };
    const auto [host_k, k_memory] = host_memory(k_values, k);
    const auto [host_v, v_memory] = host_memory(v_values, v);
    ASSERT_OK(backend.KvLoad(stream, expected.plan(), *rope, k.view(), v.view(), expected.pages()));
    ASSERT_OK(backend.KvLoad(stream, loaded.plan(), *rope, host_k, host_v, loaded.pages()));
    ExpectSamePages(loaded, expected);
  }
}

TEST_P(KvSectionConformance, RefusesWhatIsNoSection) {
  const BatchCase batch{.sequences = {{8, Range(0, 8)}}};
  PagedBatch kv(backend, batch, 2, 4, kF32, rng);
  const auto rope = MakeRope(backend, RopeLayout::kInterleaved, 4, 16);
  Section k(backend, KvEncoding::kInt8, KvPart::kKey, 8, 8),
      v(backend, KvEncoding::kInt8, KvPart::kValue, 8, 8);
  Section other(backend, KvEncoding::kInt4, KvPart::kValue, 8, 8);
  const auto load = [&](auto change) {
    KvSectionView bad_k = k.view(), bad_v = v.view();
    change(bad_k, bad_v);
    return backend.KvLoad(stream, kv.plan(), *rope, bad_k, bad_v, kv.pages());
  };
  ASSERT_OK(load([](auto&, auto&) {}));
  ExpectInvalid(load([](auto& a, auto&) { a.encoding = static_cast<KvEncoding>(9); }),
                {"k.encoding is 9; allowed: f32"});
  ExpectInvalid(load([](auto& a, auto&) { a.part = KvPart::kValue; }), {"k.part is 1; allowed: kKey"});
  ExpectInvalid(load([](auto&, auto& b) { b.part = KvPart::kKey; }), {"v.part is 0; allowed: kValue"});
  ExpectInvalid(load([](auto& a, auto&) { a.rows = 7; }), {"k.rows is 7; allowed: 8"});
  ExpectInvalid(load([](auto&, auto& b) { b.cols = 9; }), {"v.cols is 9; allowed: 8"});
  ExpectInvalid(load([](auto& a, auto&) { a.data = nullptr; }), {"k.data is null"});
  ExpectInvalid(load([](auto&, auto& b) { b.data = static_cast<const std::byte*>(b.data) + 4; }),
                {"v.data is not aligned to 64"});
  ExpectInvalid(load([&](auto&, auto& b) { b = other.view(); }), {"v is int4; allowed: k's int8"});

  Tensor x(backend, kF32, 8, 8), wrong(backend, kF32, 8, 7), half(backend, kBF16, 8, 8);
  ExpectInvalid(backend.EncodeKv(stream, wrong.view(), k.view()), {"in.cols is 7; allowed: 8"});
  ExpectInvalid(backend.EncodeKv(stream, half.view(), k.view()), {"in.dtype is bf16; allowed: f32"});
  MutableKvSectionView onto = k.view();
  onto.data = x.view().data;
  ExpectInvalid(backend.EncodeKv(stream, x.view(), onto), {"out overlaps in"});
  MutableKvSectionView huge = k.view();
  huge.rows = int64_t{1} << 60;
  ExpectInvalid(backend.EncodeKv(stream, x.view(), huge), {"does not fit into the address space"});
}

TEST_P(KvSectionConformance, DeviationIsFromWhatTheSectionDecodesTo) {
  for (const KvEncoding encoding : kEncodings) {
    for (const KvPart part : kParts) {
      for (const auto& [rows, cols] : kShapes) {
        SCOPED_TRACE(Describe(encoding, part, rows, cols));
        Tensor values = Values(rows, cols);
        const Section stored = Encoded(values, encoding, part);
        Tensor fresh(backend, kF32, rows, cols, rows % 2 == 0 ? cols : cols + 5);
        fresh.Randomize(rng, 10.0);
        Tensor out(backend, kF32, 1, rows);
        ASSERT_OK(backend.KvDeviation(stream, fresh.view(), stored.view(), out.view()));
        ExpectElements(out, [&, cols = cols](int64_t, int64_t row) -> Expected {
          double sum = 0;
          for (int64_t c = 0; c < cols; ++c) {
            const double difference = fresh.at(row, c) - stored.Value(row, c);
            sum += difference * difference;
          }
          return {sum, sum * (4 * std::sqrt(cols) + 4) * 0x1p-24 + 1e-30};
        });
      }
    }
  }
}

INSTANTIATE_CONFORMANCE(KvSectionConformance);

}  // namespace
}  // namespace kvblend::kernels
