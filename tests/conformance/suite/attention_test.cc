// SelectiveAttention and AttentionMass of every backend against the definition in double precision.
#include <cmath>
#include <limits>

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
  DataType pages = kBF16;
  int64_t extra_stride = 0;
  float soft_cap = 0;
  bool sinks = false;
};

std::vector<AttentionCase> Cases() {
  using Sequences = std::vector<BatchCase::Sequence>;
  Rng rng(7);
  std::vector<AttentionCase> cases;
  const auto add = [&](std::string name, Sequences sequences, int32_t window = 0) -> AttentionCase& {
    return cases.emplace_back(AttentionCase{
        .name = std::move(name), .batch = {.sequences = std::move(sequences), .sliding_window = window}});
  };
  const auto add_shape = [&](std::string name, int32_t num_kv_heads, int32_t group, int32_t head_dim,
                             DataType pages, Sequences sequences) -> AttentionCase& {
    AttentionCase& added = add(std::move(name), std::move(sequences));
    added.num_kv_heads = num_kv_heads;
    added.group = group;
    added.head_dim = head_dim;
    added.pages = pages;
    return added;
  };
  // Row counts around the decode limit and the tiles, key counts around pages, key steps and key blocks.
  for (const int32_t n : {1, 2, 4, 5, 8, 9, 17, 63, 64, 65, 129, 257, 300}) {
    add(absl::StrCat("prefill ", n), {{n, Range(0, n)}});
  }
  for (const int32_t kv_len : {1, 15, 16, 17, 255, 256, 257, 700}) {
    add(absl::StrCat("decode ", kv_len), {{kv_len, {kv_len - 1}}});
  }
  add("chunked prefill", {{310, Range(200, 310)}});
  add("rows before the end of the KV", {{400, Range(100, 130)}});
  add("gathered", {{600, RandomPositions(rng, 90, 600)}});
  add("gathered, few", {{600, {0, 299, 599}}});
  add("gathered, sparse", {{1200, {0, 1, 2, 3, 700, 701, 1100, 1199}}});
  // Few rows over many keys: their keys are split, and what the parts give is merged.
  for (const int32_t kv_len : {1023, 1025, 2200}) {
    add(absl::StrCat("split keys ", kv_len), {{kv_len, RandomPositions(rng, 11, kv_len)}});
    add(absl::StrCat("split keys in windows ", kv_len), {{kv_len, RandomPositions(rng, 30, kv_len)}}, 700);
  }
  add("no rows", {{50, {}}});
  add("no sequences", {});
  add("mixed batch", {{70, Range(0, 70)},
                      {33, {32}},
                      {0, {}},
                      {300, RandomPositions(rng, 40, 300)},
                      {20, {}},
                      {513, {100, 512}}});
  for (const int32_t window : {1, 7, 64, 300}) {
    add(absl::StrCat("window ", window),
        {{400, RandomPositions(rng, 60, 400)}, {350, Range(0, 350)}, {290, {289}}}, window);
  }
  add("window with gaps", {{1500, {1, 2, 3, 4, 5, 1400, 1450}}}, 16);
  // Several parts in several tasks, in rows that end anywhere in them.
  for (const int32_t window : {0, 777}) {
    add_shape(absl::StrCat("long decode, window ", window), 4, 2, 128, kBF16,
              {{900, {899}}, {1037, {1035, 1036}}, {961, {960}}, {1024, {1023}}})
        .batch.sliding_window = window;
  }
  for (const int32_t page_size : {1, 5, 16, 64, 256}) {
    add(absl::StrCat("page size ", page_size), {{131, Range(20, 131)}, {77, {3, 76}}}).batch.page_size =
        page_size;
  }
  for (const DataType dtype : {kF32, kF16}) {
    add_shape(absl::StrCat("pages ", std::string(Name(dtype))), 3, 3, 64, dtype,
              {{150, Range(0, 150)}, {300, {299}}, {280, RandomPositions(rng, 30, 280)}});
  }
  for (const auto& [kv_heads, group] : {std::pair{1, 1}, {1, 8}, {4, 1}, {2, 5}, {1, 32}}) {
    add_shape(absl::StrCat(kv_heads, " kv heads, group ", group), kv_heads, group, 64, kBF16,
              {{90, Range(0, 90)}, {40, {39}}});
  }
  for (const DataType dtype : {kBF16, kF16}) {
    for (const int32_t head_dim : {2, 6, 33, 80, 128, 250}) {
      add_shape(absl::StrCat("head_dim ", head_dim, ", ", std::string(Name(dtype))), 2, 2, head_dim, dtype,
                {{70, Range(0, 70)}, {40, {39}}});
    }
    for (const int32_t head_dim : {100, 128}) {
      add_shape(absl::StrCat("many rows, head_dim ", head_dim, ", ", std::string(Name(dtype))), 2, 2,
                head_dim, dtype, {{330, Range(41, 330)}});
    }
  }
  add_shape("head_dim 264", 1, 1, 264, kBF16, {{20, {3, 19}}});
  // Few and many rows, split keys, windows, and both ways of computing; a cap that is reached, and one that
  // is not.
  for (const auto& [soft_cap, sinks] : {std::pair{1.5f, false}, {0.0f, true}, {50.0f, true}}) {
    for (const DataType dtype : {kBF16, kF32}) {
      const std::string what =
          absl::StrCat(", soft cap ", soft_cap, sinks ? ", sinks, " : ", ", std::string(Name(dtype)));
      const auto add_changed = [&, soft_cap = soft_cap, sinks = sinks](
                                   absl::string_view name, Sequences sequences, int32_t window = 0) {
        AttentionCase& added =
            add_shape(absl::StrCat(std::string(name), what), 2, 3, 64, dtype, std::move(sequences));
        added.batch.sliding_window = window;
        added.soft_cap = soft_cap;
        added.sinks = sinks;
      };
      add_changed("decode", {{40, {39}}, {300, {298, 299}}, {1, {0}}});
      add_changed("prefill", {{100, Range(0, 100)}, {7, {}}, {70, Range(60, 70)}});
      add_changed("split keys", {{1100, RandomPositions(rng, 6, 1100)}});
      add_changed("windows", {{300, RandomPositions(rng, 40, 300)}, {290, {289}}}, 100);
    }
  }
  AttentionCase& wide = add_shape("head_dim 264, soft cap and sinks", 1, 2, 264, kBF16, {{20, {3, 19}}});
  wide.soft_cap = 1.0f;
  wide.sinks = true;
  AttentionCase& half =
      add_shape("f16, soft cap and sinks", 2, 2, 64, kF16, {{40, Range(0, 40)}, {50, {49}}});
  half.soft_cap = 1.0f;
  half.sinks = true;
  add_shape("strides", 3, 3, 64, kBF16, {{70, Range(0, 70)}, {40, {39}}}).extra_stride = 13;
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
      Tensor q = Random(c.batch.num_rows(), cols, stride);
      Tensor sinks = Random(1, num_heads);
      // The first head's takes nearly all, the last one's nothing.
      sinks.Fill([&](int64_t, int64_t h) {
        return h == 0 ? 12.0f : h + 1 == num_heads ? -200.0f : static_cast<float>(sinks.at(0, h));
      });
      AttentionSpec spec = kv.Spec(num_heads, scale);
      spec.logit_soft_cap = c.soft_cap;
      if (c.sinks) spec.sinks = sinks.view();
      const AttentionOracle oracle =
          ComputeAttention(kv, q, num_heads, scale,
                           {.out = out_dtype, .soft_cap = c.soft_cap, .sinks = c.sinks ? &sinks : nullptr});
      Tensor out = Attend(kv.plan(), kv.pages(), q, spec, out_dtype);
      ExpectWithin(out.Values(), oracle.out, oracle.bound);
      ExpectWithin(Mass(kv.plan(), kv.pages(), q, spec).Values(), oracle.mass, oracle.mass_bound);

      Tensor out_of_both(backend, out_dtype, c.batch.num_rows(), cols, stride);
      Tensor mass_of_both(backend, kF32, 1, kv.plan().total_kv_len());
      ASSERT_OK(backend.SelectiveAttentionWithMass(stream, kv.plan(), q.view(), spec, kv.pages(),
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
    PagedBatch kv(backend, batch, 1, 64, kBF16, rng);
    Tensor q(backend, kF32, rows, 64);
    q.Randomize(rng, 100.0);
    for (const double value : Attend(kv, q, 1, 1.0f).Values()) {
      ASSERT_TRUE(std::isfinite(value));
      ASSERT_LT(std::abs(value), 6.0);  // a convex combination of normal values
    }
  }
}

// Whatever the size of scores and sinks: a cap bounds the former, and a sink far above or below all scores
// leaves nothing, or everything, to the values.
TEST_P(AttentionConformance, LargeScoresWithSoftCapsAndSinks) {
  for (const int32_t rows : {1, 40}) {
    const BatchCase batch{.sequences = {{300, Range(300 - rows, 300)}}};
    PagedBatch kv(backend, batch, 1, 64, kBF16, rng);
    Tensor q(backend, kF32, rows, 4 * 64), sinks(backend, kF32, 1, 4);
    q.Randomize(rng, 100.0);
    sinks.Fill([](int64_t, int64_t h) { return std::vector{-1e30f, 0.0f, 1000.0f, 1e30f}[h]; });
    AttentionSpec spec = kv.Spec(4, 1.0f);
    spec.sinks = sinks.view();
    AttentionSpec capped = spec;
    capped.logit_soft_cap = 30.0f;
    for (const AttentionSpec& of : {spec, capped}) {
      Tensor out = Attend(kv.plan(), kv.pages(), q, of);
      const std::vector<double> values = out.Values();
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_TRUE(std::isfinite(values[i]));
        const size_t head = i / 64 % 4;
        ASSERT_LT(std::abs(values[i]), head == 3 || (head == 2 && of.logit_soft_cap != 0) ? 1e-30 : 6.0);
      }
      double mass = 0;
      for (const double value : Mass(kv.plan(), kv.pages(), q, of).Values()) {
        ASSERT_TRUE(std::isfinite(value));
        mass += value;
      }
      EXPECT_GT(mass, 0.25 * rows - 1e-3);  // the first head's
      EXPECT_LT(mass, 0.75 * rows + 1e-3);  // not the last one's
    }
  }
}

