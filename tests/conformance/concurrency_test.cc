// Several threads use one backend at once, each on its own stream; results do not depend on the company.
#include <cmath>
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
  PagedBatch kv(backend, batch, 2, 64, DataType::kBF16, rng),
      kv_one(backend, one, 2, 64, DataType::kBF16, rng);
  Tensor x(backend, DataType::kF32, 70, weights.cols()), linear(backend, DataType::kF32, 70, weights.rows());
  Tensor q(backend, DataType::kF32, batch.num_rows(), 384),
      attention(backend, DataType::kF32, batch.num_rows(), 384);
  Tensor q_one(backend, DataType::kF32, 1, 384), decode(backend, DataType::kF32, 1, 384);
  Tensor mass(backend, DataType::kF32, 1, 500);
  x.Randomize(rng);
  q.Randomize(rng);
  q_one.Randomize(rng);
  EXPECT_TRUE(backend.Linear(stream, x.view(), weights, false, linear.view()).ok());
  EXPECT_TRUE(
      backend.SelectiveAttention(stream, kv.plan(), q.view(), 6, 0.125f, kv.pages(), attention.view()).ok());
  EXPECT_TRUE(
      backend
          .SelectiveAttention(stream, kv_one.plan(), q_one.view(), 6, 0.125f, kv_one.pages(), decode.view())
          .ok());
  EXPECT_TRUE(backend.AttentionMass(stream, kv.plan(), q.view(), 6, 0.125f, kv.pages(), mass.view()).ok());
  return {linear.Bytes(), attention.Bytes(), decode.Bytes(), mass.Bytes()};
}

class ConcurrencyTest : public ConformanceTest {};

TEST_P(ConcurrencyTest, ThreadsDoNotDisturbEachOther) {
  Tensor matrix(backend, DataType::kF32, 520, 96);
  matrix.Randomize(rng);
  const auto weights = Pack(backend, matrix, WeightUsage::kLinear);
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
