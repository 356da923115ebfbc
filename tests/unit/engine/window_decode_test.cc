// Models whose every layer has a window: answers give the pages back that no layer sees, and stay what they were.
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

constexpr int32_t kWindow = 16;
constexpr int32_t kPageTokens = 8;

class WindowDecodeTest : public EngineFixture, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override { Start(0, 1000, 700); }

  void Start(double keep, int64_t batch_tokens, int32_t context_tokens) {
    engine_.reset();
    EngineOptions options = Options();
    options.device = GetParam();
    if (GetParam() == "cpu") options.gemm = "f32";
    options.num_threads = 2;
    options.page_size = kPageTokens;
    options.keep_conversations = keep;
    options.max_context_tokens = context_tokens;
    options.max_batch_tokens = batch_tokens;
    options.max_draft_tokens = 3;
    options.learn_correction = "off";
    options.model_path = testing::TempDir() + "/window_decode_" + std::to_string(getpid()) + ".gguf";
    test_support::GgufBuilder model = test_support::TinyModelBuilder(ModelSpec());
    model.SetUint32("llama.attention.sliding_window", kWindow);
    std::ofstream(options.model_path, std::ios::binary) << model.Build();
    auto engine = Engine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  static GenerateRequest Long(int32_t max_tokens) {
    GenerateRequest request = Request();
    request.sampling.max_tokens = max_tokens;
    request.blend.store_misses = false;
    return request;
  }
};

// Scoring drops nothing.
TEST_P(WindowDecodeTest, AnswersNineWindowsLongAreWhatTheModelWouldSayWithAllPages) {
  constexpr int32_t kTokens = 9 * kWindow;
  for (const double keep : {0.0, 1.0}) {
    Start(keep, 1000, 700);
    const auto answer = Generate(Long(kTokens));
    ASSERT_TRUE(answer->status.ok()) << answer->status;
    const int32_t tokens = answer->prompts[0].prompt_tokens + kTokens;
    // The first token that the last one sees, and as much again for a next turn.
    const int32_t held = (keep > 0 ? 2 : 1) * kWindow + 2 * kPageTokens;
    EXPECT_GE(engine_->Stats().pages_dropped, (tokens - held) / kPageTokens);
    EXPECT_LE(engine_->Stats().pages_dropped, (tokens - kWindow) / kPageTokens + 1);
    EXPECT_LE(engine_->Stats().pages_kept * kPageTokens, keep > 0 ? held + kPageTokens : 0);
    EXPECT_EQ(engine_->Stats().pages_used, 0);

    ScoreRequest score;
    score.prompt = Request().prompt;
    score.blend.reuse = Reuse::kNothing;
    score.continuation_token_ids = answer->token_ids;
    const auto scored = Score(score);
    ASSERT_TRUE(scored->status.ok()) << scored->status;
    ASSERT_EQ(scored->tokens.size(), answer->token_ids.size());
    for (size_t i = 0; i < scored->tokens.size(); ++i) {
      EXPECT_EQ(scored->tokens[i].top_token_id, answer->token_ids[i]) << i;
    }
  }
}

TEST_P(WindowDecodeTest, MoreAnswersFitAtATime) {
  Start(/*keep=*/0, 450, 400);
  std::vector<int32_t> alone = Generate(Long(200))->token_ids;
  const int64_t before = engine_->Stats().decode_steps;
  HeldAnswer first;
  std::vector<std::shared_ptr<RequestHandle>> handles = {*engine_->Generate(Long(2), first.recorder)};
  first.started.WaitForNotification();
  std::vector<std::shared_ptr<GenerateRecorder>> recorders;
  for (int i = 0; i < 4; ++i) {
    recorders.push_back(std::make_shared<GenerateRecorder>());
    GenerateRequest request = Long(200);
    request.sampling.temperature = 1;  // so that nothing can be guessed
    request.sampling.seed = 1 + i;
    handles.push_back(*engine_->Generate(request, recorders.back()));
  }
  first.go_on.Notify();
  for (const auto& recorder : recorders) {
    ASSERT_TRUE(recorder->Wait().status.ok()) << recorder->status;
    EXPECT_EQ(recorder->token_ids.size(), 200u);
  }
  first.recorder->Wait();
  // All pages of one of them are more than half of what there is: one after the other they would take 800 steps.
  EXPECT_GT(recorders[0]->prompts[0].prompt_tokens + 200, 450 / 2);
  EXPECT_LT(engine_->Stats().decode_steps - before, 600);
  EXPECT_EQ(engine_->Stats().preemptions, 0);
  EXPECT_EQ(Generate(Long(200))->token_ids, alone);
}

TEST_P(WindowDecodeTest, TheNextTurnSeesWhatItWouldSeeWithoutKeeping) {
  for (const int32_t answer_tokens : {kWindow / 2, 5 * kWindow}) {
    std::vector<std::vector<int32_t>> tokens[2];
    for (const bool keeps : {false, true}) {
      Start(keeps ? 1 : 0, 1000, 700);
      GenerateRequest request = Long(answer_tokens);
      request.blend.policy = Policy::kAll;
      for (const char* question : {"And Rome?", "Why?"}) {
        const auto answer = Generate(request);
        ASSERT_TRUE(answer->status.ok()) << answer->status;
        tokens[keeps].push_back(answer->token_ids);
        Prompt& prompt = request.prompt;
        prompt.history.push_back({Role::kUser, prompt.question, std::exchange(prompt.lead_in, ""),
                                  std::exchange(prompt.chunks, {})});
        prompt.history.push_back({Role::kAssistant, answer->text});
        prompt.question = question;
      }
      const auto last = Generate(request);
      tokens[keeps].push_back(last->token_ids);
      if (keeps && answer_tokens < kWindow) {
        EXPECT_GT(last->prompts[0].kept_tokens, 0);
      }
    }
    EXPECT_EQ(tokens[0], tokens[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, WindowDecodeTest, testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvblend
