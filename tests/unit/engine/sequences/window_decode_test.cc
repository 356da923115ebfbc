// Models with windows: answers give the pages back that no window of their layers reaches, and stay what they
// were.
#include <algorithm>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

constexpr int32_t kPageTokens = 8;

struct WindowedModel {
  std::string name;  // of a file in tests/fixtures/architectures; "every_layer": made here
  int32_t window;
  int32_t groups;    // of layers that share pages
  int32_t windowed;  // of these
};
const WindowedModel kModels[] = {
    {"every_layer", 16, 1, 1}, {"gemma2", 29, 2, 1}, {"gemma3", 29, 7, 6}, {"gpt_oss", 29, 3, 2}};

class WindowDecodeTest : public EngineFixture,
                         public testing::WithParamInterface<std::tuple<WindowedModel, std::string>> {
 protected:
  const WindowedModel& model() const { return std::get<0>(GetParam()); }
  const std::string& device() const { return std::get<1>(GetParam()); }

  void SetUp() override { Start(0, 1000, 500); }

  void Start(double keep, int64_t batch_tokens, int32_t context_tokens, bool refine = false) {
    engine_.reset();
    EngineOptions options = Options();
    options.device = device();
    if (device() == "cpu") options.gemm = "f32";
    options.num_threads = 2;
    options.page_size = kPageTokens;
    options.keep_conversations = keep;
    options.refine_idle = refine;
    options.max_context_tokens = context_tokens;
    options.max_batch_tokens = batch_tokens;
    options.max_draft_tokens = 3;
    options.correction = "none";
    options.learn_correction = "off";
    options.model_path = ModelPath();
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

  static int32_t PagesFor(int32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }
  /// What an answer holds at most behind so many tokens: all in layers that see everything, and the window in
  /// the others, twice where a next turn may come; both ends of what is held may lie within a page.
  int32_t MostPages(int32_t tokens, bool keeps) const {
    const int32_t of_window = (keeps ? 2 : 1) * model().window + 2 * kPageTokens;
    return (model().groups - model().windowed) * PagesFor(tokens) +
           model().windowed * PagesFor(std::min(tokens, of_window));
  }

 private:
  std::string ModelPath() {
    if (model().name != "every_layer") return ArchitecturePath(model().name);
    const std::string path = test_support::TemporaryPath("window_decode.gguf");
    test_support::GgufBuilder file = test_support::TinyModelBuilder(ModelSpec());
    file.SetUint32("llama.attention.sliding_window", static_cast<uint32_t>(model().window));
    std::ofstream(path, std::ios::binary) << file.Build();
    return path;
  }
};

// Scoring drops nothing.
TEST_P(WindowDecodeTest, AnswersManyWindowsLongAreWhatTheModelWouldSayWithAllPages) {
  const int32_t answer_tokens = 9 * model().window;
  for (const bool keeps : {false, true}) {
    Start(keeps ? 1 : 0, 1000, 500);
    auto answer = std::make_shared<GenerateRecorder>();
    std::vector<int32_t> used;  // behind the first token, the second, ...
    answer->on_text = [&] { used.resize(answer->token_ids.size(), engine_->Stats().pages_used); };
    const auto handle = engine_->Generate(Long(answer_tokens), answer);
    ASSERT_TRUE(answer->Wait().status.ok()) << answer->status;
    const int32_t prompt_tokens = answer->prompts[0].prompt_tokens, tokens = prompt_tokens + answer_tokens;
    ASSERT_EQ(used.size(), answer_tokens);
    // The prompt has all of its pages until the first step behind it, and so may the step's guesses.
    for (int32_t i = 1; i < answer_tokens; ++i) {
      EXPECT_LE(used[i], MostPages(prompt_tokens + i + 4, keeps)) << i << " tokens behind the prompt";
    }
    const int32_t held = (keeps ? 2 : 1) * model().window + 2 * kPageTokens;
    EXPECT_GE(engine_->Stats().pages_dropped, model().windowed * ((tokens - held) / kPageTokens));
    EXPECT_LE(engine_->Stats().pages_dropped,
              model().windowed * ((tokens - model().window) / kPageTokens + 1));
    EXPECT_LE(engine_->Stats().pages_kept, keeps ? MostPages(tokens, keeps) : 0);
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
  constexpr int32_t kAnswerTokens = 260, kContext = 400, kBatchTokens = 560;
  Start(/*keep=*/0, kBatchTokens, kContext);
  std::vector<int32_t> alone = Generate(Long(kAnswerTokens))->token_ids;
  const int64_t before = engine_->Stats().decode_steps;
  HeldAnswer first;
  std::vector<std::shared_ptr<RequestHandle>> handles = {*engine_->Generate(Long(2), first.recorder)};
  first.started.WaitForNotification();
  std::vector<std::shared_ptr<GenerateRecorder>> recorders;
  for (int i = 0; i < 4; ++i) {
    recorders.push_back(std::make_shared<GenerateRecorder>());
    GenerateRequest request = Long(kAnswerTokens);
    request.sampling.temperature = 1;  // so that nothing can be guessed
    request.sampling.seed = 1 + i;
    handles.push_back(*engine_->Generate(request, recorders.back()));
  }
  first.go_on.Notify();
  for (const auto& recorder : recorders) {
    ASSERT_TRUE(recorder->Wait().status.ok()) << recorder->status;
    EXPECT_EQ(recorder->token_ids.size(), kAnswerTokens);
  }
  first.recorder->Wait();
  // All pages of one of them are more than half of what there is: one after the other they would take four
  // times the steps.
  EXPECT_GT(recorders[0]->prompts[0].prompt_tokens + kAnswerTokens, kBatchTokens / 2);
  EXPECT_LT(engine_->Stats().decode_steps - before, 3 * kAnswerTokens);
  EXPECT_EQ(engine_->Stats().preemptions, 0);
  EXPECT_EQ(Generate(Long(kAnswerTokens))->token_ids, alone);
}

TEST_P(WindowDecodeTest, TheNextTurnSeesWhatItWouldSeeWithoutKeeping) {
  for (const int32_t answer_tokens : {model().window / 2, 4 * model().window}) {
    std::vector<std::vector<int32_t>> tokens[2];
    for (const bool keeps : {false, true}) {
      Start(keeps ? 1 : 0, 1000, 500);
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
        request.sampling.max_tokens = model().window;
      }
      const auto last = Generate(request);
      ASSERT_TRUE(last->status.ok()) << last->status;
      tokens[keeps].push_back(last->token_ids);
      if (keeps && answer_tokens < model().window) {
        EXPECT_GT(last->prompts[0].kept_tokens, 0);
      }
    }
    EXPECT_EQ(tokens[0], tokens[1]);
  }
}

// What its answer has given back is taken again for it; then others may begin with it.
TEST_P(WindowDecodeTest, AKeptConversationBecomesExactFromItsBeginning) {
  GenerateRequest request = Long(3 * model().window);
  request.blend.policy = Policy::kAll;
  const std::vector<int32_t> expected = Generate(request)->token_ids;

  Start(/*keep=*/1, 1000, 500, /*refine=*/true);
  ASSERT_TRUE(Put(request.prompt.chunks)->status.ok());
  request.blend.policy = Policy::kNone;
  const auto blended = Generate(request);
  ASSERT_TRUE(blended->status.ok()) << blended->status;
  const PromptReport& report = blended->prompts[0];
  ASSERT_GT(report.reused_tokens, 0);
  EXPECT_GT(engine_->Stats().pages_dropped, 0);
  const int32_t tokens = report.prompt_tokens + 3 * model().window - 1;
  while (engine_->Stats().refined_tokens < tokens - report.exact_tokens) std::this_thread::yield();
  EXPECT_EQ(engine_->Stats().pages_kept, model().groups * PagesFor(tokens));
  request.blend.policy = Policy::kAll;
  const auto again = Generate(request);
  EXPECT_GT(again->prompts[0].shared_tokens, report.exact_tokens);
  EXPECT_EQ(again->token_ids, expected);
}

// Also where all of its windows have passed, over pages that others had in between.
TEST_P(WindowDecodeTest, OthersMayShareAnyPartOfOneThatBecameExact) {
  if (device() != "cpu") GTEST_SKIP() << "long answers take minutes on " << device();
  GenerateRequest request = Long(9 * model().window), between = request;
  between.prompt.chunks = {"Xyz is something else, and more of it is said here than there.\n"};
  between.caller.tenant_namespace = "other";
  Start(/*keep=*/1, 1000, 500, /*refine=*/true);
  ASSERT_TRUE(Put(request.prompt.chunks)->status.ok());
  request.blend.policy = Policy::kNone;
  auto answer = std::make_shared<GenerateRecorder>(), other = std::make_shared<GenerateRecorder>();
  const auto handle = engine_->Generate(request, answer), other_handle = engine_->Generate(between, other);
  ASSERT_TRUE(answer->Wait().status.ok()) << answer->status;
  ASSERT_TRUE(other->Wait().status.ok()) << other->status;
  const PromptReport& report = answer->prompts[0];
  ASSERT_GT(report.reused_tokens, 0);
  const int32_t inexact = report.prompt_tokens + 9 * model().window - 1 - report.exact_tokens;
  while (engine_->Stats().refined_tokens < inexact) std::this_thread::yield();

  ScoreRequest score;
  score.prompt = request.prompt;
  score.prompt.question = "Y";  // as short as one can be: what it sees is what is shared
  score.blend.policy = Policy::kAll;
  score.blend.store_misses = false;
  score.continuation_token_ids = {100, 101, 102, 103};
  score.blend.share_prefix = false;
  const auto alone = Score(score);
  ASSERT_TRUE(alone->status.ok()) << alone->status;
  score.blend.share_prefix = true;
  const auto shared = Score(score);
  ASSERT_TRUE(shared->status.ok()) << shared->status;
  EXPECT_GT(shared->prompts[0].shared_tokens, report.exact_tokens);
  for (size_t i = 0; i < alone->tokens.size(); ++i) {
    EXPECT_NEAR(shared->tokens[i].logprob, alone->tokens[i].logprob, 1e-3) << i;
  }
}

// Pages that a next turn or other prompts may want come and go with answers that are preempted and cancelled;
// the end of it all is that none is held, and that every answer is what it is alone.
TEST_P(WindowDecodeTest, RandomMixturesLeaveNothingBehind) {
  Start(/*keep=*/0, 500, 400);
  std::mt19937 random(20261124);
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<int32_t>> alone;
  const int count = device() == "cpu" ? 16 : 8;  // the reference backend takes its time
  for (int i = 0; i < count; ++i) {
    requests.push_back(Long(static_cast<int32_t>(40 + random() % 160)));
    requests.back().prompt.chunks.resize(1 + random() % 2);
    requests.back().prompt.question = "Question " + std::to_string(random() % 4);
    requests.back().sampling.temperature = static_cast<double>(random() % 2);
    requests.back().sampling.seed = 1 + i;
    requests.back().blend.policy = Policy::kAll;
    alone.push_back(Generate(requests.back())->token_ids);
  }
  for (const double keep : {0.0, 0.5}) {
    Start(keep, 500, 400);
    for (int i = 0; i < 30; ++i) Generate(Long(2));  // so that more are let in than there will be pages for
    std::vector<std::shared_ptr<GenerateRecorder>> recorders;
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const GenerateRequest& request : requests) {
      recorders.push_back(std::make_shared<GenerateRecorder>());
      handles.push_back(*engine_->Generate(request, recorders.back()));
    }
    for (size_t i = 0; i < requests.size(); i += 5) handles[i]->Cancel();
    for (size_t i = 0; i < requests.size(); ++i) {
      const absl::Status& status = recorders[i]->Wait().status;
      if (i % 5 == 0 && absl::IsCancelled(status)) continue;
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(recorders[i]->token_ids, alone[i]) << i;
    }
    ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
    EXPECT_EQ(engine_->Stats().pages_used, 0);
    EXPECT_EQ(engine_->Stats().pages_kept > 0, keep > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WindowDecodeTest,
                         testing::Combine(testing::ValuesIn(kModels), testing::Values("reference", "cpu")),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_on_" + std::get<1>(info.param);
                         });

/// Every layer has a window that the prompts below are shorter than, so that they are offered to others.
class WideWindowTest : public EngineFixture {
 protected:
  static constexpr int32_t kWindow = 150;

  void SetUp() override {
    EngineOptions options = Options();
    options.page_size = kPageTokens;
    options.max_context_tokens = 600;
    options.keep_conversations = 0;
    options.learn_correction = "off";
    options.model_path = test_support::TemporaryPath("wide_window.gguf");
    test_support::GgufBuilder file = test_support::TinyModelBuilder(ModelSpec());
    file.SetUint32("llama.attention.sliding_window", kWindow);
    std::ofstream(options.model_path, std::ios::binary) << file.Build();
    auto engine = Engine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
};

TEST_F(WideWindowTest, WhatHasBeenGivenBackIsNoLongerShared) {
  GenerateRequest request = Request();
  request.blend.policy = Policy::kAll;
  request.sampling.max_tokens = 300;
  const auto alone = Generate(request);
  ASSERT_LT(alone->prompts[0].prompt_tokens, kWindow);
  std::vector<std::shared_ptr<GenerateRecorder>> answers;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  const int64_t before = engine_->Stats().pages_dropped;
  const auto ask = [&] {
    answers.push_back(std::make_shared<GenerateRecorder>());
    handles.push_back(*engine_->Generate(request, answers.back()));
  };
  HeldAnswer first;
  first.recorder->on_text = [&] {
    if (answers.empty()) ask();
    if (answers.size() == 1 && engine_->Stats().pages_dropped > before) ask();
  };
  handles.push_back(*engine_->Generate(request, first.recorder));
  first.started.WaitForNotification();
  first.go_on.Notify();
  EXPECT_EQ(first.recorder->Wait().token_ids, alone->token_ids);
  ASSERT_EQ(answers.size(), 2u);
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer->Wait().status.ok()) << answer->status;
    EXPECT_EQ(answer->token_ids, alone->token_ids);
  }
  EXPECT_GT(answers[0]->prompts[0].shared_tokens, 0);
  EXPECT_EQ(engine_->Stats().pages_used, 0);
}

}  // namespace
}  // namespace kvblend
