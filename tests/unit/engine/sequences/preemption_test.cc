// More answers than there are pages for: the youngest give theirs up and go on later, and nobody notices but
// by the clock.
#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/serve/sequences/answer_lengths.h"
#include "tests/unit/engine/engine_fixture.h"

namespace kvblend {
namespace {

const std::vector<std::string> kTexts = {"Paris is in France.\n", std::string(40, 'a'), std::string(25, 'b'),
                                         "Rome is in Italy.\n"};

TEST(AnswerLengthsTest, ExpectsTheWorstAndThenALittleMoreThanTheLastOnes) {
  AnswerLengths lengths;
  EXPECT_EQ(lengths.Expected(), AnswerLengths::kBeforeAny);
  lengths.Add(100);
  EXPECT_EQ(lengths.Expected(), 200);
  for (int i = 0; i < 60; ++i) lengths.Add(100);
  EXPECT_EQ(lengths.Expected(), 101);
  for (int i = 0; i < 100; ++i) lengths.Add(i % 2 == 0 ? 10 : 30);
  EXPECT_GT(lengths.Expected(), 30);
  EXPECT_LT(lengths.Expected(), 50);
}

/// The share of pages for conversations, and a model; "": of one kind of layers.
class PreemptionTest : public EngineFixture,
                       public testing::WithParamInterface<std::pair<double, std::string>> {
 protected:
  static constexpr int32_t kContext = 300;
  static constexpr int32_t kWindow = 180;  // of every other layer, where only some have one

  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.device = "cpu";
    options.num_threads = 2;
    options.gemm = "f32";
    options.itl_target_seconds = 1e-9;
    options.max_context_tokens = kContext;
    options.max_batch_tokens = kContext;
    options.max_batch_size = 6;
    options.page_size = 8;
    options.learn_correction = "off";
    options.keep_conversations = GetParam().first;
    options.correction = "none";
    if (const std::string& model = GetParam().second; !model.empty()) {
      options.model_path = test_support::TemporaryPath("preemption_test.gguf");
      WriteWithWindow(model, kWindow, options.model_path);
    }
    return options;
  }

  /// Answers of two tokens, so that more are let in than there will be pages for.
  void ExpectShortAnswers() {
    for (int i = 0; i < 30; ++i) {
      GenerateRequest request = Request();
      request.sampling.max_tokens = 2;
      ASSERT_TRUE(Generate(request)->status.ok());
    }
  }

  /// Each token of an answer that waited attends to what it attends to in one that did not.
  static void ExpectTheSame(const std::vector<AttributedToken>& tokens,
                            const std::vector<AttributedToken>& expected) {
    ASSERT_EQ(tokens.size(), expected.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(tokens[i].end_byte, expected[i].end_byte) << i;
      ASSERT_EQ(tokens[i].chunks.size(), expected[i].chunks.size()) << i;
      for (size_t rank = 0; rank < tokens[i].chunks.size(); ++rank) {
        EXPECT_NEAR(tokens[i].chunks[rank].attention, expected[i].chunks[rank].attention, 1e-4) << i;
      }
    }
  }

  GenerateRequest RandomRequest(int number) {
    std::vector<std::string> chunks = kTexts;
    std::shuffle(chunks.begin(), chunks.end(), random_);
    chunks.resize(1 + random_() % chunks.size());
    // Missing, and stored by somebody else before the answer goes on.
    if (random_() % 3 == 0) chunks.push_back("other " + std::to_string(number % 4));
    GenerateRequest request = Request(chunks);
    request.blend.policy = static_cast<Policy>(random_() % 6);
    request.blend.ratio = static_cast<double>(random_() % 100) / 100;
    request.blend.store_misses = false;
    request.sampling.max_tokens = static_cast<int32_t>(20 + random_() % 60);
    request.sampling.temperature = static_cast<double>(random_() % 2);
    request.sampling.seed = 1 + number;
    request.sampling.attribution = number % 2 == 0;
    if (number % 3 == 0) request.caller.fairness_key = number % 2 == 0 ? "few" : "fewer";
    return request;
  }

