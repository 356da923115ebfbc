// SelectiveAttention and AttentionMass of every backend against the definition in double precision.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

struct AttentionCase {
  std::string name;
  BatchCase batch;
  int32_t num_kv_heads = 2;
  int32_t group = 3;
  int32_t head_dim = 64;
  DataType pages = DataType::kBF16;
  int64_t extra_stride = 0;
};

std::vector<AttentionCase> Cases() {
  Rng rng(7);
  std::vector<AttentionCase> cases;
  // Row counts around the decode limit and the tiles, key counts around pages, key steps and key blocks.
  for (const int32_t n : {1, 2, 4, 5, 8, 9, 17, 63, 64, 65, 129, 257, 300}) {
    cases.push_back({absl::StrCat("prefill ", n), {.sequences = {{n, Range(0, n)}}}});
  }
  for (const int32_t kv_len : {1, 15, 16, 17, 255, 256, 257, 700}) {
    cases.push_back({absl::StrCat("decode ", kv_len), {.sequences = {{kv_len, {kv_len - 1}}}}});
  }
  cases.push_back({"chunked prefill", {.sequences = {{310, Range(200, 310)}}}});
  cases.push_back({"rows before the end of the KV", {.sequences = {{400, Range(100, 130)}}}});
  cases.push_back({"gathered", {.sequences = {{600, RandomPositions(rng, 90, 600)}}}});
  cases.push_back({"gathered, few", {.sequences = {{600, {0, 299, 599}}}}});
  cases.push_back({"gathered, sparse", {.sequences = {{1200, {0, 1, 2, 3, 700, 701, 1100, 1199}}}}});
  // Few rows over many keys: their keys are split, and what the parts give is merged.
  for (const int32_t kv_len : {1023, 1025, 2200}) {
    cases.push_back(
        {absl::StrCat("split keys ", kv_len), {.sequences = {{kv_len, RandomPositions(rng, 11, kv_len)}}}});
    cases.push_back({absl::StrCat("split keys in windows ", kv_len),
                     {.sequences = {{kv_len, RandomPositions(rng, 30, kv_len)}}, .sliding_window = 700}});
  }
  cases.push_back({"no rows", {.sequences = {{50, {}}}}});
  cases.push_back({"no sequences", {}});
  cases.push_back({"mixed batch",
                   {.sequences = {{70, Range(0, 70)},
                                  {33, {32}},
                                  {0, {}},
                                  {300, RandomPositions(rng, 40, 300)},
                                  {20, {}},
                                  {513, {100, 512}}}}});
  for (const int32_t window : {1, 7, 64, 300}) {
    cases.push_back({absl::StrCat("window ", window),
                     {.sequences = {{400, RandomPositions(rng, 60, 400)}, {350, Range(0, 350)}, {290, {289}}},
                      .sliding_window = window}});
  }
  cases.push_back(
      {"window with gaps", {.sequences = {{1500, {1, 2, 3, 4, 5, 1400, 1450}}}, .sliding_window = 16}});
  // Several parts in several tasks, in rows that end anywhere in them.
  for (const int32_t window : {0, 777}) {
    cases.push_back({absl::StrCat("long decode, window ", window),
                     {.sequences = {{900, {899}}, {1037, {1035, 1036}}, {961, {960}}, {1024, {1023}}},
                      .sliding_window = window},
                     4,
                     2,
                     128});
  }
  for (const int32_t page_size : {1, 5, 16, 64, 256}) {
    cases.push_back({absl::StrCat("page size ", page_size),
                     {.sequences = {{131, Range(20, 131)}, {77, {3, 76}}}, .page_size = page_size}});
  }
  for (const DataType dtype : {DataType::kF32, DataType::kF16}) {
    cases.push_back(
        {absl::StrCat("pages ", std::string(Name(dtype))),
         {.sequences = {{150, Range(0, 150)}, {300, {299}}, {280, RandomPositions(rng, 30, 280)}}},
         3,
         3,
         64,
         dtype});
  }
  for (const auto& [kv_heads, group] : {std::pair{1, 1}, {1, 8}, {4, 1}, {2, 5}, {1, 32}}) {
    cases.push_back({absl::StrCat(kv_heads, " kv heads, group ", group),
                     {.sequences = {{90, Range(0, 90)}, {40, {39}}}},
                     kv_heads,
                     group});
  }
  for (const DataType dtype : {DataType::kBF16, DataType::kF16}) {
    for (const int32_t head_dim : {2, 6, 33, 80, 128, 250}) {
      cases.push_back({absl::StrCat("head_dim ", head_dim, ", ", std::string(Name(dtype))),
                       {.sequences = {{70, Range(0, 70)}, {40, {39}}}},
                       2,
                       2,
                       head_dim,
                       dtype});
    }
  }
  cases.push_back({"head_dim 264", {.sequences = {{20, {3, 19}}}}, 1, 1, 264});
  cases.push_back(
      {"strides", {.sequences = {{70, Range(0, 70)}, {40, {39}}}}, 3, 3, 64, DataType::kBF16, 13});
  return cases;
}

