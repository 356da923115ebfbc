// The next turn of a conversation goes on from what the engine has kept of the last one.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

const std::vector<std::string> kPassages = {"Paris is in France.\n", "Rome is in Italy.\n",
                                            std::string(90, 'x')};

class ConversationTest : public EngineFixture {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.page_size = 16;
    options.keep_conversations = keep_;
    options.learn_correction = "off";
    options.max_context_tokens = context_;
    options.refine_idle = refine_;
    return options;
  }

  void Restart(double keep, int32_t context = 0) {
    keep_ = keep;
    context_ = context;
    engine_.reset();
    SetUp();
  }

  /// What a client asks next that has got this answer.
  static GenerateRequest Next(GenerateRequest request, const GenerateRecorder& answer,
                              const std::string& question) {
    Prompt& prompt = request.prompt;
    prompt.history.push_back(
        {Role::kUser, prompt.question, std::exchange(prompt.lead_in, ""), std::exchange(prompt.chunks, {})});
    prompt.history.push_back({Role::kAssistant, answer.text});
    prompt.question = question;
    return request;
  }

  static GenerateRequest First(Policy policy = Policy::kLink) {
    GenerateRequest request = EngineFixture::Request(kPassages);
    request.blend.policy = policy;
    request.blend.link_tokens = 3;
    request.blend.store_misses = false;
    return request;
  }

  static int32_t SumOf(const PromptReport& report) {
    return report.kept_tokens + report.exact_tokens + report.reused_tokens + report.recomputed_tokens +
           report.computed_tokens;
  }

  /// Behind an answer: until all that is kept is exact.
  void WaitUntilRefined(int64_t tokens) {
    while (engine_->Stats().refined_tokens < tokens) std::this_thread::yield();
  }

  double keep_ = 1;
  bool refine_ = false;
  int32_t context_ = 0;
};

TEST_F(ConversationTest, TheNextTurnComputesOnlyWhatIsNew) {
  ASSERT_TRUE(Put(kPassages)->status.ok());
  const auto first = Generate(First());
  ASSERT_TRUE(first->status.ok()) << first->status;
  const PromptReport& before = first->prompts[0];
  EXPECT_EQ(before.kept_tokens, 0);
  EXPECT_GT(before.reused_tokens, 0);
  EXPECT_EQ(engine_->Stats().kept_conversations, 1);
  EXPECT_GT(engine_->Stats().pages_kept, 0);
  EXPECT_EQ(engine_->Stats().pages_used, 0);

  const GenerateRequest next = Next(First(), *first, "And Rome?");
  const auto second = Generate(next);
  ASSERT_TRUE(second->status.ok()) << second->status;
  const PromptReport& report = second->prompts[0];
  EXPECT_GE(report.kept_tokens, before.prompt_tokens);
  EXPECT_EQ(report.computed_tokens, report.prompt_tokens - report.kept_tokens);
  EXPECT_LT(report.computed_tokens, report.prompt_tokens / 2);
  // The anchor and the first chunk, and of the second the tokens that were recomputed right behind them.
  EXPECT_EQ(report.kept_exact_tokens, before.exact_tokens + 3);
  EXPECT_EQ(SumOf(report), report.prompt_tokens);

  // And so on: what the second turn read was blended, and still is.
  const auto third = Generate(Next(next, *second, "Why?"));
  EXPECT_GE(third->prompts[0].kept_tokens, report.prompt_tokens);
  EXPECT_EQ(third->prompts[0].kept_exact_tokens, report.kept_exact_tokens);
  EXPECT_EQ(engine_->Stats().kept_conversations, 1);
  EXPECT_EQ(engine_->Stats().kept_conversations_taken, 2);
}

