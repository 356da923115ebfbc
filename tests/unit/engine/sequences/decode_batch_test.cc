// Requests that are decoded together: the same answers as alone, room for others in between, clean ends.
#include <algorithm>
#include <utility>

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
    HeldAnswer first;
    std::vector<std::shared_ptr<GenerateRecorder>> recorders = {first.recorder};
    handles_.push_back(*engine_->Generate(NumberedRequest(0), first.recorder));
    first.started.WaitForNotification();
    for (int i = 1; i < count; ++i) {
      auto recorder = recorders.emplace_back(std::make_shared<GenerateRecorder>());
      recorder->on_prompt = [this] {
        most_running_ = std::max(most_running_, engine_->Stats().requests_running);
      };
      handles_.push_back(*engine_->Generate(NumberedRequest(i), recorder));
    }
    first.go_on.Notify();
    for (const auto& recorder : recorders) recorder->Wait();
    return recorders;
  }

  /// An answer whose prompt is prefilled, and a request behind it. Not before the latter has been given up,
  /// which a drain does when its deadline has passed, does the answer go on; so it is always in the midst of
  /// it.
  std::pair<std::shared_ptr<GenerateRecorder>, std::shared_ptr<GenerateRecorder>> StartEndlessAnswer() {
    auto answer = std::make_shared<GenerateRecorder>(), queued = std::make_shared<GenerateRecorder>();
    absl::Notification started;
    answer->on_prompt = [&started, queued] {
      started.Notify();
      queued->Wait();
    };
    GenerateRequest request = NumberedRequest(0);
    request.sampling.max_tokens = kEndless;
    EXPECT_TRUE(engine_->Generate(request, answer).ok());
    started.WaitForNotification();
    EXPECT_TRUE(engine_->Generate(NumberedRequest(1), queued).ok());
    return {answer, queued};
  }

  static constexpr int32_t kEndless = 240;  // tokens; many more than a drain takes to end an answer
  int32_t most_running_ = 0;                // when a prompt was ready
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
  HeldAnswer held;
  const auto cancelled = held.recorder, other = std::make_shared<GenerateRecorder>();
  GenerateRequest endless = NumberedRequest(0);
  endless.sampling.max_tokens = 200;
  const auto handle = *engine_->Generate(endless, cancelled);
  held.started.WaitForNotification();
  other->on_prompt = [&] { handle->Cancel(); };  // while the first is being decoded
  const auto other_handle = *engine_->Generate(NumberedRequest(3), other);
  held.go_on.Notify();
  EXPECT_EQ(cancelled->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_LT(cancelled->result.completion_tokens, 200);
  EXPECT_TRUE(other->Wait().status.ok()) << other->status;
  EXPECT_EQ(other->token_ids, alone);
}

TEST_F(DecodeBatchTest, ADrainWaitsForAnswers) {
  auto recorder = std::make_shared<GenerateRecorder>();
  absl::Notification started;
  recorder->on_prompt = [&] { started.Notify(); };
  GenerateRequest request = NumberedRequest(0);
  request.sampling.max_tokens = 30;
  ASSERT_TRUE(engine_->Generate(request, recorder).ok());
  started.WaitForNotification();
  EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
  EXPECT_EQ(recorder->result.completion_tokens, 30);
}

TEST_F(DecodeBatchTest, NothingHoldsAnAnswerThatHasEnded) {
  const std::shared_ptr<GenerateRecorder> recorder = Generate(NumberedRequest(1));
  ASSERT_TRUE(recorder->status.ok()) << recorder->status;
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(recorder.use_count(), 1);
}

