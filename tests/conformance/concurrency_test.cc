// Several threads use one backend at once, each on its own stream; results do not depend on the company.
#include <thread>

#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

struct Results {
  std::vector<std::byte> linear, attention, decode, mass;
  friend bool operator==(const Results&, const Results&) = default;
};

Results RunAll(Backend& backend, const PackedWeights& weights) {
  Rng rng(11);
  Stream& stream = TestStream(backend);
  const BatchCase batch{.sequences = {{300, RandomPositions(rng, 60, 300)}, {200, Range(100, 200)}}};
  const BatchCase one{.sequences = {{700, {699}}}};
  PagedBatch kv(backend, batch, 2, 64, kBF16, rng), kv_one(backend, one, 2, 64, kBF16, rng);
  Tensor x(backend, kF32, 70, weights.cols()), linear(backend, kF32, 70, weights.rows());
  Tensor q(backend, kF32, batch.num_rows(), 384), q_one(backend, kF32, 1, 384);
  for (Tensor* tensor : {&x, &q, &q_one}) tensor->Randomize(rng);
  EXPECT_OK(backend.Linear(stream, x.view(), weights, false, linear.view()));
  Tensor attention = Attend(kv, q, 6, 0.125f), decode = Attend(kv_one, q_one, 6, 0.125f),
         mass = Mass(kv, q, 6, 0.125f);
  return {linear.Bytes(), attention.Bytes(), decode.Bytes(), mass.Bytes()};
}

class ConcurrencyTest : public ConformanceTest {};

TEST_P(ConcurrencyTest, ThreadsDoNotDisturbEachOther) {
  const auto weights = Pack(backend, Random(520, 96), WeightUsage::kLinear);
  const Results expected = RunAll(backend, *weights);
  std::vector<Results> results(4);
  std::vector<std::thread> threads;
  for (Results& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) result = RunAll(backend, *weights);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Results& result : results) EXPECT_TRUE(result == expected);
}

INSTANTIATE_CONFORMANCE(ConcurrencyTest);

}  // namespace
}  // namespace kvblend::kernels