// A key or a query that is not finite shows in the rows that it has a part in, and in no others: from logits
// that are NaN the engine knows that something is wrong.
TEST_P(AttentionConformance, KeysAndQueriesThatAreNotFiniteShow) {
  constexpr int32_t kKeys = 300, kBad = 295, kHeadDim = 64;
  for (const DataType dtype : {kF32, kBF16}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const int32_t rows : {4, 40}) {
        for (const bool in_query : {false, true}) {
          SCOPED_TRACE(absl::StrCat(std::string(Name(dtype)), ", ", bad, ", rows ", rows,
                                    in_query ? ", query" : ", key"));
          const BatchCase batch{.sequences = {{kKeys, Range(kKeys - rows, kKeys)}}};
          PagedBatch kv(backend, batch, 1, kHeadDim, dtype, rng);
          const int64_t element = kv.KeyElement(kv.SlotRow(0, kBad, 0), 3);
          kv.k_tensor().Fill([&](int64_t row, int64_t d) {
            return !in_query && row * kHeadDim + d == element ? bad : 1.0f;
          });
          Tensor q(backend, kF32, rows, kHeadDim);
          q.Fill([&](int64_t row, int64_t d) { return in_query && row == rows - 1 && d == 5 ? bad : 0.5f; });
          Tensor out = Attend(kv, q, 1, 0.125f);
          out.Download();
          for (int64_t row = 0; row < rows; ++row) {
            const bool shows = in_query ? row == rows - 1 : kKeys - rows + row >= kBad;
            for (int64_t d = 0; d < kHeadDim; ++d)
              ASSERT_EQ(std::isnan(out.at(row, d)), shows) << row << ", " << d;
          }
          EXPECT_TRUE(
              std::isnan(Mass(kv, q, 1, 0.125f).Values()[0]));  // some row that shows it sees the first key
        }
      }
    }
  }
}