TEST_F(ConversationTest, AnAnswerIsAskedForOnceMoreAndBehindAnotherQuestion) {
  ASSERT_TRUE(Put(kPassages)->status.ok());
  const auto first = Generate(First());
  const GenerateRequest next = Next(First(), *first, "And Rome?");
  const auto second = Generate(next);
  ASSERT_TRUE(second->status.ok()) << second->status;
  const int32_t kept = second->prompts[0].kept_tokens;
  ASSERT_GT(kept, 0);
  for (int round = 0; round < 2; ++round) {
    const auto again = Generate(next);
    ASSERT_TRUE(again->status.ok()) << again->status;
    EXPECT_GE(again->prompts[0].kept_tokens, kept);
    EXPECT_EQ(again->token_ids, second->token_ids);
    EXPECT_GE(Generate(Next(First(), *first, "Why?"))->prompts[0].kept_tokens, kept);
  }
  // Chunks were blended for the first question, so behind another first question they are not as they were.
  GenerateRequest other = First();
  other.prompt.question = "Where is Bergen?";
  EXPECT_EQ(Generate(Next(other, *first, "And Rome?"))->prompts[0].kept_tokens, 0);
}

TEST_F(ConversationTest, ChunksOfALaterTurnAreBlendedForItsQuestion) {
  ASSERT_TRUE(Put(kPassages)->status.ok());
  const auto first = Generate(First());
  const auto with_chunks = [&](const std::string& question) {
    GenerateRequest request = Next(First(), *first, question);
    request.prompt.lead_in = "More:\n";
    request.prompt.chunks = {kPassages[1]};
    return request;
  };
  const auto second = Generate(with_chunks("And Rome?"));
  ASSERT_TRUE(second->status.ok()) << second->status;
  ASSERT_GT(second->prompts[0].kept_tokens, 0);
  ASSERT_GT(second->prompts[0].reused_tokens, 0);
  EXPECT_EQ(Generate(Next(with_chunks("Where is Bergen?"), *second, "Why?"))->prompts[0].kept_tokens, 0);
  EXPECT_GT(Generate(Next(with_chunks("And Rome?"), *second, "Why?"))->prompts[0].kept_tokens,
            second->prompts[0].kept_tokens);
}

