// Requests that begin alike hold the pages of what they begin with together, and nobody can tell by the
// answers.
#include "engine/serve/sequences/shared_prefixes.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

using testing::ElementsAre;

TEST(TokenRangesTest, AreCutComparedAndJoined) {
  TokenRanges ranges;
  AppendRange({0, 4}, ranges);
  AppendRange({4, 4}, ranges);
  AppendRange({4, 6}, ranges);
  AppendRange({8, 9}, ranges);
  EXPECT_THAT(ranges, ElementsAre(TokenRange{0, 6}, TokenRange{8, 9}));
  EXPECT_THAT(RangesBefore(ranges, 5), ElementsAre(TokenRange{0, 5}));
  EXPECT_THAT(RangesBefore(ranges, 0), ElementsAre());
  EXPECT_EQ(RangesBefore(ranges, 9), ranges);
  EXPECT_EQ(AgreeUntil(ranges, {{0, 6}, {8, 12}}), 9);
  EXPECT_EQ(AgreeUntil(ranges, {{0, 6}}), 8);
  EXPECT_EQ(AgreeUntil({{2, 3}}, {{1, 3}}), 1);
  EXPECT_GT(AgreeUntil(ranges, ranges), 1 << 30);
}

/// Spans of so many tokens: system, lead-in, two chunks, question.
prompt::PromptLayout LayoutOf(int32_t history) {
  prompt::PromptLayout layout;
  int32_t end = 0;
  const auto add = [&](prompt::SpanKind kind, int32_t chunk, int32_t size) {
    layout.spans.push_back({kind, chunk, end, end + size});
    end += size;
  };
  add(prompt::SpanKind::kSystem, -1, 3);
  add(prompt::SpanKind::kHistory, -1, history);
  add(prompt::SpanKind::kLeadIn, -1, 2);
  add(prompt::SpanKind::kChunk, 0, 10);
  add(prompt::SpanKind::kChunk, 1, 0);
  add(prompt::SpanKind::kChunk, 2, 20);
  add(prompt::SpanKind::kQuestion, -1, 5);
  layout.token_ids.resize(end);
  layout.anchor_ids.resize(5);
  layout.anchor_is_prefix = history == 0;
  return layout;
}

TEST(ExactPrefixTest, EndsWhereTheFirstTokensWouldBeBlended) {
  const prompt::PromptLayout first = LayoutOf(0), later = LayoutOf(7);
  EXPECT_EQ(ExactPrefixTokens(first, {}, {}, INT32_MAX), 15) << "the second chunk that has tokens";
  EXPECT_EQ(ExactPrefixTokens(later, {}, {}, INT32_MAX), 12) << "behind a history even the first one";
  EXPECT_EQ(ExactPrefixTokens(first, {.anchoring = Anchoring::kIsolated}, {}, INT32_MAX), 5);
  EXPECT_EQ(ExactPrefixTokens(first, {.reuse = Reuse::kPrefix}, {}, INT32_MAX), 35);
  EXPECT_EQ(ExactPrefixTokens(first, {.policy = Policy::kAll}, {}, INT32_MAX), 35);
  EXPECT_EQ(ExactPrefixTokens(first, {}, {.ratio = 1}, INT32_MAX), 35);
  EXPECT_EQ(ExactPrefixTokens(first, {}, {.mode = RatioMode::kAuto, .ratio = 1}, INT32_MAX), 15);
  EXPECT_EQ(ExactPrefixTokens(first, {.policy = Policy::kLink}, {.ratio = 1}, INT32_MAX), 15);
  // The first chunk, stored behind another anchor, is exact only where it is recomputed.
  EXPECT_EQ(ExactPrefixTokens(first, {}, {}, 5), 5);
  EXPECT_EQ(ExactPrefixTokens(first, {}, {}, 15), 15);
  EXPECT_EQ(ExactPrefixTokens(first, {.policy = Policy::kAll}, {}, 5), 35);
  EXPECT_EQ(ExactPrefixTokens(first, {.reuse = Reuse::kNothing, .policy = Policy::kAll}, {}, INT32_MAX), 0);
}

const std::string kLong(90, 'x');
const std::vector<std::string> kThreeTexts = {kLong, "Rome is in Italy.\n", std::string(30, 'a')};

