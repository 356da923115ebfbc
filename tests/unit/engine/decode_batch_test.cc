// Requests that are decoded together: the same answers as alone, room for others in between, clean ends.
#include <algorithm>
#include <atomic>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::HasSubstr;

class DecodeBatchTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.max_context_tokens = 300;
    return options;
  }

  /// Different prompts, lengths of answers and seeds.
  static GenerateRequest NumberedRequest(int number) {
    GenerateRequest request =
        Request({"Paris is in France.\n", "Rome " + std::string(number, 'a') + " is in Italy.\n"});
    request.sampling.max_tokens = 6 + 5 * (number % 4);
    request.sampling.temperature = number % 2;
    request.sampling.seed = 1000 + number;
    request.blend.store_misses = false;  // prompts find what they would find alone
    return request;
  }

  /// Sends requests while the first one's prompt keeps the engine thread busy, so that all others wait.
  std::vector<std::shared_ptr<GenerateRecorder>> GenerateTogether(int count) {
    absl::Notification started, go_on;
    std::vector<std::shared_ptr<GenerateRecorder>> recorders;
    for (int i = 0; i < count; ++i) {
      auto recorder = recorders.emplace_back(std::make_shared<GenerateRecorder>());
      if (i == 0) {
        recorder->on_prompt = [&] {
          started.Notify();
          go_on.WaitForNotification();
        };
      } else {
        recorder->on_prompt = [this] {
          most_running_ = std::max(most_running_, engine_->Stats().requests_running);
        };
      }
      handles_.push_back(*engine_->Generate(NumberedRequest(i), recorder));
      if (i == 0) started.WaitForNotification();
    }
    go_on.Notify();
    for (const auto& recorder : recorders) recorder->Wait();
    return recorders;
  }

  int32_t most_running_ = 0;  // when a prompt was ready
  std::vector<std::shared_ptr<RequestHandle>> handles_;
};

class DecodeBatchOnBackendTest : public DecodeBatchTest, public testing::WithParamInterface<std::string> {
 protected:
  EngineOptions Options() override {
    EngineOptions options = DecodeBatchTest::Options();
    options.device = GetParam();
    options.gemm = GetParam() == "cpu" ? "f32" : "auto";
    return options;
  }
};

