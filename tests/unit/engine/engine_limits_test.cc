// What the engine refuses, and what it says: bad fields, too long prompts, full queues, a full store.
#include <fstream>
#include <limits>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::HasSubstr;

class EngineLimitsTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.max_context_tokens = 300;
    options.max_queued_requests = 2;
    options.max_chunks_per_request = 4;
    options.max_text_bytes = 4096;
    options.chunk_store_bytes = 60000;  // a few chunks
    return options;
  }

  void ExpectInvalid(GenerateRequest request, const std::string& message) {
    const auto handle = engine_->Generate(std::move(request), std::make_shared<GenerateRecorder>());
    EXPECT_EQ(handle.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(handle.status().message(), HasSubstr(message));
  }
  template <typename Change>
  void ExpectInvalidWhen(Change change, const std::string& message) {
    GenerateRequest request = Request();
    change(request);
    ExpectInvalid(std::move(request), message);
  }
};

TEST_F(EngineLimitsTest, BadFieldsAreNamedWithValueAndRange) {
  ExpectInvalidWhen([](GenerateRequest& r) { r.prompt.question = ""; }, "question is empty");
  ExpectInvalidWhen([](GenerateRequest& r) { r.prompt.chunks[1] = "ab\xff"; }, "chunks[1]");
  ExpectInvalidWhen([](GenerateRequest& r) { r.prompt.chunks.resize(5); },
                    "chunks has 5 entries; allowed: at most 4");
  ExpectInvalidWhen([](GenerateRequest& r) { r.prompt.chunks[0] = std::string(5000, 'a'); },
                    "allowed: at most 4096");
  ExpectInvalidWhen([](GenerateRequest& r) { r.blend.ratio = std::nan(""); },
                    "ratio is nan; allowed: 0 to 1");
  ExpectInvalidWhen([](GenerateRequest& r) { r.blend.ratio_min = -0.5; },
                    "ratio_min is -0.5; allowed: 0 to 1");
  ExpectInvalidWhen([](GenerateRequest& r) { r.blend.ratio_max = 2; }, "ratio_max is 2; allowed: 0 to 1");
  ExpectInvalidWhen([](GenerateRequest& r) { r.blend.ratio_min = 0.5, r.blend.ratio_max = 0.25; },
                    "ratio_min is 0.5; allowed: 0 to ratio_max (0.25)");
  ExpectInvalidWhen([](GenerateRequest& r) { r.sampling.temperature = -1; }, "temperature");
  ExpectInvalidWhen([](GenerateRequest& r) { r.sampling.max_tokens = 0; }, "max_tokens");
  ExpectInvalidWhen(
      [](GenerateRequest& r) {
        r.sampling.stop = {"a", "\xc3"};
      },
      "stop[1] is not valid UTF-8");
  ExpectInvalidWhen([](GenerateRequest& r) { r.caller.tenant_namespace = std::string(129, 'n'); },
                    "namespace has 129");
}

TEST_F(EngineLimitsTest, APromptLongerThanTheContextIsRefusedAndOneThatFitsRunsUntilItIsFull) {
  ExpectInvalidWhen([](GenerateRequest& r) { r.prompt.chunks[0] = std::string(400, 'q'); }, "299");
  for (const int32_t max_tokens : {10000, std::numeric_limits<int32_t>::max()}) {
    GenerateRequest request = Request();
    request.sampling.max_tokens = max_tokens;
    const auto recorder = Generate(request);
    EXPECT_EQ(recorder->result.finish_reason, FinishReason::kContextFull);
    EXPECT_EQ(recorder->result.prompt_tokens + recorder->result.completion_tokens, 300);
  }
}

TEST_F(EngineLimitsTest, AllTextsOfARequestCountTogether) {
  ScoreRequest score;
  score.prompt.question = std::string(100, 'q');
  score.continuation = std::string(4000, 'c');
  EXPECT_THAT(engine_->Score(score, std::make_shared<ScoreRecorder>()).status().message(),
              HasSubstr("the request's texts have 4100 bytes; allowed: at most 4096"));
  ExpectInvalidWhen(
      [](GenerateRequest& r) {
        r.sampling.stop = {std::string(2500, 's'), std::string(2500, 't')};
      },
      "allowed: at most 4096");
}

TEST_F(EngineLimitsTest, AChunkLargerThanTheContextIsRefused) {
  PutChunksRequest request;
  request.chunks = {"fine", std::string(400, 'q')};
  const auto handle = engine_->PutChunks(request, std::make_shared<PutRecorder>());
  EXPECT_EQ(handle.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(handle.status().message(), HasSubstr("chunks[1] has 400 tokens"));
}

TEST_F(EngineLimitsTest, ScoreWantsExactlyOneContinuation) {
  ScoreRequest request;
  request.prompt = Request().prompt;
  const auto message = [&] {
    return std::string(engine_->Score(request, std::make_shared<ScoreRecorder>()).status().message());
  };
  EXPECT_THAT(message(), HasSubstr("neither of continuation and continuation_token_ids"));
  request.continuation = "x";
  request.continuation_token_ids = {5};
  EXPECT_THAT(message(), HasSubstr("both of"));
  request.continuation.clear();
  request.continuation_token_ids = {-1};
  EXPECT_THAT(message(), HasSubstr("continuation_token_ids[0] is -1"));
}

class EngineLongTextsTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.max_context_tokens = 300;
    return options;
  }
};

