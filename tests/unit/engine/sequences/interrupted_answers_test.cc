// Answers that have given their pages up and get their KV back: who is charged with that, and that nobody
// waits for what is on its way to one of them.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/serve/sequences/decode_batch.h"
#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

/// An answer of as many tokens as the test likes. It never ceases to get its KV back.
class ScriptedAnswer final : public Task, public DecodingSequence {
 public:
  static constexpr int32_t kPromptTokens = 10, kMaxTokens = 40;

  ScriptedAnswer(const Caller& caller, PrefilledPrompt prompt) : Task(caller), prompt_(std::move(prompt)) {}

  bool Advance(PromptRunner& /*runner*/) override { return false; }
  void Abandon(const absl::Status& /*status*/) override {}
  double predicted_seconds_left() const override {
    return waits ? std::numeric_limits<double>::infinity() : 0;
  }
  int32_t max_decoding_tokens() const override { return kMaxTokens; }
  int32_t max_working_tokens() const override { return kPromptTokens; }
  DecodingSequence* decoding() override { return this; }

  PrefilledPrompt& prompt() override { return prompt_; }
  int64_t pages_to_share() const override { return 0; }
  int32_t num_tokens() const override { return prompt_.num_tokens; }
  void Pause() override { prompt_.DropPages(); }
  absl::StatusOr<bool> Resume() override {
    ++units;
    return false;
  }
  int32_t next_token() const override { return 1; }
  absl::Status KeepGoing() override { return absl::OkStatus(); }
  generate::PromptLookup::Guess Guess(int32_t /*max_tokens*/) override { return {}; }
  kernels::SamplingSpec Sampling(int32_t /*index*/) override { return {}; }
  absl::Span<const prompt::Span> attributed_chunks() const override { return {}; }
  void Attribute(std::vector<ChunkAttention> /*chunks*/) override {}
  bool Continue(const kernels::SampledToken& /*sampled*/) override { return !ends; }
  void Fail(const absl::Status& status) override { ADD_FAILURE() << status; }

  bool ends = false;   // with its next token
  bool waits = false;  // for KV that is on its way
  int64_t units = 0;   // of work on getting its KV back

 private:
  PrefilledPrompt prompt_;
};

class InterruptedAnswersTest : public testing::Test {
 protected:
  static constexpr int32_t kPageSize = 8;
  static constexpr int64_t kPages = 6;  // until two answers have more tokens than three pages hold

