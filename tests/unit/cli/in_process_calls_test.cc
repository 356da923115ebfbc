// Calls over a real engine with a tiny random model, and the bench over that.
#include "server/cli/in_process_calls.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/bench/bench_runner.h"
#include "server/cli/client.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_model.h"

namespace kvblend::server::cli {
namespace {

using testing::SizeIs;

class InProcessCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    const test_support::TemporaryFolder folder;
    EngineOptions options;
    options.model_path = folder.path() + "/model.gguf";
    ASSERT_TRUE(test_support::WriteTinyModel(options.model_path, {}).ok());
    options.device = "reference";
    options.kv_dtype = "f32";
    options.chunk_store_bytes = int64_t{64} << 20;
    auto calls = MakeInProcessCalls(options, cancellation_);
    ASSERT_TRUE(calls.ok()) << calls.status();
    client_.emplace(*std::move(calls), cancellation_);
  }

  static v1::GenerateRequest Request() {
    v1::GenerateRequest request;
    request.mutable_prompt()->set_system_text("Answer.");
    request.mutable_prompt()->add_chunks("Paris is in France.\n");
    request.mutable_prompt()->add_chunks("Rome is in Italy.\n");
    request.mutable_prompt()->set_question("Where is Paris?");
    request.mutable_sampling()->set_max_tokens(5);
    request.mutable_sampling()->set_ignore_eos(true);  // a random model ends when it likes
    return request;
  }

  std::vector<std::string> Put() {
    v1::PutChunksRequest put;
    put.set_system_text("Answer.");
    *put.mutable_chunks() = Request().prompt().chunks();
    put.set_label("test");
    std::vector<std::string> keys;
    EXPECT_TRUE(client_->Put(put, kNoDeadline, [&](const auto& p) { keys.push_back(p.key()); }).ok());
    return keys;
  }

  const absl::Time kNoDeadline = absl::InfiniteFuture();
  Cancellation cancellation_;
  std::optional<Client> client_;
};

TEST_F(InProcessCallsTest, GenerateAndScoreAgree) {
  const std::vector<std::string> keys = Put();
  ASSERT_THAT(keys, SizeIs(2));
  std::vector<v1::PromptReport> reports;
  std::vector<int32_t> tokens;
  const auto result = client_->Generate(Request(), kNoDeadline, [&](const v1::GenerateEvent& event) {
    if (event.has_prompt()) reports.push_back(event.prompt());
    for (const int32_t id : event.text().token_ids()) tokens.push_back(id);
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->usage().completion_tokens(), 5);
  ASSERT_THAT(tokens, SizeIs(5));
  ASSERT_THAT(reports, SizeIs(1));
  ASSERT_EQ(reports[0].chunks_size(), 2);
  EXPECT_EQ(reports[0].chunks(0).source(), v1::CHUNK_SOURCE_EXACT);
  EXPECT_EQ(reports[0].chunks(0).key(), keys[0]);

  v1::ScoreRequest score;
  *score.mutable_prompt() = Request().prompt();
  score.mutable_continuation_token_ids()->mutable_ids()->Assign(tokens.begin(), tokens.end());
  score.set_return_distributions(true);
  const auto scores = client_->Score(score, kNoDeadline);
  ASSERT_TRUE(scores.ok()) << scores.status();
  ASSERT_THAT(scores->tokens, SizeIs(5));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const v1::ScoredToken& token = scores->tokens[i];
    EXPECT_EQ(token.top_token_id(), tokens[i]) << i;  // what was generated greedily is the likeliest
    ASSERT_GT(token.distribution_size(), tokens[i]);
    EXPECT_FLOAT_EQ(token.distribution(tokens[i]), static_cast<float>(token.logprob()));
  }
}

TEST_F(InProcessCallsTest, InfoAndHealth) {
  Put();
  EXPECT_TRUE(client_->calls().CheckHealth().ok());
  const auto info = client_->calls().GetInfo({});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->store().entries(), 2);
  EXPECT_EQ(info->store().budget_bytes(), int64_t{64} << 20);
  EXPECT_EQ(info->tiers_size(), 0);
}

TEST_F(InProcessCallsTest, ErrorsAndCancellationComeBack) {
  v1::GenerateRequest request = Request();
  request.mutable_prompt()->clear_question();
  const auto ignore = [](const v1::GenerateEvent&) {};
  EXPECT_EQ(client_->Generate(request, kNoDeadline, ignore).status().code(),
            absl::StatusCode::kInvalidArgument);
  request = Request();
  request.mutable_sampling()->set_max_tokens(900);
  const auto result = client_->Generate(request, kNoDeadline, [&](const v1::GenerateEvent& event) {
    if (event.has_prompt()) cancellation_.Request();
  });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(InProcessCallsTest, BenchOnARealEngine) {
  // Long enough to be worth blending: below that the engine computes everything.
  std::vector<Passage> passages;
  for (const std::string city : {"Paris", "Rome", "Oslo"}) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += city + " is a town. ";
    passages.push_back({city, text});
  }
  const BenchTask task{
      .data = "towns",
      .index = 0,
      .question = {.question = "Where is Paris?", .answers = {"France"}, .passages = passages}};
  BenchOptions options;
  options.variants = *MakeVariants(
      {BenchMode::kFull, BenchMode::kPrefix, BenchMode::kReuse, BenchMode::kBlend},
      {v1::POLICY_QUERY, v1::POLICY_ALL}, {0.5}, {v1::ANCHORING_ANCHORED, v1::ANCHORING_ISOLATED});
  options.repeats = 1;
  options.tenant_namespace = "bench";
  std::vector<FinishedQuestion> finished;
  const absl::Status status =
      RunBench(*client_, {task}, options, /*kept=*/{}, nullptr, [&](FinishedQuestion question) {
        finished.push_back(std::move(question));
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  for (const BenchRow& row : Summarize(GroupByData(options.variants, finished).front().rows)) {
    SCOPED_TRACE(row.variant.Label());
    EXPECT_EQ(row.missing_chunks, 0);
    EXPECT_DOUBLE_EQ(row.prompt_tokens_mean, row.exact_tokens_mean + row.reused_tokens_mean +
                                                 row.recomputed_tokens_mean + row.computed_tokens_mean);
    const bool exact = row.variant.mode == BenchMode::kFull || row.variant.mode == BenchMode::kPrefix ||
                       row.variant.policy == v1::POLICY_ALL;
    if (exact) {
      EXPECT_NEAR(row.kl_mean.value, 0, 1e-6);
      EXPECT_DOUBLE_EQ(row.top1_agreement.value, 1);
    } else {
      EXPECT_GT(row.reused_tokens_mean, 0);
      EXPECT_GT(row.kl_mean.value, 0);
    }
    EXPECT_GT(row.ttft_p50, 0);
  }
}

}  // namespace
}  // namespace kvblend::server::cli