TEST_F(EngineLongTextsTest, AreRefusedBeforeTheyAreTokenizedToTheirEnd) {
  const std::string text(9000, 'q');
  GenerateRequest request = Request();
  request.prompt.question = text;
  EXPECT_THAT(engine_->Generate(request, std::make_shared<GenerateRecorder>()).status().message(),
              HasSubstr("the prompt has more than 8491 tokens; allowed: up to 299"));
  ScoreRequest score;
  score.prompt = request.prompt;
  score.continuation = "c";
  EXPECT_THAT(engine_->Score(score, std::make_shared<ScoreRecorder>()).status().message(),
              HasSubstr("the prompt has more than 8491 tokens; allowed: up to 299"));
  score.prompt = Request().prompt;
  score.continuation = text;
  EXPECT_THAT(engine_->Score(score, std::make_shared<ScoreRecorder>()).status().message(),
              HasSubstr("continuation has more than 8492 tokens; allowed: fewer than the context's 300"));
  PutChunksRequest put;
  put.chunks = {"fine", text};
  EXPECT_THAT(engine_->PutChunks(put, std::make_shared<PutRecorder>()).status().message(),
              HasSubstr("chunks[1] has more than "));
  put.chunks = {"fine"};
  put.system_text = text;
  EXPECT_THAT(
      engine_->PutChunks(put, std::make_shared<PutRecorder>()).status().message(),
      HasSubstr("the anchor (system_text and lead_in) has more than 8492 tokens; allowed: up to 300"));
  PrefetchChunksRequest prefetch;
  prefetch.chunks = {text};
  EXPECT_THAT(engine_->PrefetchChunks(prefetch).status().message(), HasSubstr("chunks[0] has more than "));
}

TEST_F(EngineLimitsTest, AFullQueueIsResourceExhaustedAndEmptiesAgain) {
  HeldAnswer running;
  ASSERT_TRUE(engine_->Generate(Request(), running.recorder).ok());
  running.started.WaitForNotification();
  std::vector<std::shared_ptr<GenerateRecorder>> queued;
  for (int i = 0; i < 2; ++i) {
    queued.push_back(std::make_shared<GenerateRecorder>());
    ASSERT_TRUE(engine_->Generate(Request(), queued.back()).ok());
  }
  EXPECT_EQ(engine_->Stats().requests_waiting, 2);
  EXPECT_EQ(engine_->Stats().requests_running, 1);
  const auto refused = engine_->Generate(Request(), std::make_shared<GenerateRecorder>());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  running.go_on.Notify();
  for (const auto& recorder : queued) EXPECT_TRUE(recorder->Wait().status.ok());
  EXPECT_TRUE(Generate(Request())->status.ok());
}

TEST_F(EngineLimitsTest, AFullStoreCostsMissesNotAnswers) {
  for (int i = 0; i < 20; ++i) {
    const auto recorder = Generate(Request({"document " + std::to_string(i) + std::string(60, 'x')}));
    EXPECT_TRUE(recorder->status.ok()) << recorder->status;
  }
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  const EngineStats stats = engine_->Stats();
  EXPECT_GT(stats.store.evictions, 0);
  EXPECT_LE(stats.store.bytes, stats.store.byte_budget);
}

class EngineChatFormatTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.chat_format = "llama2";  // not the model's own
    return options;
  }
};

TEST_F(EngineChatFormatTest, TheFormatSaysWhichTurnsMayFollowEachOther) {
  GenerateRequest request = Request();
  request.prompt.history = {{Role::kUser, "a"}, {Role::kAssistant, "b"}};
  EXPECT_TRUE(Generate(request)->status.ok());
  request.prompt.history = {{Role::kUser, "a"}};
  const auto handle = engine_->Generate(request, std::make_shared<GenerateRecorder>());
  EXPECT_EQ(handle.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(handle.status().message(), HasSubstr("history[0] and the question"));
}

TEST_F(EngineChatFormatTest, AFormatNeedsItsControlTokens) {
  EngineOptions options = Options();
  options.model_path = test_support::TemporaryPath("engine_limits_test.gguf");
  ASSERT_TRUE(test_support::WriteTinyModel(options.model_path, {}).ok());
  options.chat_format = "gemma";
  EXPECT_THAT(std::string(Engine::Create(options).status().message()),
              HasSubstr("gemma needs the control token <start_of_turn>"));
}

// A chunk behind a dated system text is found again on the same date alone.
TEST_F(EngineChatFormatTest, PromptsOfAFixedDateShareChunks) {
  EngineOptions options = Options();
  options.chat_format = "auto";
  options.correction = "none";
  options.model_path = test_support::TemporaryPath("dated.gguf");
  std::ofstream(options.model_path, std::ios::binary)
      << test_support::TinyModelBuilder({})
             .SetString("tokenizer.chat_template",
                        "<|im_start|>{{ strftime_now('%d %b %Y') }}<|im_end|>"
                        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")
             .Build();
  const auto key_on = [&](const std::string& date) {
    options.chat_date = date;
    auto engine = Engine::Create(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->info().told_date, date);
    engine_ = *std::move(engine);
    GenerateRequest request = Request();
    request.prompt.system_text = "";
    const auto recorder = Generate(request);
    EXPECT_TRUE(recorder->status.ok()) << recorder->status;
    return recorder->prompts.front().chunks.front().key;
  };
  const std::string key = key_on("2026-01-31");
  EXPECT_EQ(key_on("2026-01-31"), key);
  EXPECT_NE(key_on("2026-02-01"), key);
}

}  // namespace
}  // namespace kvblend