  void SetUp() override {
    EngineOptions options;
    options.device = "reference";
    options.kv_dtype = "f32";
    options.page_size = kPageSize;
    options.correction = "none";
    options.model_path = test_support::TemporaryPath("interrupted_answers_test.gguf");
    ASSERT_TRUE(test_support::WriteTinyModel(options.model_path).ok());
    auto runtime = ModelRuntime::Load(options);
    ASSERT_TRUE(runtime.ok()) << runtime.status();
    runtime_ = *std::move(runtime);
    auto chunk_store = store::ChunkStore::Create({.byte_budget = int64_t{1} << 20});
    ASSERT_TRUE(chunk_store.ok()) << chunk_store.status();
    chunk_store_ = *std::move(chunk_store);
    runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_);
    batch_ = std::make_unique<DecodeBatch>(*runner_, *runtime_->page_pool,
                                           DecodeBatch::Options{.max_sequences = 2, .max_pages = kPages});
    // Short answers are expected from now on, so that two are let in.
    Add("before")->ends = true;
    ASSERT_EQ(batch_->Step(absl::ZeroDuration()).size(), 1);
  }

  /// Prefills a prompt, and lets its answer into the batch.
  std::shared_ptr<ScriptedAnswer> Add(const std::string& fairness_key) {
    auto prefill = runner_->Begin(layout_, {.reuse = Reuse::kNothing}, "", kv::PageUse::kDecoding);
    EXPECT_TRUE(prefill.ok()) << prefill.status();
    while (!*(*prefill)->Step(KeepRunning)) continue;
    Caller caller;
    caller.fairness_key = fairness_key;
    auto answer = std::make_shared<ScriptedAnswer>(caller, (*prefill)->TakePrompt());
    EXPECT_TRUE(batch_->HasRoomFor(*answer));
    batch_->Reserve(*answer);
    batch_->Add(answer);
    return answer;
  }

  /// Two answers of these keys, of which the second has given its pages up and begins to get its KV back,
  /// because the first has just ended.
  std::shared_ptr<ScriptedAnswer> Interrupted(const std::string& key_of_first, const std::string& key) {
    const auto first = Add(key_of_first), second = Add(key);
    while (batch_->counts().preemptions == 0) {
      if (!batch_->Step(absl::ZeroDuration()).empty() || first->num_tokens() >= ScriptedAnswer::kMaxTokens)
        break;
    }
    EXPECT_EQ(second->prompt().pages, nullptr);
    first->ends = true;
    EXPECT_EQ(batch_->Step(absl::ZeroDuration()).size(), 1);
    EXPECT_EQ(second->units, 1);
    return second;
  }

  bool IsCharged(const std::shared_ptr<Task>& task) {
    const auto spent = batch_->TakeSpent();
    return std::any_of(spent.begin(), spent.end(), [&](const auto& entry) { return entry.first == task; });
  }

  const prompt::PromptLayout layout_ = MakeLayout({}, {}, Tokens(ScriptedAnswer::kPromptTokens, 3));
  std::unique_ptr<ModelRuntime> runtime_;
  std::unique_ptr<store::ChunkStore> chunk_store_;
  std::unique_ptr<PromptRunner> runner_;
  std::unique_ptr<DecodeBatch> batch_;
};

TEST_F(InterruptedAnswersTest, AKeyOfSeveralPaysForWhatIsComputedAgain) {
  const auto answer = Interrupted("many", "many");
  EXPECT_TRUE(IsCharged(answer));
  ASSERT_TRUE(batch_->Step(absl::ZeroDuration()).empty());
  EXPECT_EQ(answer->units, 2);
  EXPECT_TRUE(IsCharged(answer));
}

TEST_F(InterruptedAnswersTest, AKeysOnlyAnswerIsNotChargedTwice) {
  const auto answer = Interrupted("one", "other");
  EXPECT_FALSE(IsCharged(answer));
}

// Who computed them together with more tokens may have rounded otherwise.
TEST_F(InterruptedAnswersTest, WhatAnAnswerComputedItselfIsNotSharedWhenItIsComputedAgain) {
  const Tokens system(20, 3);
  const auto layout = MakeLayout(system, {}, Tokens(3, 4)), other = MakeLayout(system, {}, Tokens(3, 5));
  const auto prefill = [&](const prompt::PromptLayout& prompt, const PrefillRecord* again = nullptr) {
    auto begun = runner_->Begin(prompt, {}, "", kv::PageUse::kDecoding, /*trace=*/nullptr, again);
    EXPECT_TRUE(begun.ok()) << begun.status();
    while (!*(*begun)->Step(KeepRunning)) continue;
    return *std::move(begun);
  };
  PrefillRecord record;
  {
    const auto alone = prefill(layout);
    record = alone->record();
    EXPECT_EQ(alone->TakePrompt().report.shared_tokens, 0);
  }
  const auto holder = prefill(other);
  const PrefilledPrompt held = holder->TakePrompt();
  EXPECT_GT(prefill(layout)->TakePrompt().report.shared_tokens, 0);
  EXPECT_EQ(prefill(layout, &record)->TakePrompt().report.shared_tokens, 0);
}

TEST_F(InterruptedAnswersTest, NobodyWaitsForKvThatIsOnItsWay) {
  const auto answer = Interrupted("many", "many");
  answer->waits = true;
  ASSERT_TRUE(batch_->Step(absl::Seconds(2)).empty());
  EXPECT_EQ(answer->units, 2) << "others have their turn after one look at it";
  EXPECT_FALSE(IsCharged(answer)) << "for waiting";
}

}  // namespace
}  // namespace kvblend