  /// Eight answers of two chunks each, "one N" and "two N", among which some have to wait, and meanwhile the
  /// chunks "two N" are stored behind the answers' anchor. Those whose prompt was prefilled as when they were
  /// alone say what they said alone. How many answers are written at once depends on the machine's speed, so
  /// that one round may not be enough for one to wait.
  void ExpectTheSameWhileChunksAreStored(
      const std::function<void(const std::vector<std::string>&)>& before_answers) {
    for (int round = 0; engine_->Stats().preemptions == 0; ++round) {
      ASSERT_LT(round, 10);
      std::vector<GenerateRequest> requests;
      PutChunksRequest chunks;
      chunks.system_text = "Answer.";
      chunks.lead_in = "Passages:\n\n";
      for (int i = 0; i < 8; ++i) {
        chunks.chunks.push_back(absl::StrCat("two ", round, " ", i, "\n"));
        GenerateRequest& request =
            requests.emplace_back(Request({absl::StrCat("one ", round, " ", i, "\n"), chunks.chunks.back()}));
        request.blend.policy = Policy::kNone;
        request.blend.store_misses = false;
        request.sampling.max_tokens = 70;
      }
      before_answers(chunks.chunks);
      std::vector<std::shared_ptr<GenerateRecorder>> alone;
      for (const GenerateRequest& request : requests) alone.push_back(Generate(request));
      ExpectShortAnswers();
      std::vector<std::shared_ptr<GenerateRecorder>> recorders;
      std::vector<std::shared_ptr<RequestHandle>> handles;
      HeldAnswer first;
      handles.push_back(*engine_->Generate(Request(), first.recorder));
      first.started.WaitForNotification();
      const auto put = std::make_shared<PutRecorder>();
      for (const GenerateRequest& request : requests) {
        recorders.push_back(std::make_shared<GenerateRecorder>());
        handles.push_back(*engine_->Generate(request, recorders.back()));
      }
      recorders[0]->on_prompt = [&] { handles.push_back(*engine_->PutChunks(chunks, put)); };
      first.go_on.Notify();
      for (size_t i = 0; i < recorders.size(); ++i) {
        EXPECT_TRUE(recorders[i]->Wait().status.ok()) << recorders[i]->status;
        // Those that began behind the put found what it stored.
        if (recorders[i]->prompts[0].chunks[1].source == alone[i]->prompts[0].chunks[1].source) {
          EXPECT_EQ(recorders[i]->token_ids, alone[i]->token_ids) << i;
        }
      }
      first.recorder->Wait();
      put->Wait();
    }
  }

  std::mt19937 random_{20261123};
};

TEST_P(PreemptionTest, AnswersAreThoseOfTheRequestsAlone) {
  ASSERT_TRUE(Put(kTexts)->status.ok());
  constexpr int kRequests = 18;
  std::vector<GenerateRequest> requests;
  std::vector<std::shared_ptr<GenerateRecorder>> alone;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(RandomRequest(i));
    alone.push_back(Generate(requests.back()));
    ASSERT_TRUE(alone.back()->status.ok()) << alone.back()->status;
    EXPECT_EQ(alone.back()->result.attributions.empty(), i % 2 != 0);
  }
  EXPECT_EQ(engine_->Stats().preemptions, 0);
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    ExpectShortAnswers();
    const int64_t before = engine_->Stats().preemptions;
    HeldAnswer first;
    std::vector<std::shared_ptr<RequestHandle>> handles = {*engine_->Generate(Request(), first.recorder)};
    first.started.WaitForNotification();
    std::vector<std::shared_ptr<GenerateRecorder>> recorders;
    for (const GenerateRequest& request : requests) {
      recorders.push_back(std::make_shared<GenerateRecorder>());
      handles.push_back(*engine_->Generate(request, recorders.back()));
    }
    first.go_on.Notify();
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_TRUE(recorders[i]->Wait().status.ok()) << recorders[i]->status;
      EXPECT_EQ(recorders[i]->token_ids, alone[i]->token_ids) << i;
      EXPECT_EQ(recorders[i]->prompts.size(), 1);
      ExpectTheSame(recorders[i]->result.attributions, alone[i]->result.attributions);
    }
    EXPECT_GT(engine_->Stats().preemptions, before);
    first.recorder->Wait();
  }
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
  EXPECT_EQ(engine_->Stats().requests_running, 0);
}