/// A prompt that has been prefilled to be scored; the engine thread waits with it.
struct HeldScore {
  struct Observer : ScoreObserver {
    absl::Notification started, go_on, done;
    void OnPrompt(const PromptReport&) override {
      started.Notify();
      go_on.WaitForNotification();
    }
    void OnToken(const ScoredToken&) override {}
    void OnDone(const absl::Status&) override { done.Notify(); }
  };
  const std::shared_ptr<Observer> observer = std::make_shared<Observer>();
};

class SharedPrefixesTest : public EngineFixture, public testing::WithParamInterface<double> {
 protected:
  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.device = "cpu";
    options.num_threads = 2;
    options.gemm = "f32";
    options.itl_target_seconds = 1e-9;
    options.max_prefills = max_prefills_;
    options.max_context_tokens = 400;
    options.max_batch_tokens = batch_tokens_;
    options.max_batch_size = 8;
    options.page_size = 8;
    options.learn_correction = "off";
    options.keep_conversations = GetParam();
    options.share_prefixes = share_;
    options.max_draft_tokens = max_draft_tokens_;
    options.refine_idle = GetParam() > 0;
    return options;
  }

  void Restart(bool share, int64_t batch_tokens) {
    share_ = share;
    batch_tokens_ = batch_tokens;
    engine_.reset();
    SetUp();
    ASSERT_TRUE(Put(kThreeTexts)->status.ok());
  }

  /// Several that begin alike and go on otherwise.
  GenerateRequest RandomRequest(int number) {
    std::vector<std::string> chunks = {kThreeTexts[random_() % 2 == 0 ? 0 : random_() % 3]};
    for (int more = static_cast<int>(random_() % 3); more > 0; --more)
      chunks.push_back(kThreeTexts[random_() % 3]);
    GenerateRequest request = Request(chunks);
    request.prompt.question = "Question " + std::to_string(random_() % 4);
    request.blend.policy = static_cast<Policy>(random_() % 6);
    request.blend.ratio = random_() % 3 == 0 ? 1.0 : 0.3;
    request.blend.reuse = static_cast<Reuse>(random_() % 3);
    request.blend.store_misses = false;
    request.sampling.max_tokens = static_cast<int32_t>(30 + random_() % 80);
    request.sampling.temperature = static_cast<double>(random_() % 2);
    request.sampling.seed = 1 + number;
    return request;
  }

  /// Sends the requests while the first one's prompt keeps the engine thread busy.
  std::vector<std::shared_ptr<GenerateRecorder>> Together(const std::vector<GenerateRequest>& requests,
                                                          int cancel_every) {
    HeldAnswer first;
    std::vector<std::shared_ptr<GenerateRecorder>> recorders;
    std::vector<std::shared_ptr<RequestHandle>> handles = {
        *engine_->Generate(Request({"held\n"}), first.recorder)};
    first.started.WaitForNotification();
    for (const GenerateRequest& request : requests) {
      recorders.push_back(std::make_shared<GenerateRecorder>());
      handles.push_back(*engine_->Generate(request, recorders.back()));
    }
    first.go_on.Notify();
    for (size_t i = 0; i < recorders.size(); ++i) {
      if (cancel_every > 0 && i % cancel_every == 1) {
        recorders[i - 1]->Wait();
        handles[i + 1]->Cancel();
      }
    }
    for (const auto& recorder : recorders) recorder->Wait();
    first.recorder->Wait();
    return recorders;
  }

  bool share_ = true;
  int32_t max_draft_tokens_ = 7;
  int32_t max_prefills_ = 1;  // so that each finds what the one before it has done
  int64_t batch_tokens_ = 400;
  std::mt19937 random_{20261123};
};