class AttentionConformance : public ConformanceTest {
 protected:
  /// Cases() and, where the backend has pages of layout kTiles, those that can have them once more in such.
  std::vector<AttentionCase> CasesOfAllLayouts() const {
    std::vector<AttentionCase> cases = Cases();
    for (const AttentionCase& c : Cases()) {
      AttentionCase tiled = c;
      tiled.batch.page_size = static_cast<int32_t>(1 + cases.size() % 2) * kPageTile;
      if (backend.best_page_layout(c.pages, tiled.batch.page_size, c.head_dim) != PageLayout::kTiles)
        continue;
      tiled.name += ", tiles";
      cases.push_back(tiled);
    }
    return cases;
  }
};

TEST_P(AttentionConformance, MatchesDefinition) {
  for (const AttentionCase& c : CasesOfAllLayouts()) {
    for (const DataType out_dtype : OutputTypes()) {
      SCOPED_TRACE(absl::StrCat(c.name, ", out ", std::string(Name(out_dtype))));
      const int32_t num_heads = c.num_kv_heads * c.group;
      const int64_t cols = int64_t{num_heads} * c.head_dim, stride = cols + c.extra_stride;
      const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
      PagedBatch kv(backend, c.batch, c.num_kv_heads, c.head_dim, c.pages, rng);
      Tensor q(backend, DataType::kF32, c.batch.num_rows(), cols, stride);
      Tensor out(backend, out_dtype, c.batch.num_rows(), cols, stride);
      q.Randomize(rng);
      ASSERT_OK(
          backend.SelectiveAttention(stream, kv.plan(), q.view(), num_heads, scale, kv.pages(), out.view()));
      const AttentionOracle oracle = ComputeAttention(c.batch, kv, q, num_heads, c.num_kv_heads, c.head_dim,
                                                      scale, backend.compute_dtype(), c.pages, out_dtype);
      ExpectWithin(out.Values(), oracle.out, oracle.bound);

      Tensor mass(backend, DataType::kF32, 1, kv.plan().total_kv_len());
      ASSERT_OK(
          backend.AttentionMass(stream, kv.plan(), q.view(), num_heads, scale, kv.pages(), mass.view()));
      ExpectWithin(mass.Values(), oracle.mass, oracle.mass_bound);

      Tensor out_of_both(backend, out_dtype, c.batch.num_rows(), cols, stride);
      Tensor mass_of_both(backend, DataType::kF32, 1, kv.plan().total_kv_len());
      ASSERT_OK(backend.SelectiveAttentionWithMass(stream, kv.plan(), q.view(), num_heads, scale, kv.pages(),
                                                   out_of_both.view(), mass_of_both.view()));
      EXPECT_EQ(out_of_both.Values(), out.Values());
      std::vector<double> bound = oracle.mass_bound;
      for (size_t j = 0; j < bound.size(); ++j) {
        bound[j] += UnitRoundoff(backend.compute_dtype()) * oracle.mass[j];
      }
      ExpectWithin(mass_of_both.Values(), oracle.mass, bound);
    }
  }
}

// Scores of very different size: the softmax must neither overflow nor lose the row.
TEST_P(AttentionConformance, LargeScores) {
  for (const int32_t rows : {1, 40}) {
    const BatchCase batch{.sequences = {{300, Range(300 - rows, 300)}}};
    PagedBatch kv(backend, batch, 1, 64, DataType::kBF16, rng);
    Tensor q(backend, DataType::kF32, rows, 64), out(backend, DataType::kF32, rows, 64);
    q.Randomize(rng, 100.0);
    ASSERT_OK(backend.SelectiveAttention(stream, kv.plan(), q.view(), 1, 1.0f, kv.pages(), out.view()));
    for (const double value : out.Values()) {
      ASSERT_TRUE(std::isfinite(value));
      ASSERT_LT(std::abs(value), 6.0);  // a convex combination of normal values
    }
  }
}