TEST_F(ConversationTest, AnswersAreTheSameAsWithoutKeepingWhereKvIsExact) {
  std::vector<int32_t> tokens[2];
  for (const bool keeps : {false, true}) {
    Restart(keeps ? 1 : 0);
    ASSERT_TRUE(Put(kPassages)->status.ok());
    GenerateRequest request = First(Policy::kAll);
    for (const char* question : {"And Rome?", "Why?", "Since when?"}) {
      const auto answer = Generate(request);
      ASSERT_TRUE(answer->status.ok()) << answer->status;
      tokens[keeps].insert(tokens[keeps].end(), answer->token_ids.begin(), answer->token_ids.end());
      const PromptReport& report = answer->prompts[0];
      EXPECT_EQ(report.kept_tokens > 0, keeps && !request.prompt.history.empty());
      EXPECT_EQ(report.kept_exact_tokens, report.kept_tokens);
      request = Next(request, *answer, question);
      // New chunks behind the history are blended as ever.
      request.prompt.lead_in = "More:\n";
      request.prompt.chunks = {kPassages[1]};
    }
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

TEST_F(ConversationTest, NobodyElseFindsIt) {
  ASSERT_TRUE(Put(kPassages)->status.ok());
  const auto first = Generate(First());
  const GenerateRequest next = Next(First(), *first, "And Rome?");
  const auto kept = [&](const GenerateRequest& request) { return Generate(request)->prompts[0].kept_tokens; };
  GenerateRequest other = next;
  other.caller.tenant_namespace = "other";
  EXPECT_EQ(kept(other), 0);
  EXPECT_EQ(kept(First()), 0) << "the same question once more";
  other = First();
  other.prompt.question = "Where is Rome?";
  EXPECT_EQ(kept(other), 0) << "another question about the same chunks";
  other = next;
  other.prompt.history[0].text = "Where is Roma?";
  EXPECT_EQ(kept(other), 0);
  other = next;
  other.prompt.history[0].chunks[1] = "Rome is in Italia.\n";
  EXPECT_EQ(kept(other), 0);
  other = next;
  other.blend.policy = Policy::kAll;
  EXPECT_EQ(kept(other), 0) << "blended KV instead of full prefill's";
  other = next;
  other.blend.reuse = Reuse::kNothing;
  EXPECT_EQ(kept(other), 0);
  EXPECT_GT(kept(next), 0);
}

TEST_F(ConversationTest, ACancelledTurnLeavesWhatItCameFrom) {
  const auto first = Generate(First());
  GenerateRequest next = Next(First(), *first, std::string(90, 'q'));
  next.sampling.max_tokens = 50;
  const auto gone = std::make_shared<GenerateRecorder>();
  std::shared_ptr<RequestHandle> handle;
  absl::Notification has_handle;
  gone->on_prompt = [&] {
    has_handle.WaitForNotification();
    handle->Cancel();
  };
  handle = *engine_->Generate(next, gone);
  has_handle.Notify();
  EXPECT_EQ(gone->Wait().status.code(), absl::StatusCode::kCancelled);
  // Its own prompt is kept, and goes on.
  const auto after = Generate(Next(next, *gone, "More?"));
  ASSERT_TRUE(after->status.ok()) << after->status;
  EXPECT_GE(after->prompts[0].kept_tokens, gone->prompts[0].prompt_tokens);

  // A turn that ends within its prompt, or before.
  const GenerateRequest later = Next(Next(next, *gone, "More?"), *after, std::string(90, 'r'));
  const auto stopped = std::make_shared<GenerateRecorder>();
  (*engine_->Generate(later, stopped))->Cancel();
  stopped->Wait();
  EXPECT_GT(Generate(later)->prompts[0].kept_tokens, 0);
}

TEST_F(ConversationTest, ScoresGoOnFromItAndLeaveIt) {
  ASSERT_TRUE(Put(kPassages)->status.ok());
  const auto first = Generate(First());
  const GenerateRequest next = Next(First(), *first, "And Rome?");
  ScoreRequest score;
  score.prompt = next.prompt;
  score.blend = next.blend;
  score.continuation = "Italy, of course.";
  const auto once = Score(score), again = Score(score);
  ASSERT_TRUE(again->status.ok()) << again->status;
  EXPECT_GT(once->prompts[0].kept_tokens, 0);
  EXPECT_EQ(once->prompts[0].kept_tokens, again->prompts[0].kept_tokens);
  for (size_t i = 0; i < once->tokens.size(); ++i) {
    EXPECT_EQ(once->tokens[i].logprob, again->tokens[i].logprob) << i;
  }
  EXPECT_EQ(Generate(next)->prompts[0].kept_tokens, once->prompts[0].kept_tokens);
}

TEST_F(ConversationTest, RefinedWhileIdleItReadsAsFullPrefillDoes) {
  refine_ = true;
  Restart(/*keep=*/1);
  ASSERT_TRUE(Put(kPassages)->status.ok());
  const auto first = Generate(First(Policy::kNone));
  const PromptReport& before = first->prompts[0];
  ASSERT_GT(before.reused_tokens, 0);
  ScoreRequest score;
  score.prompt = Next(First(), *first, "And Rome?").prompt;
  score.blend = First(Policy::kNone).blend;
  score.continuation = "Italy, of course.";
  // All that was blended, and the question and the answer behind it; the answer's last token has no KV.
  WaitUntilRefined(before.prompt_tokens - before.exact_tokens + first->result.completion_tokens - 1);
  const auto refined = Score(score);
  ASSERT_TRUE(refined->status.ok()) << refined->status;
  const PromptReport& report = refined->prompts[0];
  EXPECT_GE(report.kept_tokens, before.prompt_tokens);
  EXPECT_EQ(report.kept_exact_tokens, report.kept_tokens);
  score.blend.reuse = Reuse::kNothing;
  const auto full = Score(score);
  EXPECT_EQ(full->prompts[0].kept_tokens, 0);
  // The kernels' sums in another order, grown through two layers.
  for (size_t i = 0; i < full->tokens.size(); ++i) {
    EXPECT_NEAR(refined->tokens[i].logprob, full->tokens[i].logprob, 1e-4) << i;
  }
  // What is exact is used whatever the policy.
  score.blend = First(Policy::kAll).blend;
  EXPECT_EQ(Score(score)->prompts[0].kept_exact_tokens, report.kept_tokens);

  // And without it, it does not.
  refine_ = false;
  Restart(/*keep=*/1);
  ASSERT_TRUE(Put(kPassages)->status.ok());
  Generate(First(Policy::kNone));
  score.blend = First(Policy::kNone).blend;
  const auto blended = Score(score);
  EXPECT_LT(blended->prompts[0].kept_exact_tokens, blended->prompts[0].kept_tokens);
  double largest = 0;
  for (size_t i = 0; i < full->tokens.size(); ++i) {
    largest = std::max(largest, std::abs(blended->tokens[i].logprob - full->tokens[i].logprob));
  }
  EXPECT_GT(largest, 1e-3) << "nothing to be made better";
}

TEST_F(ConversationTest, RefinementGoesOnBetweenRequestsAndNobodyIsSpoiltByIt) {
  refine_ = true;
  Restart(/*keep=*/1);
  ASSERT_TRUE(Put(kPassages)->status.ok());
  // Exact throughout, so that it makes no difference how far the refinement of the others has come.
  std::vector<GenerateRequest> requests;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = First(Policy::kAll);
    request.prompt.question = "Question " + std::to_string(i);
    requests.push_back(request);
    alone.push_back(Generate(request)->token_ids);
    request.blend.policy = Policy::kNone;
    Generate(request);
  }
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<GenerateRecorder>> recorders;
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const GenerateRequest& request : requests) {
      recorders.push_back(std::make_shared<GenerateRecorder>());
      handles.push_back(*engine_->Generate(request, recorders.back()));
    }
    for (size_t i = 0; i < recorders.size(); ++i) EXPECT_EQ(recorders[i]->Wait().token_ids, alone[i]) << i;
  }
  EXPECT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
}