TEST_P(SharedPrefixesTest, AnswersAreThoseOfTheRequestsAlone) {
  constexpr int kRequests = 20;
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < kRequests; ++i) requests.push_back(RandomRequest(i));
  Restart(/*share=*/false, 400);
  std::vector<std::vector<int32_t>> alone;
  for (const GenerateRequest& request : requests) {
    const auto answer = Generate(request);
    ASSERT_TRUE(answer->status.ok()) << answer->status;
    EXPECT_EQ(answer->prompts[0].shared_tokens, 0);
    alone.push_back(answer->token_ids);
  }
  Restart(/*share=*/true, 400);
  // One after the other, and then at once, a few of them cancelled on the way.
  for (int i = 0; i < kRequests; ++i) EXPECT_EQ(Generate(requests[i])->token_ids, alone[i]) << i;
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    // Answers of two tokens, so that more are let in than there will be pages for.
    for (int i = 0; i < 30; ++i) {
      GenerateRequest request = Request();
      request.sampling.max_tokens = 2;
      ASSERT_TRUE(Generate(request)->status.ok());
    }
    const int64_t preemptions = engine_->Stats().preemptions;
    const auto together = Together(requests, round % 2 == 0 ? 0 : 5);
    int64_t shared = 0;
    for (int i = 0; i < kRequests; ++i) {
      const GenerateRecorder& answer = *together[i];
      if (absl::IsCancelled(answer.status)) {
        EXPECT_EQ(round % 2, 1);
        EXPECT_TRUE(std::equal(answer.token_ids.begin(), answer.token_ids.end(), alone[i].begin())) << i;
        continue;
      }
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.token_ids, alone[i]) << i;
      const PromptReport& report = answer.prompts[0];
      shared += report.shared_tokens;
      EXPECT_LE(report.shared_tokens, report.exact_tokens);
      EXPECT_EQ(
          report.exact_tokens + report.reused_tokens + report.recomputed_tokens + report.computed_tokens,
          report.prompt_tokens);
      if (requests[i].blend.reuse == Reuse::kNothing) {
        EXPECT_EQ(report.shared_tokens, 0);
      }
    }
    EXPECT_GT(shared, 200);
    EXPECT_GT(engine_->Stats().preemptions, preemptions);
  }
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
}

// With a history to compute, choosing tokens costs more than computing all of them. What others hold of it
// changes the cost, but not the answer.
TEST_P(SharedPrefixesTest, WhatIsRecomputedDoesNotDependOnOthers) {
  GenerateRequest request = Request(kThreeTexts);
  request.prompt.history = {{.role = Role::kUser, .text = std::string(150, 'h')},
                            {.role = Role::kAssistant, .text = "Yes."}};
  request.blend.policy = Policy::kQuery;
  request.blend.ratio = 0.3;
  request.sampling.max_tokens = 40;
  Restart(/*share=*/false, 1600);
  const auto alone = Generate(request);
  ASSERT_EQ(alone->prompts[0].policy, Policy::kAll);
  Restart(/*share=*/true, 1600);
  for (const auto& answer : Together({request, request}, 0)) {
    ASSERT_TRUE(answer->status.ok()) << answer->status;
    EXPECT_EQ(answer->prompts[0].policy, Policy::kAll) << answer->prompts[0].shared_tokens;
    EXPECT_EQ(answer->token_ids, alone->token_ids);
  }
  EXPECT_GT(Together({request, request}, 0)[1]->prompts[0].shared_tokens, 150);
}

TEST_P(SharedPrefixesTest, APoolWithRoomForOneServesSeveral) {
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = Request({"A chunk.\n", ""});
    request.prompt.system_text = std::string(180, 's');
    request.prompt.question = "Question " + std::to_string(i);
    request.sampling.max_tokens = 40;
    requests.push_back(std::move(request));
  }
  int64_t steps[2] = {};
  max_draft_tokens_ = 0;  // a token per step
  for (const bool share : {false, true}) {
    // Two of these have no room there at the same time.
    Restart(share, 600);
    size_t most = 0;
    const int64_t before = engine_->Stats().decode_steps;
    const auto together = Together(requests, 0);
    for (const auto& answer : together) {
      ASSERT_TRUE(answer->status.ok()) << answer->status;
      most = std::max<size_t>(most, answer->prompts[0].shared_tokens);
    }
    EXPECT_EQ(most > 180, share);
    steps[share] = engine_->Stats().decode_steps - before;
    EXPECT_EQ(engine_->Stats().preemptions, 0);
  }
  EXPECT_LT(steps[true], steps[false] * 2 / 3) << "most of them decoded together";
}