// Working memory that an operation pads is not always new: what an earlier call left there, NaN even, changes
// nothing.
TEST_P(AttentionConformance, NothingIsLeftOfEarlierCalls) {
  const auto run = [&](PagedBatch& kv, int32_t num_rows, int32_t head_dim, const auto& check) {
    Tensor q(backend, DataType::kF32, num_rows, head_dim), out(backend, DataType::kF32, num_rows, head_dim);
    Tensor mass(backend, DataType::kF32, 1, kv.plan().total_kv_len());
    q.Randomize(rng);
    ASSERT_OK(backend.SelectiveAttention(stream, kv.plan(), q.view(), 1, 0.1f, kv.pages(), out.view()));
    ASSERT_OK(backend.AttentionMass(stream, kv.plan(), q.view(), 1, 0.1f, kv.pages(), mass.view()));
    check(q, out, mass);
  };
  const BatchCase batch{.sequences = {{70, Range(3, 70)}}};
  for (const int32_t head_dim : {33, 80}) {
    SCOPED_TRACE(head_dim);
    // Of many sizes, so that whichever block of memory is used again was in use.
    for (int32_t kv_len = 640; kv_len > 0; kv_len -= 64) {
      const BatchCase before{.sequences = {{kv_len, Range(kv_len - 20, kv_len)}}};
      PagedBatch poison(backend, before, 1, 128, DataType::kBF16, rng);
      poison.Clear();
      run(poison, 20, 128, [](Tensor&, Tensor& out, Tensor&) { EXPECT_TRUE(std::isnan(out.Values()[0])); });
    }
    PagedBatch kv(backend, batch, 1, head_dim, DataType::kBF16, rng);
    run(kv, 67, head_dim, [&](Tensor& q, Tensor& out, Tensor& mass) {
      const AttentionOracle oracle = ComputeAttention(
          batch, kv, q, 1, 1, head_dim, 0.1, backend.compute_dtype(), DataType::kBF16, DataType::kF32);
      ExpectWithin(out.Values(), oracle.out, oracle.bound);
      ExpectWithin(mass.Values(), oracle.mass, oracle.mass_bound);
    });
  }
}

// Published CacheBlend kernels mask gathered queries by row index, aligned to the bottom right: query j of n
// then sees the keys up to total - n + j, its own future. The tolerance must tell that result from the right
// one.
TEST_P(AttentionConformance, RejectsMaskByRowIndex) {
  const int32_t kv_len = 200, num_rows = 20;
  const BatchCase batch{.sequences = {{kv_len, RandomPositions(rng, num_rows, kv_len)}}};
  std::vector<int32_t> bottom_right;
  for (int32_t i = 0; i < num_rows; ++i) bottom_right.push_back(kv_len - num_rows + i);
  PagedBatch kv(backend, batch, 1, 64, DataType::kBF16, rng);
  Tensor q(backend, DataType::kF32, num_rows, 3 * 64), out(backend, DataType::kF32, num_rows, 3 * 64);
  q.Randomize(rng);
  ASSERT_OK(backend.SelectiveAttention(stream, kv.plan(), q.view(), 3, 0.125f, kv.pages(), out.view()));
  const auto oracle_for = [&](const std::vector<int32_t>* mask) {
    return ComputeAttention(batch, kv, q, 3, 1, 64, 0.125, backend.compute_dtype(), DataType::kBF16,
                            DataType::kF32, mask);
  };
  const AttentionOracle right = oracle_for(nullptr), wrong = oracle_for(&bottom_right);
  ExpectWithin(out.Values(), right.out, right.bound);
  EXPECT_GT(FindWorst(wrong.out, right.out, right.bound).ratio, 5.0);
  EXPECT_GT(FindWorst(out.Values(), wrong.out, wrong.bound).ratio, 5.0);
  EXPECT_GT(FindWorst(wrong.mass, right.mass, right.mass_bound).ratio, 5.0);
}

INSTANTIATE_CONFORMANCE(AttentionConformance);

}  // namespace
}  // namespace kvblend::kernels
