// Requests that end before they have reported: what they had computed by then is told with how they ended.
#include "engine/api/computed_tokens.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/serve/generate_task.h"
#include "engine/serve/put_chunks_task.h"
#include "engine/serve/score_task.h"
#include "tests/support/engine_recorder.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

class ComputedTokensTest : public BlendFixture {
 protected:
  static constexpr int32_t kLength = 60;

  void SetUp() override {
    BlendFixture::SetUp();
    layout_ = MakeLayout({}, {}, RandomTokens(kLength));
    FullPrefill(layout_);
    ASSERT_TRUE(runner_->loading_controller().Costs({}).has_value()) << "nothing is predicted";
  }

  /// After so many units of work; returns what its end tells.
  template <typename Recorder>
  int64_t CancelledAfter(int units, Task& task, Recorder& recorder) {
    for (int i = 0; i < units; ++i) EXPECT_TRUE(task.Advance(*runner_)) << i;
    task.cancellation().Cancel();
    while (task.Advance(*runner_)) continue;  // it may have to begin first
    EXPECT_EQ(recorder.Wait().status.code(), absl::StatusCode::kCancelled);
    return ComputedTokensOf(recorder.status);
  }
  int64_t OfAnswer(int units) {
    GenerateRequest request;
    request.blend.reuse = Reuse::kNothing;
    const auto recorder = std::make_shared<test_support::GenerateRecorder>();
    GenerateTask task(request, layout_, *runtime_, recorder);
    return CancelledAfter(units, task, *recorder);
  }
  int64_t OfScore(int units) {
    ScoreRequest request;
    request.blend.reuse = Reuse::kNothing;
    const auto recorder = std::make_shared<test_support::ScoreRecorder>();
    ScoreTask task(request, layout_, RandomTokens(3), *runtime_, recorder);
    return CancelledAfter(units, task, *recorder);
  }
  int64_t OfPut(int units, double seconds_per_token) {
    PutChunksRequest request;
    request.chunks.resize(1);
    const auto recorder = std::make_shared<test_support::PutRecorder>();
    PutChunksTask task(std::move(request), {}, {RandomTokens(kLength)}, seconds_per_token, recorder);
    return CancelledAfter(units, task, *recorder);
  }

  prompt::PromptLayout layout_;
};

TEST_P(ComputedTokensTest, APromptTellsOfThoseItHasComputed) {
  for (const int units : {4, 6}) {
    for (const int64_t tokens : {OfAnswer(units), OfScore(units)}) {
      EXPECT_GT(tokens, 0) << units;
      EXPECT_LE(tokens, kLength) << units;
    }
  }
  EXPECT_EQ(OfAnswer(0), 0);
  EXPECT_EQ(OfScore(0), 0);
}

TEST_P(ComputedTokensTest, SoDoesAChunk) {
  EXPECT_EQ(OfPut(3, /*seconds_per_token=*/1e-12), kLength) << "no more than it has";
  EXPECT_EQ(OfPut(3, /*seconds_per_token=*/1e6), 1);
  EXPECT_EQ(OfPut(3, /*seconds_per_token=*/0), kLength) << "not known";
  EXPECT_EQ(OfPut(0, /*seconds_per_token=*/1e-12), 0);
}

TEST_P(ComputedTokensTest, WhatIsReportedIsNotToldAgain) {
  GenerateRequest request;
  request.blend.reuse = Reuse::kNothing;
  request.sampling.ignore_eos = true;
  const auto recorder = std::make_shared<test_support::GenerateRecorder>();
  GenerateTask task(request, layout_, *runtime_, recorder);
  while (task.Advance(*runner_)) continue;
  ASSERT_EQ(recorder->prompts.size(), 1);
  task.Fail(absl::CancelledError("gone"));
  EXPECT_EQ(recorder->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ComputedTokensOf(recorder->status), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, ComputedTokensTest, testing::Values("reference"));

}  // namespace
}  // namespace kvblend
