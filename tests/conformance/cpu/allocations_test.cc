// The operations of a layer allocate nothing once their shapes are known: working memory is borrowed and
// returned.
#include <optional>

#include "tests/conformance/harness.h"
#include "tests/conformance/random_codes.h"
#include "tests/support/allocation_counter.h"

namespace kvblend::kernels {

std::map<std::string, std::unique_ptr<Backend>> MakeTestBackends() {
  std::map<std::string, std::unique_ptr<Backend>> backends;
  // One thread: which of several meets a shape first is chance, and each has working memory of its own.
  backends.emplace("cpu", CreateCpuBackend({.num_threads = 1}).value());
  backends.emplace("reference", CreateReferenceBackend());
  return backends;
}
bool IsUnderTest(const std::string& name) { return name == "cpu"; }

namespace {

constexpr int32_t kKvHeads = 3, kHeads = 9, kHeadDim = 64, kHidden = kHeads * kHeadDim, kFfn = 512;

class CpuAllocationsTest : public ConformanceTest {
 protected:
  /// In the third of three equal calls.
  template <typename Operation>
  void ExpectNone(const char* name, const Operation& operation) {
    int64_t before = 0;
    for (int call = 0; call < 3; ++call) {
      before = test_support::NumAllocations();
      EXPECT_TRUE(operation().ok()) << name;
    }
    EXPECT_EQ(test_support::NumAllocations(), before) << name;
  }

  void ExpectNoneIn(const BatchCase& batch, DataType pages_dtype) {
    const int64_t rows = batch.num_rows();
    PagedBatch kv(backend, batch, kKvHeads, kHeadDim, pages_dtype, rng);
    const KvPagesView pages = kv.pages();
    const auto rope = MakeRope(backend, RopeLayout::kInterleaved, kHeadDim, 4096);
    const DataType compute = backend.compute_dtype();
    Tensor hidden(backend, kF32, rows, kHidden), norm(backend, kF32, 1, kHidden);
    Tensor normed(backend, compute, rows, kHidden), out(backend, compute, rows, kHidden);
    Tensor q(backend, kF32, rows, kHidden);
    Tensor k(backend, kF32, rows, kKvHeads * kHeadDim), v(backend, kF32, rows, kKvHeads * kHeadDim);
    Tensor both(backend, kF32, rows, 2 * kFfn), activated(backend, compute, rows, kFfn);
    Tensor mass(backend, kF32, 1, kv.plan().total_kv_len());
    Tensor matrix(backend, kF32, 2 * kFfn, kHidden);
    for (Tensor* tensor : {&hidden, &norm, &q, &k, &v, &both, &matrix}) tensor->Randomize(rng);
    const auto weights = Pack(backend, matrix, WeightUsage::kLinear);
    const BatchPlan& plan = kv.plan();
    ExpectNone("RmsNorm",
               [&] { return backend.RmsNorm(stream, hidden.view(), norm.view(), 1e-5f, normed.view()); });
    // oneDNN, which multiplies more rows than this, allocates within its own calls.
    if (rows <= 64) {
      ExpectNone("Linear",
                 [&] { return backend.Linear(stream, normed.view(), *weights, false, both.view()); });
    }
    ExpectNoneOfExperts(normed, rows);
    ExpectNone("Rope", [&] { return backend.Rope(stream, plan, *rope, kHeads, q.view()); });
    ExpectNone("KvScatter",
               [&] { return backend.KvScatter(stream, plan, *rope, k.view(), v.view(), pages); });
    ExpectNone("SelectiveAttention", [&] {
      return backend.SelectiveAttention(stream, plan, q.view(), {kHeads, 0.125f}, pages, out.view());
    });
    ExpectNone("AttentionMass", [&] {
      return backend.AttentionMass(stream, plan, q.view(), {kHeads, 0.125f}, pages, mass.view());
    });
    ExpectNone("SelectiveAttentionWithMass", [&] {
      return backend.SelectiveAttentionWithMass(stream, plan, q.view(), {kHeads, 0.125f}, pages, out.view(),
                                                mass.view());
    });
    ExpectNone("GatedActivation", [&] {
      return backend.GatedActivation(stream, Activation::kSilu, both.view().Columns(0, kFfn),
                                     both.view().Columns(kFfn, kFfn), activated.view());
    });
  }

