// Decode steps as CUDA graphs, over the emulated device: when a graph is made, launched and given up, and
// that nothing is lost when it can't be.
#include "kernels/cuda/runtime/step_graphs.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "kernels/cuda/cuda_backend.h"
#include "tests/conformance/tiny_decoder.h"
#include "tests/cuda_emulation/runtime.h"

namespace kvblend::kernels::cuda {
namespace {

using cuda_emulation::CountRuntimeObjects;
using cuda_emulation::CountWork;
using testing::HasSubstr;

class CudaStepGraphsTest : public testing::Test {
 protected:
  static constexpr int32_t kSequences = 5;

  ~CudaStepGraphsTest() override { cuda_emulation::SetGraphError(absl::OkStatus()); }

  /// A step of the first `rows` sequences, on both decoders, compared.
  void Step(int32_t rows, RepeatedStep& step) {
    std::vector<TinyDecoder::Next> next;
    for (int32_t s = 0; s < rows; ++s) next.push_back({s, ++token_ % TinyDecoder::kVocab, {.num_top = 2}});
    const auto expected = direct_.Run(nullptr, next);
    before_ = CountWork();
    graphs_before_ = CountRuntimeObjects().graphs;
    const auto actual = decoder_.Run(&step, next);
    ASSERT_OK(expected.status());
    ASSERT_OK(actual.status());
    ExpectSameTokens(*actual, *expected);
  }
  void Step(int32_t rows) { Step(rows, *step_); }

  /// What the latest step launched, made and enqueued.
  int64_t launched_graphs() const { return CountWork().graph_launches - before_.graph_launches; }
  int64_t made_graphs() const { return CountRuntimeObjects().graphs - graphs_before_; }
  int64_t enqueued() const { return CountWork().enqueued - before_.enqueued; }

  Backend& backend_ = TestBackend("cuda_emulated");
  TinyDecoder decoder_{backend_, kSequences}, direct_{backend_, kSequences};
  std::unique_ptr<RepeatedStep> step_ = decoder_.MakeStep();
  int32_t token_ = 0;
  cuda_emulation::WorkCounts before_;
  int64_t graphs_before_ = 0;
};

TEST_F(CudaStepGraphsTest, AStepOfAKnownShapeIsOneLaunchAndAllocatesNothing) {
  Step(2);
  EXPECT_EQ(launched_graphs(), 0);
  EXPECT_GT(enqueued(), 10);
  Step(2);
  EXPECT_EQ(made_graphs(), 1);
  EXPECT_EQ(launched_graphs(), 1);
  EXPECT_EQ(enqueued(), 1);
  const cuda_emulation::RuntimeCounts objects = CountRuntimeObjects();
  for (int i = 0; i < 20; ++i) {
    Step(2);
    EXPECT_EQ(launched_graphs(), 1);
    EXPECT_EQ(enqueued(), 1);
  }
  EXPECT_EQ(CountRuntimeObjects(), objects);
  EXPECT_EQ(decoder_.Kv(), direct_.Kv());
}

TEST_F(CudaStepGraphsTest, AContextThatGrowsNeedsAGraphPerPowerOfTwo) {
  const int64_t before = CountRuntimeObjects().graphs;
  for (int32_t length = 0; length < TinyDecoder::kMaxPosition; length += 23) {
    decoder_.SetLength(0, length);
    direct_.SetLength(0, length);
    Step(1);
  }
  EXPECT_EQ(CountRuntimeObjects().graphs - before, 4);  // up to 128, 256, 512, 1024 tokens
}

TEST_F(CudaStepGraphsTest, TheLeastRecentlyUsedShapeGoes) {
  StepGraphs step(static_cast<DeviceStream&>(decoder_.stream()), /*max_shapes=*/2);
  const auto expect = [&](int32_t rows, int64_t made, int64_t launched) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    Step(rows, step);
    EXPECT_EQ(made_graphs(), made);
    EXPECT_EQ(launched_graphs(), launched);
  };
  Step(3);  // grows what needs to, so that freeing it drops no graphs below
  expect(1, 0, 0);
  expect(1, 1, 1);
  const int64_t with_one = cuda_emulation::AllocatedBytes();
  expect(2, 0, 0);
  expect(2, 1, 1);
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), with_one + cuda_emulation::kGraphBytes);
  expect(1, 0, 1);
  expect(3, 0, 0);  // in place of 2 rows
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), with_one);
  expect(1, 0, 1);
  expect(3, 1, 1);
  expect(2, 0, 0);  // in place of 1 row
  expect(3, 0, 1);
  expect(1, 0, 0);  // in place of 2 rows, of which there was no graph
  expect(3, 0, 1);
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), with_one);
}