TEST_P(DecodeBatchOnBackendTest, AnswersAreThoseOfTheRequestsAlone) {
  constexpr int kRequests = 7;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < kRequests; ++i) alone.push_back(Generate(NumberedRequest(i))->token_ids);
  const auto together = GenerateTogether(kRequests);
  EXPECT_GT(most_running_, 2);
  for (int i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    EXPECT_TRUE(together[i]->status.ok()) << together[i]->status;
    EXPECT_EQ(together[i]->token_ids, alone[i]);
    EXPECT_EQ(together[i]->result.completion_tokens, NumberedRequest(i).sampling.max_tokens);
  }
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
  EXPECT_EQ(engine_->Stats().requests_running, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, DecodeBatchOnBackendTest, testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

TEST_F(DecodeBatchTest, OthersGoOnWhenOneIsCancelled) {
  const std::vector<int32_t> alone = Generate(NumberedRequest(3))->token_ids;
  auto cancelled = std::make_shared<GenerateRecorder>(), other = std::make_shared<GenerateRecorder>();
  absl::Notification started, go_on;
  cancelled->on_prompt = [&] {
    started.Notify();
    go_on.WaitForNotification();
  };
  GenerateRequest endless = NumberedRequest(0);
  endless.sampling.max_tokens = 200;
  const auto handle = *engine_->Generate(endless, cancelled);
  started.WaitForNotification();
  other->on_prompt = [&] { handle->Cancel(); };  // while the first is being decoded
  const auto other_handle = *engine_->Generate(NumberedRequest(3), other);
  go_on.Notify();
  EXPECT_EQ(cancelled->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_LT(cancelled->result.completion_tokens, 200);
  EXPECT_TRUE(other->Wait().status.ok()) << other->status;
  EXPECT_EQ(other->token_ids, alone);
}

TEST_F(DecodeBatchTest, ADrainWaitsForAnswersAndItsDeadlineEndsThem) {
  auto recorder = std::make_shared<GenerateRecorder>();
  absl::Notification started;
  recorder->on_prompt = [&] { started.Notify(); };
  GenerateRequest request = NumberedRequest(0);
  request.sampling.max_tokens = 30;
  auto handle = *engine_->Generate(request, recorder);
  started.WaitForNotification();
  EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
  EXPECT_EQ(recorder->result.completion_tokens, 30);

  engine_.reset();
  SetUp();
  auto endless = std::make_shared<GenerateRecorder>();
  absl::Notification began, go_on;
  endless->on_prompt = [&] {
    began.Notify();
    go_on.WaitForNotification();
  };
  request.sampling.max_tokens = 200;
  handle = *engine_->Generate(request, endless);
  began.WaitForNotification();
  // It is decoding, or about to, when the deadline passes.
  handle->Cancel();
  go_on.Notify();
  EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(endless->Wait().status.code(), absl::StatusCode::kCancelled);
}

TEST_F(DecodeBatchTest, ADestroyedEngineEndsWhatItDecodes) {
  auto recorder = std::make_shared<GenerateRecorder>();
  absl::Notification started;
  recorder->on_prompt = [&] { started.Notify(); };
  GenerateRequest request = NumberedRequest(0);
  request.sampling.max_tokens = 240;
  ASSERT_TRUE(engine_->Generate(request, recorder).ok());
  started.WaitForNotification();
  engine_.reset();
  recorder->Wait();
  EXPECT_TRUE(recorder->status.ok() || recorder->status.code() == absl::StatusCode::kCancelled)
      << recorder->status;
}

class SmallDecodeBatchTest : public DecodeBatchTest {
 protected:
  EngineOptions Options() override {
    EngineOptions options = DecodeBatchTest::Options();
    options.max_batch_size = 2;
    options.max_batch_tokens = 300;
    options.page_size = 16;
    return options;
  }
};

TEST_F(SmallDecodeBatchTest, OthersWaitForTheirTurnAndAllAreAnswered) {
  const auto together = GenerateTogether(6);
  EXPECT_LE(most_running_, 2);  // nothing is prefilled before there is room for its answer
  for (const auto& recorder : together) EXPECT_TRUE(recorder->status.ok()) << recorder->status;
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
}

// Chunk puts and scores get their turn, and their pages, while answers are written.
TEST_F(SmallDecodeBatchTest, PutsAndScoresRunBesideADecodingRequest) {
  auto answer = std::make_shared<GenerateRecorder>();
  absl::Notification started;
  answer->on_prompt = [&] { started.Notify(); };
  GenerateRequest request = NumberedRequest(0);
  request.sampling.max_tokens = 200;
  ASSERT_TRUE(engine_->Generate(request, answer).ok());
  started.WaitForNotification();
  EXPECT_TRUE(Put({std::string(200, 'x')})->status.ok());
  ScoreRequest score;
  score.prompt = Request().prompt;
  score.continuation = "In France.";
  EXPECT_TRUE(Score(score)->status.ok());
  EXPECT_TRUE(answer->Wait().status.ok()) << answer->status;
}

// An answer that has no room yet holds up the answers behind it, and nothing else.
TEST_F(SmallDecodeBatchTest, PutsRunWhileAnAnswerWaitsForRoom) {
  absl::Notification started, go_on;
  std::vector<std::shared_ptr<GenerateRecorder>> recorders;
  GenerateRequest request = NumberedRequest(0);
  request.sampling.max_tokens = 240;  // as many tokens as the batch may have
  for (int i = 0; i < 2; ++i) {
    auto recorder = recorders.emplace_back(std::make_shared<GenerateRecorder>());
    if (i == 0) {
      recorder->on_prompt = [&] {
        started.Notify();
        go_on.WaitForNotification();
      };
    }
    handles_.push_back(*engine_->Generate(request, recorder));
    if (i == 0) started.WaitForNotification();
  }
  auto put = std::make_shared<PutRecorder>();
  PutChunksRequest chunks;
  chunks.chunks = {"Oslo is in Norway.\n"};
  size_t written = 0;
  int32_t waiting = -1;
  put->on_progress = [&] {
    written = recorders[0]->token_ids.size();
    waiting = engine_->Stats().requests_waiting;
  };
  ASSERT_TRUE(engine_->PutChunks(chunks, put).ok());
  go_on.Notify();
  EXPECT_TRUE(put->Wait().status.ok()) << put->status;
  EXPECT_LT(written, 240);  // the first answer had not ended
  EXPECT_EQ(waiting, 1);    // the second
  for (const auto& recorder : recorders) EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
}

TEST(DecodeBatchOptionsTest, AreChecked) {
  EngineOptions options;
  options.device = "reference";
  options.max_context_tokens = 300;
  options.model_path = testing::TempDir() + "/decode_batch_test_" + std::to_string(getpid()) + ".gguf";
  ASSERT_TRUE(test_support::WriteTinyModel(options.model_path, {}).ok());
  for (const int32_t size : {0, kMaxBatchSize + 1}) {
    EngineOptions bad = options;
    bad.max_batch_size = size;
    EXPECT_THAT(std::string(Engine::Create(bad).status().message()),
                HasSubstr("max-batch-size is " + std::to_string(size) + "; allowed: 1 to"));
  }
  for (const int64_t tokens : {int64_t{-1}, int64_t{299}, int64_t{1} << 40}) {
    EngineOptions bad = options;
    bad.max_batch_tokens = tokens;
    EXPECT_THAT(std::string(Engine::Create(bad).status().message()),
                HasSubstr("max-batch-tokens is " + std::to_string(tokens) + "; allowed: 0"));
  }
}

}  // namespace
}  // namespace kvblend
