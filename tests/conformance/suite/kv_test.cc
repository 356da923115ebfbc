// Rope and KvScatter of every backend.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

class KvConformance : public ConformanceTest {};

// Element d of `head` rotated to `position`, in double precision, and the magnitude that bounds its error.
std::pair<double, double> Rotated(const Tensor& x, int64_t row, int64_t head, int64_t d, int64_t head_dim,
                                  int64_t position, RopeLayout layout) {
  const int64_t half = head_dim / 2;
  const bool interleaved = layout == RopeLayout::kInterleaved;
  const int64_t pair = interleaved ? d / 2 : d % half;
  const bool second = interleaved ? d % 2 == 1 : d >= half;
  const double a = x.at(row, head * head_dim + (interleaved ? 2 * pair : pair));
  const double b = x.at(row, head * head_dim + (interleaved ? 2 * pair + 1 : pair + half));
  const auto inv_freq = static_cast<float>(std::pow(10000.0, -2.0 * static_cast<double>(pair) / head_dim));
  const double angle = static_cast<double>(position) * inv_freq;
  const double value =
      second ? a * std::sin(angle) + b * std::cos(angle) : a * std::cos(angle) - b * std::sin(angle);
  return {value, std::abs(a) + std::abs(b)};
}

TEST_P(KvConformance, Rope) {
  for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
    for (const int64_t head_dim : {2, 6, 34, 64, 128}) {
      SCOPED_TRACE(absl::StrCat("layout ", static_cast<int>(layout), ", head_dim ", head_dim));
      const BatchCase batch{
          .sequences = {{100, Range(0, 100)}, {5000, {0, 1, 777, 4999}}, {9, {}}, {1, {0}}}};
      PagedBatch kv(backend, batch, 1, static_cast<int32_t>(head_dim), kF32, rng);
      const auto rope = MakeRope(backend, layout, head_dim, 5000);
      const int32_t num_heads = 3;
      Tensor x = Random(batch.num_rows(), num_heads * head_dim, num_heads * head_dim + 7);
      std::vector<int32_t> positions;
      for (const auto& [kv_len, of_sequence] : batch.sequences) {
        positions.insert(positions.end(), of_sequence.begin(), of_sequence.end());
      }
      ASSERT_OK(backend.Rope(stream, kv.plan(), *rope, num_heads, x.view()));
      ExpectElements(x, [&](int64_t row, int64_t i) -> Expected {
        const auto [value, size] =
            Rotated(x, row, i / head_dim, i % head_dim, head_dim, positions[row], layout);
        return {value, 4 * 0x1p-24 * size};
      });
    }
  }
}

