// Identities that hold whatever the numbers are, on every backend.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

constexpr int32_t kKvHeads = 2, kHeads = 6, kHeadDim = 64;
constexpr float kScale = 0.125f;

class AttentionIdentities : public ConformanceTest {
 protected:
  // Two computations of the same row may round differently, but each is within the oracle's bound.
  void ExpectSame(const std::vector<double>& a, const std::vector<double>& b,
                  const std::vector<double>& bound) {
    std::vector<double> twice(bound);
    for (double& x : twice) x *= 2;
    ExpectWithin(a, b, twice);
  }
};

// Rows gathered out of a prefill are the same rows of the whole prefill.
TEST_P(AttentionIdentities, GatheredRowsEqualRowsOfFullAttention) {
  const int32_t n = 420;
  const std::vector<int32_t> subset = RandomPositions(rng, 77, n);
  const BatchCase full{.sequences = {{n, Range(0, n)}}}, gathered{.sequences = {{n, subset}}};
  Rng same_pages(3);
  PagedBatch kv_full(backend, full, kKvHeads, kHeadDim, kBF16, same_pages);
  same_pages.seed(3);
  PagedBatch kv_gathered(backend, gathered, kKvHeads, kHeadDim, kBF16, same_pages);
  Tensor q = Random(n, kHeads * kHeadDim);
  Tensor q_gathered(backend, kF32, subset.size(), kHeads * kHeadDim);
  ASSERT_OK(backend.GatherRows(stream, q.view(), subset, q_gathered.view()));
  const std::vector<double> all = Attend(kv_full, q, kHeads, kScale).Values(),
                            some = Attend(kv_gathered, q_gathered, kHeads, kScale).Values();
  std::vector<double> expected;
  for (const int32_t row : subset) {
    expected.insert(expected.end(), all.begin() + row * q.cols(), all.begin() + (row + 1) * q.cols());
  }
  q_gathered.Download();
  ExpectSame(some, expected, ComputeAttention(kv_gathered, q_gathered, kHeads, kScale).bound);
}

TEST_P(AttentionIdentities, ChunkedPrefillEqualsOneShot) {
  const int32_t n = 333;
  const BatchCase whole{.sequences = {{n, Range(0, n)}}};
  Rng same_pages(5);
  PagedBatch kv(backend, whole, kKvHeads, kHeadDim, kBF16, same_pages);
  Tensor q = Random(n, kHeads * kHeadDim);
  std::vector<double> pieces;
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 100}, {100, 228}, {228, 230}, {230, n}}) {
    same_pages.seed(5);
    PagedBatch kv_chunk(backend, {.sequences = {{n, Range(begin, end)}}}, kKvHeads, kHeadDim, kBF16,
                        same_pages);
    Tensor q_chunk(backend, kF32, end - begin, q.cols());
    ASSERT_OK(backend.GatherRows(stream, q.view(), Range(begin, end), q_chunk.view()));
    const std::vector<double> piece = Attend(kv_chunk, q_chunk, kHeads, kScale).Values();
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  ExpectSame(pieces, Attend(kv, q, kHeads, kScale).Values(), ComputeAttention(kv, q, kHeads, kScale).bound);
}

// A sequence alone gives what it gives in company, whatever its place in the batch.
TEST_P(AttentionIdentities, PermutingSequencesPermutesRows) {
  const std::vector<BatchCase::Sequence> sequences = {
      {60, Range(0, 60)}, {200, {199}}, {300, RandomPositions(rng, 50, 300)}, {130, {5, 129}}};
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), 0);
  const BatchCase batch{.sequences = sequences};
  PagedBatch kv(backend, batch, kKvHeads, kHeadDim, kBF16, rng);
  Tensor q = Random(batch.num_rows(), kHeads * kHeadDim);
  const std::vector<double> expected = Attend(kv, q, kHeads, kScale).Values(),
                            bound = ComputeAttention(kv, q, kHeads, kScale).bound;
  while (std::next_permutation(order.begin(), order.end())) {
    std::vector<int32_t> row_indptr{0}, positions, kv_len, page_indptr{0}, page_indices, rows;
    for (const size_t s : order) {
      int32_t first_row = 0;
      for (size_t before = 0; before < s; ++before) first_row += sequences[before].positions.size();
      for (size_t i = 0; i < sequences[s].positions.size(); ++i) rows.push_back(first_row + i);
      positions.insert(positions.end(), sequences[s].positions.begin(), sequences[s].positions.end());
      row_indptr.push_back(positions.size());
      kv_len.push_back(sequences[s].kv_len);
      for (int64_t p = 0; p < sequences[s].kv_len; p += batch.page_size) {
        page_indices.push_back(kv.SlotRow(s, p, 0) / batch.page_size / kKvHeads);
      }
      page_indptr.push_back(page_indices.size());
    }
    auto plan =
        backend.PlanBatch({row_indptr, positions, kv_len, page_indptr, page_indices, batch.page_size});
    ASSERT_OK(plan.status());
    Tensor q_permuted(backend, kF32, q.rows(), q.cols());
    ASSERT_OK(backend.GatherRows(stream, q.view(), rows, q_permuted.view()));
    KvPagesView pages = kv.pages();
    pages.page_list = 0;
    const std::vector<double> permuted = Attend(**plan, pages, q_permuted, {kHeads, kScale}).Values();
    std::vector<double> back(expected.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(permuted.begin() + i * q.cols(), q.cols(), back.begin() + rows[i] * q.cols());
    }
    ExpectSame(back, expected, bound);
  }
}

TEST_P(AttentionIdentities, MassSumsToNumberOfRows) {
  for (const int32_t window : {0, 50}) {
    const BatchCase batch{
        .sequences = {{900, Range(870, 900)}, {10, {}}, {200, RandomPositions(rng, 100, 200)}, {77, {76}}},
        .sliding_window = window};
    PagedBatch kv(backend, batch, kKvHeads, kHeadDim, kBF16, rng);
    Tensor q = Random(batch.num_rows(), kHeads * kHeadDim);
    const std::vector<double> values = Mass(kv, q, kHeads, kScale).Values();
    auto next = values.begin();
    for (const auto& sequence : batch.sequences) {
      const double rows = static_cast<double>(sequence.positions.size());
      EXPECT_NEAR(std::accumulate(next, next + sequence.kv_len, 0.0), rows, rows * 1e-5);
      next += sequence.kv_len;
    }
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 0.0);
  }
}

// Values that are all equal come back, whatever the weights.
TEST_P(AttentionIdentities, ConstantValuesAreReturned) {
  const BatchCase batch{.sequences = {{500, RandomPositions(rng, 70, 500)}, {300, {299}}}};
  PagedBatch kv(backend, batch, kKvHeads, kHeadDim, kBF16, rng);
  ASSERT_EQ(kv.pages().layout, PageLayout::kRows);
  kv.v_tensor().Fill([](int64_t, int64_t d) { return static_cast<float>(d) - 20.0f; });
  Tensor q(backend, kF32, batch.num_rows(), kHeads * kHeadDim);
  q.Randomize(rng, 3.0);
  const std::vector<double> values = Attend(kv, q, kHeads, kScale).Values();
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = static_cast<double>(i % kHeadDim) - 20.0;
    // Probabilities are rounded before they are multiplied, their sum is not: the error is a rounding of
    // each.
    ASSERT_NEAR(values[i], expected, std::abs(expected) * (UnitRoundoff(AttentionDtype(backend)) + 1e-5))
        << i;
  }
}

INSTANTIATE_CONFORMANCE(AttentionIdentities);

}  // namespace
}  // namespace kvblend::kernels