// Working memory that an operation pads is not always new: what an earlier call left there, NaN even, changes
// nothing.
TEST_P(AttentionConformance, NothingIsLeftOfEarlierCalls) {
  const BatchCase batch{.sequences = {{70, Range(3, 70)}}};
  for (const int32_t head_dim : {33, 80}) {
    SCOPED_TRACE(head_dim);
    // Batches of many sizes, so that whichever block of memory is used again was in use.
    for (int32_t kv_len = 640; kv_len > 0; kv_len -= 64) {
      const BatchCase before{.sequences = {{kv_len, Range(kv_len - 20, kv_len)}}};
      PagedBatch poison(backend, before, 1, 128, kBF16, rng);
      poison.Clear();
      Tensor q = Random(20, 128);
      EXPECT_TRUE(std::isnan(Attend(poison, q, 1, 0.1f).Values()[0]));
      Mass(poison, q, 1, 0.1f);
    }
    PagedBatch kv(backend, batch, 1, head_dim, kBF16, rng);
    Tensor q = Random(67, head_dim);
    const AttentionOracle oracle = ComputeAttention(kv, q, 1, 0.1);
    ExpectWithin(Attend(kv, q, 1, 0.1f).Values(), oracle.out, oracle.bound);
    ExpectWithin(Mass(kv, q, 1, 0.1f).Values(), oracle.mass, oracle.mass_bound);
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
  PagedBatch kv(backend, batch, 1, 64, kBF16, rng);
  Tensor q = Random(num_rows, 3 * 64);
  const std::vector<double> out = Attend(kv, q, 3, 0.125f).Values();
  const AttentionOracle right = ComputeAttention(kv, q, 3, 0.125),
                        wrong = ComputeAttention(kv, q, 3, 0.125, {.mask_positions = &bottom_right});
  ExpectWithin(out, right.out, right.bound);
  EXPECT_GT(FindWorst(wrong.out, right.out, right.bound).ratio, 5.0);
  EXPECT_GT(FindWorst(out, wrong.out, wrong.bound).ratio, 5.0);
  EXPECT_GT(FindWorst(wrong.mass, right.mass, right.mass_bound).ratio, 5.0);
}

INSTANTIATE_CONFORMANCE(AttentionConformance);

}  // namespace
}  // namespace kvblend::kernels