  /// Straight from codes, and as values that are multiplied in tiles.
  void ExpectNoneOfExperts(Tensor& normed, int64_t rows) {
    constexpr int32_t kExperts = 6, kChosen = 2;
    constexpr int64_t kWidth = 64;
    const RandomCodes source(rng, kExperts * kWidth, kHidden,
                             [&](int64_t) { return rows < 10 ? std::optional(kFormats[0]) : std::nullopt; });
    const auto experts = backend.PackExperts(kExperts, kWidth, kHidden, source);
    ASSERT_OK(experts.status());
    Tensor logits(backend, kF32, rows, kExperts), weights(backend, kF32, rows, kChosen);
    Tensor out(backend, kF32, rows * kChosen, kWidth), sum(backend, kF32, rows, kWidth);
    Tensor bias = Random(kExperts, kWidth);
    logits.Randomize(rng);
    const auto chosen = backend.Allocate(rows * kChosen * int64_t{sizeof(int32_t)}).value();
    const IndicesView numbers{static_cast<int32_t*>(chosen->data()), rows * kChosen};
    ExpectNone("ChooseExperts", [&] {
      return backend.ChooseExperts(stream, logits.view(), {.num_chosen = kChosen}, numbers, weights.view());
    });
    ExpectNone("ExpertLinear",
               [&] { return backend.ExpertLinear(stream, normed.view(), **experts, numbers, out.view()); });
    ExpectNone("AddExpertBias",
               [&] { return backend.AddExpertBias(stream, bias.view(), numbers, out.view()); });
    ExpectNone("SumExperts",
               [&] { return backend.SumExperts(stream, out.view(), weights.view(), true, sum.view()); });
  }
};

TEST_P(CpuAllocationsTest, NoneInADecodeStep) {
  ExpectNoneIn({.sequences = {{700, {699}}, {1300, {1299}}, {40, {39}}}}, kBF16);
}

TEST_P(CpuAllocationsTest, NoneInAQueryPass) {
  ExpectNoneIn({.sequences = {{3000, Range(2970, 3000)}}}, kBF16);
}

TEST_P(CpuAllocationsTest, NoneInABlendedPass) {
  ExpectNoneIn({.sequences = {{3000, RandomPositions(rng, 300, 3000)}}}, kBF16);
}

TEST_P(CpuAllocationsTest, NoneInF32) {
  ExpectNoneIn({.sequences = {{900, Range(870, 900)}, {1300, {1299}}}}, kF32);
}

// The counter counts: a backend's first call borrows working memory that nobody has returned yet.
TEST_P(CpuAllocationsTest, TheFirstCallOfABackendAllocates) {
  const auto fresh = CreateCpuBackend({.num_threads = 1}).value();
  {
    PagedBatch kv(*fresh, {.sequences = {{400, Range(300, 400)}}}, kKvHeads, kHeadDim, kBF16, rng);
    Tensor q(*fresh, kF32, 100, kHidden), out(*fresh, kF32, 100, kHidden);
    const KvPagesView pages = kv.pages();
    Stream& fresh_stream = TestStream(*fresh);
    const int64_t before = test_support::NumAllocations();
    ASSERT_OK(
        fresh->SelectiveAttention(fresh_stream, kv.plan(), q.view(), {kHeads, 0.125f}, pages, out.view()));
    EXPECT_GT(test_support::NumAllocations(), before);
  }
}

INSTANTIATE_CONFORMANCE(CpuAllocationsTest);

}  // namespace
}  // namespace kvblend::kernels