// Somebody's answers have all the pages. Another's first one gets those of one of them, and all answers are
// what they are alone.
TEST_P(PreemptionTest, ANewcomerDoesNotWaitForTheEndOfLongAnswers) {
  // Three such prompts are more than there are pages for.
  GenerateRequest many = Request({std::string(58, 'a')}), other = Request({std::string(55, 'b')});
  many.caller.fairness_key = "many";
  other.caller.fairness_key = "other";
  many.blend.store_misses = other.blend.store_misses = false;
  many.blend.share_prefix = other.blend.share_prefix = false;
  const auto prompt = Generate(other);
  const int32_t prompt_tokens = prompt->prompts[0].prompt_tokens;
  ASSERT_GT(3 * prompt_tokens, kContext);
  ASSERT_LT(2 * prompt_tokens, kContext - 40);
  many.sampling.max_tokens = 120;
  const std::vector<int32_t> many_alone = Generate(many)->token_ids;
  ExpectShortAnswers();
  HeldAnswer first, second;
  std::vector<std::shared_ptr<RequestHandle>> handles = {*engine_->Generate(many, first.recorder)};
  first.started.WaitForNotification();
  handles.push_back(*engine_->Generate(many, second.recorder));
  first.go_on.Notify();
  second.started.WaitForNotification();
  const auto newcomer = std::make_shared<GenerateRecorder>();
  int64_t preemptions = 0;
  bool others_go_on = false;
  newcomer->on_prompt = [&] {
    preemptions = engine_->Stats().preemptions;
    others_go_on = !first.recorder->done.HasBeenNotified() && !second.recorder->done.HasBeenNotified();
  };
  handles.push_back(*engine_->Generate(other, newcomer));
  absl::SleepFor(absl::Milliseconds(600));  // its patience ends; the engine's thread waits too
  second.go_on.Notify();
  EXPECT_TRUE(newcomer->Wait().status.ok()) << newcomer->status;
  EXPECT_TRUE(others_go_on);
  EXPECT_EQ(preemptions, 1);
  EXPECT_EQ(newcomer->token_ids, prompt->token_ids);
  for (const auto& recorder : {first.recorder, second.recorder}) {
    EXPECT_TRUE(recorder->Wait().status.ok()) << recorder->status;
    EXPECT_EQ(recorder->token_ids, many_alone);
  }
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
}

// The only answer of a key is not interrupted for another's.
TEST_P(PreemptionTest, ANewcomerWaitsForAnAnswerThatIsItsKeysOnlyOne) {
  const std::string text(180, 'a');
  GenerateRequest one = Request({text}), other = one;
  one.caller.fairness_key = "one";
  other.caller.fairness_key = "other";
  one.blend.store_misses = other.blend.store_misses = false;
  one.blend.share_prefix = other.blend.share_prefix = false;
  one.sampling.max_tokens = 40;
  HeldAnswer first;
  std::vector<std::shared_ptr<RequestHandle>> handles = {*engine_->Generate(one, first.recorder)};
  first.started.WaitForNotification();
  const auto newcomer = std::make_shared<GenerateRecorder>();
  bool has_ended = false;
  newcomer->on_prompt = [&] { has_ended = first.recorder->done.HasBeenNotified(); };
  handles.push_back(*engine_->Generate(other, newcomer));
  first.go_on.Notify();
  EXPECT_TRUE(newcomer->Wait().status.ok()) << newcomer->status;
  EXPECT_TRUE(has_ended);
  EXPECT_EQ(engine_->Stats().preemptions, 0);
}

// A chunk that was missing when the answer began, and is in the store when it goes on, is computed again all
// the same.
TEST_P(PreemptionTest, WhatWasComputedIsComputedAgain) {
  ExpectTheSameWhileChunksAreStored([](const std::vector<std::string>&) {});
}

// A chunk that was found only behind another anchor is taken from there again, though it is there behind the
// right one now.
TEST_P(PreemptionTest, WhatWasReusedIsReusedAgain) {
  ExpectTheSameWhileChunksAreStored([this](const std::vector<std::string>& chunks) {
    PutChunksRequest others;
    others.chunks = chunks;
    others.system_text = "Something else altogether.";
    const auto put = std::make_shared<PutRecorder>();
    const auto handle = *engine_->PutChunks(others, put);
    EXPECT_TRUE(put->Wait().status.ok()) << put->status;
  });
}

// Of two answers for which there are not pages enough, the younger one waits; unless the older one is less
// urgent.
TEST_P(PreemptionTest, AnswersOfALowerPriorityWaitFirst) {
  for (const Priority of_older : {Priority::kNormal, Priority::kLow}) {
    SCOPED_TRACE(Name(of_older));
    ExpectShortAnswers();
    const int64_t before = engine_->Stats().preemptions;
    HeldAnswer gate;
    const auto first = *engine_->Generate(Request(), gate.recorder);
    gate.started.WaitForNotification();
    GenerateRequest request = Request({"Paris is in France.\n"});
    request.sampling.max_tokens = 220;
    std::vector<std::shared_ptr<GenerateRecorder>> recorders;
    std::vector<std::shared_ptr<RequestHandle>> handles;
    for (const Priority priority : {of_older, Priority::kNormal}) {
      request.caller.priority = priority;
      recorders.push_back(std::make_shared<GenerateRecorder>());
      handles.push_back(*engine_->Generate(request, recorders.back()));
    }
    gate.go_on.Notify();
    const auto& waits = recorders[of_older == Priority::kLow ? 0 : 1];
    const auto& goes_on = recorders[of_older == Priority::kLow ? 1 : 0];
    EXPECT_TRUE(waits->Wait().status.ok()) << waits->status;
    EXPECT_TRUE(goes_on->done.HasBeenNotified());
    EXPECT_TRUE(goes_on->Wait().status.ok()) << goes_on->status;
    EXPECT_EQ(waits->token_ids, goes_on->token_ids);
    EXPECT_GT(engine_->Stats().preemptions, before);
    gate.recorder->Wait();
  }
}