TEST_F(CudaStepGraphsTest, NoGraphOutlivesMemoryThatItMayPointTo) {
  for (int i = 0; i < 3; ++i) Step(2);
  EXPECT_EQ(launched_graphs(), 1);
  const int64_t allocated = cuda_emulation::AllocatedBytes();
  backend_.Allocate(1000)->reset();
  Step(2);
  EXPECT_EQ(made_graphs(), 1);
  EXPECT_EQ(launched_graphs(), 1);
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), allocated);  // the old one is gone
  Step(2);
  EXPECT_EQ(made_graphs(), 0);
}

// A step that does not wait for the one before must not overwrite its values.
TEST_F(CudaStepGraphsTest, StepsMayFollowEachOtherUnsynchronised) {
  for (int i = 0; i < 2; ++i) Step(2);
  std::vector<std::vector<SampledToken>> actual(4, std::vector<SampledToken>(2));
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto token = static_cast<int32_t>(60 + 40 * i);
    ASSERT_OK(decoder_.Enqueue(step_.get(), {{0, token}, {1, token + 1}}, absl::MakeSpan(actual[i])));
  }
  EXPECT_EQ(actual.back()[0].token_id, -1);  // nothing has come back yet
  ASSERT_OK(backend_.Synchronize(decoder_.stream()));
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto token = static_cast<int32_t>(60 + 40 * i);
    const auto expected = direct_.Run(nullptr, {{0, token}, {1, token + 1}});
    ASSERT_TRUE(expected.ok()) << expected.status();
    ExpectSameTokens(actual[i], *expected);
  }
}

TEST_F(CudaStepGraphsTest, WhatIsEnqueuedIsDoneWhenTheStepGoes) {
  for (int i = 0; i < 2; ++i) Step(1);
  std::vector<SampledToken> actual(1);
  ASSERT_OK(decoder_.Enqueue(step_.get(), {{0, 9}}, absl::MakeSpan(actual)));
  step_.reset();
  ASSERT_OK(backend_.Synchronize(decoder_.stream()));
  ExpectSameTokens(actual, *direct_.Run(nullptr, {{0, 9}}));
}

TEST_F(CudaStepGraphsTest, TheEnvironmentSwitchesThemOff) {
  const auto makes_graphs = [&](const char* value) {
    ::setenv("KVBLEND_CUDA_GRAPHS", value, /*overwrite=*/1);
    const auto backend = CreateCudaBackend(1);
    ::unsetenv("KVBLEND_CUDA_GRAPHS");
    if (!backend.ok()) return std::string(backend.status().message());
    const auto stream = (*backend)->CreateStream().value();
    const auto step = (*backend)->CreateRepeatedStep(*stream);
    const bool makes = dynamic_cast<StepGraphs*>(step.get()) != nullptr;
    const bool said = (*backend)->Describe().find("no CUDA graphs") != std::string::npos;
    EXPECT_NE(makes, said);
    return std::string(makes ? "graphs" : "no graphs");
  };
  EXPECT_EQ(makes_graphs("on"), "graphs");
  EXPECT_EQ(makes_graphs("off"), "no graphs");
  EXPECT_EQ(makes_graphs("0"), "KVBLEND_CUDA_GRAPHS is '0'; allowed: on, off");
}

TEST_F(CudaStepGraphsTest, AGraphThatCannotBeMadeCostsNothingButTime) {
  Step(2);
  cuda_emulation::SetGraphError(absl::InternalError("planted"));
  Step(2);
  EXPECT_EQ(launched_graphs(), 0);
  EXPECT_THAT(step_->problem(), HasSubstr("of 2 rows could not be made a CUDA graph"));
  EXPECT_THAT(step_->problem(), HasSubstr("planted"));
  cuda_emulation::SetGraphError(absl::OkStatus());
  for (int i = 0; i < 3; ++i) {
    Step(2);
    EXPECT_EQ(launched_graphs() + made_graphs(), 0);
  }
  EXPECT_EQ(decoder_.Kv(), direct_.Kv());
}