TEST_F(DecodeBatchTest, ADrainsDeadlineEndsAnswers) {
  const auto [answer, queued] = StartEndlessAnswer();
  EXPECT_EQ(engine_->Drain(absl::Now()).code(), absl::StatusCode::kDeadlineExceeded);
  // Not the clients' doing: they may ask another server.
  EXPECT_EQ(queued->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(answer->done.HasBeenNotified());  // Drain has waited for it
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(answer->result.completion_tokens, kEndless);
}

TEST_F(DecodeBatchTest, ADestroyedEngineEndsWhatItDecodes) {
  const auto [answer, queued] = StartEndlessAnswer();
  engine_.reset();
  EXPECT_TRUE(answer->done.HasBeenNotified());
  EXPECT_EQ(answer->status.code(), absl::StatusCode::kUnavailable);
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

class SharedDecodeBatchTest : public DecodeBatchTest {
 protected:
  EngineOptions Options() override {
    EngineOptions options = DecodeBatchTest::Options();
    options.max_batch_size = 2;
    return options;
  }

  /// A long answer to be one of a key's.
  static GenerateRequest LongRequest(int number) {
    GenerateRequest request = NumberedRequest(number);
    request.caller.fairness_key = "many";
    request.sampling.max_tokens = kEndless;
    return request;
  }
};

// Somebody's long answers have all the rows of a step. Another's do not wait for the end of one of them, and
// every answer is what it is alone.
TEST_F(SharedDecodeBatchTest, AnswersOfAnotherKeyAreWrittenBesideAFullBatch) {
  const std::vector<int32_t> alone = Generate(NumberedRequest(3))->token_ids;
  const std::vector<int32_t> long_alone = Generate(LongRequest(2))->token_ids;
  HeldAnswer first, second;
  handles_.push_back(*engine_->Generate(LongRequest(1), first.recorder));
  first.started.WaitForNotification();
  handles_.push_back(*engine_->Generate(LongRequest(2), second.recorder));
  first.go_on.Notify();
  second.started.WaitForNotification();
  const auto third = std::make_shared<GenerateRecorder>(), other = std::make_shared<GenerateRecorder>();
  handles_.push_back(*engine_->Generate(LongRequest(3), third));
  int32_t decoding = 0;
  other->on_prompt = [&] { decoding = engine_->Stats().sequences_decoding; };
  GenerateRequest request = NumberedRequest(3);
  request.caller.fairness_key = "other";
  handles_.push_back(*engine_->Generate(request, other));
  second.go_on.Notify();
  EXPECT_TRUE(other->Wait().status.ok()) << other->status;
  for (const auto& recorder : {first.recorder, second.recorder})
    EXPECT_FALSE(recorder->done.HasBeenNotified());
  EXPECT_EQ(decoding, 2);  // as many as a step has rows for
  EXPECT_EQ(other->token_ids, alone);
  for (const auto& recorder : {first.recorder, second.recorder, third}) {
    EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
  }
  EXPECT_EQ(second.recorder->token_ids, long_alone);
  EXPECT_EQ(engine_->Stats().preemptions, 0);
}

// More of the same key wait as before.
TEST_F(SharedDecodeBatchTest, AFullBatchTakesNoMoreOfTheKeyThatFillsIt) {
  HeldAnswer first;
  handles_.push_back(*engine_->Generate(LongRequest(0), first.recorder));
  first.started.WaitForNotification();
  const auto second = std::make_shared<GenerateRecorder>(), third = std::make_shared<GenerateRecorder>();
  bool has_room = false;
  third->on_prompt = [&] {
    has_room = first.recorder->done.HasBeenNotified() || second->done.HasBeenNotified();
  };
  handles_.push_back(*engine_->Generate(LongRequest(1), second));
  handles_.push_back(*engine_->Generate(LongRequest(2), third));
  first.go_on.Notify();
  for (const auto& recorder : {first.recorder, second, third}) {
    EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
  }
  EXPECT_TRUE(has_room);
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
  HeldAnswer first;
  const auto second = std::make_shared<GenerateRecorder>();
  GenerateRequest request = NumberedRequest(0);
  request.sampling.max_tokens = 240;  // as many tokens as the batch may have
  handles_.push_back(*engine_->Generate(request, first.recorder));
  first.started.WaitForNotification();
  handles_.push_back(*engine_->Generate(request, second));
  auto put = std::make_shared<PutRecorder>();
  PutChunksRequest chunks;
  chunks.chunks = {"Oslo is in Norway.\n"};
  size_t written = 0;
  int32_t waiting = -1;
  put->on_progress = [&] {
    written = first.recorder->token_ids.size();
    waiting = engine_->Stats().requests_waiting;
  };
  ASSERT_TRUE(engine_->PutChunks(chunks, put).ok());
  first.go_on.Notify();
  EXPECT_TRUE(put->Wait().status.ok()) << put->status;
  EXPECT_LT(written, 240);  // the first answer had not ended
  EXPECT_EQ(waiting, 1);    // the second
  for (const auto& recorder : {first.recorder, second}) {
    EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
  }
}

TEST(DecodeBatchOptionsTest, AreChecked) {
  EngineOptions options;
  options.device = "reference";
  options.max_context_tokens = 300;
  options.model_path = test_support::TemporaryPath("decode_batch_test.gguf");
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