// The pages of a prompt that is scored are free soon, and were never counted as those of answers.
TEST_P(SharedPrefixesTest, WhatIsScoredMakesNoRoomForAnswers) {
  max_draft_tokens_ = 0;
  max_prefills_ = 4;
  Restart(/*share=*/true, 400);
  const auto request = [](char system, int length, const std::string& question, int32_t max_tokens) {
    GenerateRequest request = Request({});
    request.prompt.system_text = std::string(length, system);
    request.prompt.question = question;
    request.sampling.max_tokens = max_tokens;
    return request;
  };
  // They have room one by one: an answer, a prompt to be scored, an answer to the same prompt, and a context.
  absl::Notification decoding;
  const auto first = std::make_shared<GenerateRecorder>();
  first->on_text = [&, tokens = 0]() mutable {
    if (++tokens == 2) decoding.Notify();
  };
  std::vector<std::shared_ptr<RequestHandle>> handles;
  handles.push_back(*engine_->Generate(request('a', 160, "one?", 60), first));
  decoding.WaitForNotification();
  HeldScore scored;
  ScoreRequest score;
  score.prompt = request('s', 240, "two?", 1).prompt;
  score.blend.store_misses = false;
  score.continuation_token_ids.assign(3, 40);
  handles.push_back(*engine_->Score(score, scored.observer));
  scored.observer->started.WaitForNotification();
  const auto second = std::make_shared<GenerateRecorder>();
  handles.push_back(*engine_->Generate(request('s', 240, "three?", 40), second));
  const auto other = std::make_shared<ScoreRecorder>();
  score.prompt = request('q', 350, "four?", 1).prompt;
  handles.push_back(*engine_->Score(score, other));
  scored.observer->go_on.Notify();
  scored.observer->done.WaitForNotification();
  EXPECT_TRUE(other->Wait().status.ok()) << other->status;
  EXPECT_TRUE(first->Wait().status.ok()) << first->status;
  EXPECT_TRUE(second->Wait().status.ok()) << second->status;
  EXPECT_EQ(engine_->Stats().preemptions, 0);
}

// What stands first is exact only behind its own anchor. Behind another one it is blended, whoever has
// computed it meanwhile.
TEST_P(SharedPrefixesTest, AChunkOfAnotherAnchorIsBlendedInCompanyToo) {
  std::vector<std::vector<int32_t>> answers;
  for (const bool share : {false, true}) {
    Restart(share, 1600);
    const std::string first(100, 'f');
    PutChunksRequest put;
    put.system_text = "Another system text.";
    put.chunks = {first};
    const auto stored = std::make_shared<PutRecorder>();
    const auto putting = *engine_->PutChunks(put, stored);
    ASSERT_TRUE(stored->Wait().status.ok()) << stored->status;
    GenerateRequest blended = Request({first, kLong});
    blended.blend.policy = Policy::kNone;
    blended.blend.store_misses = false;
    blended.sampling.max_tokens = 24;
    GenerateRequest computed = blended;
    computed.blend.reuse = Reuse::kPrefix;
    computed.sampling.max_tokens = 60;
    const auto together = Together({computed, blended, computed}, 0);
    for (const auto& answer : together) ASSERT_TRUE(answer->status.ok()) << answer->status;
    EXPECT_EQ(together[2]->prompts[0].shared_tokens > 100, share);
    const PromptReport& report = together[1]->prompts[0];
    EXPECT_EQ(report.chunks[0].source, ChunkSource::kOtherAnchor);
    EXPECT_LT(report.shared_tokens, 100);
    answers.push_back(together[1]->token_ids);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST_P(SharedPrefixesTest, NobodySharesWithAnotherNamespace) {
  Restart(/*share=*/true, 1600);
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(Request({kLong}));
    requests.back().sampling.max_tokens = 60;
    requests.back().caller.tenant_namespace = i % 2 == 0 ? "even" : "odd";
  }
  const auto together = Together(requests, 0);
  // The first of each namespace finds nothing to share, the second does.
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(together[i]->status.ok()) << together[i]->status;
    EXPECT_EQ(together[i]->prompts[0].shared_tokens > 0, i >= 2) << i;
    EXPECT_EQ(together[i]->token_ids, together[0]->token_ids);
  }
}

INSTANTIATE_TEST_SUITE_P(Keeping, SharedPrefixesTest, testing::Values(0.0, 1.0),
                         [](const auto& info) { return info.param == 0 ? "Nothing" : "Conversations"; });

}  // namespace
}  // namespace kvblend