TEST_F(CudaStepGraphsTest, NeitherDoesOneThatCannotBeLaunched) {
  for (int i = 0; i < 2; ++i) Step(2);
  const int64_t allocated = cuda_emulation::AllocatedBytes();
  cuda_emulation::SetGraphError(absl::InternalError("planted"));
  Step(2);
  EXPECT_EQ(launched_graphs(), 0);
  EXPECT_THAT(step_->problem(), HasSubstr("planted"));
  EXPECT_EQ(cuda_emulation::AllocatedBytes(), allocated - cuda_emulation::kGraphBytes);
  Step(2);
  EXPECT_EQ(decoder_.Kv(), direct_.Kv());
}

// First there is no memory for the values, then none for the graph.
TEST_F(CudaStepGraphsTest, FullDeviceMemoryIsNoReasonToFail) {
  for (const int64_t left : {int64_t{0}, cuda_emulation::kGraphBytes - 1}) {
    const std::unique_ptr<RepeatedStep> step = decoder_.MakeStep();
    Step(3, *step);
    const int64_t limit = cuda_emulation::SetMemoryLimit(cuda_emulation::AllocatedBytes() + left);
    Step(3, *step);
    cuda_emulation::SetMemoryLimit(limit);
    EXPECT_EQ(launched_graphs(), 0);
    EXPECT_THAT(step->problem(), HasSubstr(left == 0 ? "bytes; " : "no device memory for a graph"));
  }
}

TEST_F(CudaStepGraphsTest, OperationsThatCannotBeRepeatedAreNotRecorded) {
  Stream& stream = decoder_.stream();
  Tensor tensor(backend_, kF32, 4, 8), other(backend_, kF32, 4, 8);
  tensor.Fill([](int64_t, int64_t) { return 1.0f; });
  std::vector<float> host(32);
  std::vector<std::unique_ptr<Buffer>> allocated;
  const std::vector<std::pair<std::string, std::function<absl::Status()>>> operations = {
      {"GatherRows reads host memory",
       [&] { return backend_.GatherRows(stream, tensor.view(), Range(0, 4), other.view()); }},
      {"CopyFromHost reads host memory",
       [&] { return backend_.CopyFromHost(stream, tensor.view().data, host.data(), 128); }},
      {"CopyToHost writes host memory",
       [&] { return backend_.CopyToHost(stream, host.data(), tensor.view().data, 128); }},
      {"Synchronize waits", [&] { return backend_.Synchronize(stream); }},
      {"invalidated by DeviceAllocate", [&] {  // whatever the operations make of the error
         if (auto buffer = backend_.Allocate(64); buffer.ok()) allocated.push_back(*std::move(buffer));
         return absl::OkStatus();
       }}};
  for (const auto& [reason, operation] : operations) {
    SCOPED_TRACE(reason);
    const std::unique_ptr<RepeatedStep> step = decoder_.MakeStep();
    decoder_.set_extra_operation(operation);
    Step(2, *step);
    Step(2, *step);
    EXPECT_EQ(launched_graphs(), 0);
    EXPECT_THAT(step->problem(), HasSubstr(reason));
  }
  // What can be repeated may be there.
  tensor.Fill([](int64_t, int64_t) { return 1.0f; });  // a copy from above has filled it with zeros
  decoder_.set_extra_operation([&] {
    return backend_.GatedActivation(stream, Activation::kSilu, tensor.view(), tensor.view(), other.view());
  });
  Step(2);
  const std::vector<double> products = other.Values();
  other.Fill([](int64_t, int64_t) { return 0.0f; });
  Step(2);
  EXPECT_EQ(launched_graphs(), 1);
  EXPECT_EQ(other.Values(), products);
  EXPECT_NE(products[0], 0);
}

}  // namespace
}  // namespace kvblend::kernels::cuda