TEST_F(ConversationTest, UnderPressureItGoesTheOldestFirstAndNoRequestFails) {
  Restart(/*keep=*/0.5, /*context=*/256);
  std::vector<GenerateRequest> next;
  for (int i = 0; i < 12; ++i) {
    GenerateRequest request = First();
    request.prompt.chunks.back() = "conversation " + std::to_string(i) + "\n";
    const auto answer = Generate(request);
    ASSERT_TRUE(answer->status.ok()) << answer->status;
    next.push_back(Next(request, *answer, "And?"));
    const EngineStats stats = engine_->Stats();
    EXPECT_LE(stats.pages_kept, stats.pages_total / 2);
    EXPECT_EQ(stats.pages_used, 0);
  }
  EXPECT_GT(engine_->Stats().kept_conversations_evicted, 0);
  EXPECT_EQ(Generate(next.front())->prompts[0].kept_tokens, 0);
  EXPECT_GT(Generate(next.back())->prompts[0].kept_tokens, 0);
  // With all of the pool for conversations, others still get what they need.
  Restart(/*keep=*/1, /*context=*/256);
  std::vector<std::shared_ptr<GenerateRecorder>> recorders;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (int i = 0; i < 40; ++i) {
    GenerateRequest request = First();
    request.prompt.question = "Question " + std::to_string(i);
    recorders.push_back(std::make_shared<GenerateRecorder>());
    handles.push_back(*engine_->Generate(request, recorders.back()));
  }
  for (const auto& recorder : recorders) EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
  EXPECT_GT(engine_->Stats().kept_conversations_evicted, 0);
}

}  // namespace
}  // namespace kvblend