TEST_P(KvConformance, KvScatterWritesRotatedKeysIntoTheirSlotsOnly) {
  struct Types {
    DataType in, pages;
  };
  for (const Types& types : {Types{kF32, kF32}, {kF32, kBF16}, {kBF16, kBF16}, {kF32, kF16}, {kF16, kF16}}) {
    for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
      for (const auto& [head_dim, page_size] : {std::pair{2, 16}, {34, 16}, {64, 16}, {96, 64}, {64, 128}}) {
        SCOPED_TRACE(absl::StrCat(std::string(Name(types.in)), " to ", std::string(Name(types.pages)),
                                  ", layout ", static_cast<int>(layout), ", head_dim ", head_dim,
                                  ", page_size ", page_size));
        const int32_t kv_heads = 3;
        const BatchCase batch{.sequences = {{200, RandomPositions(rng, 61, 200)},
                                            {17, Range(0, 17)},
                                            {33, {32}},
                                            {140, Range(59, 140)}},
                              .page_size = page_size};
        PagedBatch kv(backend, batch, kv_heads, head_dim, types.pages, rng);
        const auto rope = MakeRope(backend, layout, head_dim, 256);
        const int64_t cols = kv_heads * head_dim;
        Tensor k(backend, types.in, batch.num_rows(), cols, cols + 6);
        Tensor v(backend, types.in, batch.num_rows(), cols, cols + 3);
        k.Randomize(rng);
        v.Randomize(rng);
        std::vector<double> expected_k = kv.k_tensor().Values(), expected_v = kv.v_tensor().Values();
        std::vector<double> bound_k(expected_k.size(), 0.0), bound_v(expected_v.size(), 0.0);
        const double u = types.pages == kF32 ? 0 : UnitRoundoff(types.pages);
        int64_t row = 0;
        for (size_t s = 0; s < batch.sequences.size(); ++s) {
          for (const int32_t position : batch.sequences[s].positions) {
            for (int64_t i = 0; i < cols; ++i) {
              const int64_t slot = kv.SlotRow(s, position, i / head_dim);
              const int64_t at_k = kv.KeyElement(slot, i % head_dim),
                            at_v = kv.ValueElement(slot, i % head_dim);
              const auto [value, size] =
                  Rotated(k, row, i / head_dim, i % head_dim, head_dim, position, layout);
              expected_k[at_k] = value;
              bound_k[at_k] = 4 * 0x1p-24 * size + u * std::abs(value) + (u > 0 ? 0x1p-25 : 0);
              expected_v[at_v] = v.at(row, i);
              bound_v[at_v] = types.in == types.pages ? 0 : u * std::abs(v.at(row, i)) + 0x1p-25;
            }
            ++row;
          }
        }
        ASSERT_OK(backend.KvScatter(stream, kv.plan(), *rope, k.view(), v.view(), kv.pages()));
        ExpectWithin(kv.k_tensor().Values(), expected_k, bound_k);
        ExpectWithin(kv.v_tensor().Values(), expected_v, bound_v);
      }
    }
  }
}

// K is stored before RoPE so that placing it anywhere is one rotation: the same as rotating first and storing
// then.
TEST_P(KvConformance, KvScatterEqualsRopeThenStore) {
  const BatchCase batch{.sequences = {{3000, RandomPositions(rng, 100, 3000)}}};
  for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
    PagedBatch kv(backend, batch, 2, 64, kF32, rng);
    const auto rope = MakeRope(backend, layout, 64, 3000);
    Tensor k = Random(100, 128), v = Random(100, 128);
    ASSERT_OK(backend.KvScatter(stream, kv.plan(), *rope, k.view(), v.view(), kv.pages()));
    ASSERT_OK(backend.Rope(stream, kv.plan(), *rope, 2, k.view()));
    kv.Download();
    k.Download();
    for (int64_t i = 0; i < 100; ++i) {
      for (int64_t c = 0; c < 128; ++c) {
        ASSERT_EQ(kv.k(0, batch.sequences[0].positions[i], c / 64, c % 64), k.at(i, c));
        ASSERT_EQ(kv.v(0, batch.sequences[0].positions[i], c / 64, c % 64), v.at(i, c));
      }
    }
  }
}

// Scores depend on the distance of two positions only.
TEST_P(KvConformance, RopeIsRelative) {
  for (const RopeLayout layout : {RopeLayout::kInterleaved, RopeLayout::kSplitHalf}) {
    const auto rope = MakeRope(backend, layout, 64, 4000);
    const Tensor q = Random(1, 64), k = Random(1, 64);
    std::vector<double> dots;
    for (const int32_t shift : {0, 1, 1000, 3900}) {
      const auto rotated = [&](const Tensor& x, int32_t position) {
        Tensor copy(backend, kF32, 1, 64);
        copy.Fill([&](int64_t, int64_t c) { return static_cast<float>(x.at(0, c)); });
        PagedBatch kv(backend, {.sequences = {{4000, {position}}}}, 1, 64, kF32, rng);
        EXPECT_TRUE(backend.Rope(stream, kv.plan(), *rope, 1, copy.view()).ok());
        return copy.Values();
      };
      const std::vector<double> a = rotated(q, 40 + shift), b = rotated(k, 3 + shift);
      double dot = 0;
      for (size_t d = 0; d < 64; ++d) dot += a[d] * b[d];
      dots.push_back(dot);
    }
    for (const double dot : dots) EXPECT_NEAR(dot, dots[0], 64 * 4 * 0x1p-23);
  }
}

INSTANTIATE_CONFORMANCE(KvConformance);

}  // namespace
}  // namespace kvblend::kernels