TEST_P(PreemptionTest, CancelledOnesLeaveNothingBehind) {
  ASSERT_TRUE(Put(kTexts)->status.ok());
  ExpectShortAnswers();
  std::vector<std::shared_ptr<GenerateRecorder>> recorders;
  std::vector<std::shared_ptr<RequestHandle>> handles;
  for (int i = 0; i < 30; ++i) {
    recorders.push_back(std::make_shared<GenerateRecorder>());
    handles.push_back(*engine_->Generate(RandomRequest(i), recorders.back()));
  }
  int ended = 0;
  for (size_t i = 0; i < handles.size(); i += 3) {
    recorders[i]->Wait();
    for (size_t j = i + 1; j < std::min(i + 3, handles.size()); ++j) handles[j]->Cancel();
  }
  for (const auto& recorder : recorders) ended += recorder->Wait().status.ok() ? 1 : 0;
  EXPECT_GE(ended, 10);
  ASSERT_TRUE(engine_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(engine_->Stats().pages_used, 0);
  EXPECT_EQ(engine_->Stats().requests_running, 0);
}

INSTANTIATE_TEST_SUITE_P(Keeping, PreemptionTest,
                         testing::Values(std::pair(0.0, ""), std::pair(1.0, ""), std::pair(0.0, "gemma2"),
                                         std::pair(1.0, "gemma2")),
                         [](const auto& info) {
                           return (info.param.first == 0 ? "Nothing" : "Conversations") + info.param.second;
                         });

/// One kind of layers, and many of them, so that decoding gets far while a prompt is computed.
class LongPromptTest : public EngineFixture {
 protected:
  static constexpr int32_t kContext = 300, kPageSize = 8;

  EngineOptions Options() override {
    EngineOptions options = EngineFixture::Options();
    options.device = "cpu";
    options.num_threads = 2;
    options.gemm = "f32";
    options.itl_target_seconds = 1e-9;  // a step of decoding after every unit of a prompt
    options.max_context_tokens = kContext;
    options.max_batch_tokens = kContext;
    options.page_size = kPageSize;
    options.keep_conversations = 0;
    options.share_prefixes = false;
    options.correction = "none";
    options.learn_correction = "off";
    return options;
  }
  test_support::TinyModelSpec ModelSpec() override { return {.num_layers = 12, .context_length = 2048}; }

  static GenerateRequest Computed(const std::string& chunk, int32_t max_tokens) {
    GenerateRequest request = Request({chunk});
    request.blend.reuse = Reuse::kNothing;
    request.blend.store_misses = false;
    request.sampling.max_tokens = max_tokens;
    return request;
  }
};

// It has to give way to a prompt that was let in before it outgrew what was expected; but not to that
// prompt's answer.
TEST_F(LongPromptTest, TheOldestAnswerGoesOnBeforeAYoungerOne) {
  const int32_t tokens = Generate(Computed("x", 1))->prompts[0].prompt_tokens;
  const std::vector<int32_t> alone = Generate(Computed("x", 150))->token_ids;
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Generate(Computed("x", 2))->status.ok());  // are expected again

  // As long as there are pages for it beside the older one and a page that this may grow by.
  const int32_t pages = engine_->Stats().pages_total - (kContext + kPageSize - 1) / kPageSize,
                claimed = (tokens + 2 + kPageSize) / kPageSize + 1;
  const int32_t length = (pages - claimed - 1) * kPageSize - tokens;
  const int64_t before = engine_->Stats().preemptions;
  HeldAnswer older;
  const auto handle = *engine_->Generate(Computed("x", 150), older.recorder);
  older.started.WaitForNotification();
  const auto younger = std::make_shared<GenerateRecorder>();
  int64_t preemptions_at_prompt = -1;
  younger->on_prompt = [&] { preemptions_at_prompt = engine_->Stats().preemptions; };
  const auto other = *engine_->Generate(Computed(std::string(length, 'x'), 8), younger);
  older.go_on.Notify();
  EXPECT_TRUE(younger->Wait().status.ok()) << younger->status;
  EXPECT_TRUE(older.recorder->done.HasBeenNotified());
  EXPECT_TRUE(older.recorder->Wait().status.ok()) << older.recorder->status;
  EXPECT_EQ(older.recorder->token_ids, alone);
  EXPECT_EQ(preemptions_at_prompt, before + 1) << "it was to give way while the prompt was computed";
}

}  // namespace
}  // namespace kvblend
