// The in-process client over a real engine with a tiny random model, and the bench over that.
#include "server/cli/in_process_client.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/bench/bench_runner.h"
#include "tests/support/tiny_model.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;

using testing::IsEmpty;
using testing::SizeIs;

class InProcessClientTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = testing::TempDir() + "/in_process_client_" + std::to_string(getpid()) + ".gguf";
    ASSERT_TRUE(test_support::WriteTinyModel(path, {}).ok());
    EngineOptions options;
    options.model_path = path;
    options.device = "reference";
    options.kv_dtype = "f32";
    options.chunk_store_bytes = int64_t{64} << 20;
    auto client = CreateInProcessClient(options, cancellation_);
    std::remove(path.c_str());
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  static GenerateRequest Request() {
    GenerateRequest request;
    request.prompt.system_text = "Answer.";
    request.prompt.chunks = {"Paris is in France.\n", "Rome is in Italy.\n"};
    request.prompt.question = "Where is Paris?";
    request.sampling.max_tokens = 5;
    request.sampling.ignore_eos = true;  // a random model ends when it likes
    return request;
  }

  std::vector<std::string> Put() {
    PutChunksRequest put;
    put.system_text = "Answer.";
    put.chunks = Request().prompt.chunks;
    put.label = "test";
    std::vector<std::string> keys;
    EXPECT_TRUE(client_->PutChunks(put, [&](const PutChunkProgress& p) { keys.push_back(p.key); }).ok());
    return keys;
  }

  Cancellation cancellation_;
  std::unique_ptr<EngineClient> client_;
};

TEST_F(InProcessClientTest, GenerateAndScoreAgree) {
  const std::vector<std::string> keys = Put();
  ASSERT_THAT(keys, SizeIs(2));
  std::vector<PromptReport> reports;
  std::vector<int32_t> tokens;
  const auto result = client_->Generate(
      Request(), {.on_prompt = [&](const PromptReport& report) { reports.push_back(report); },
                  .on_text =
                      [&](const TextDelta& delta) {
                        tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
                      }});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->completion_tokens, 5);
  ASSERT_THAT(tokens, SizeIs(5));
  ASSERT_THAT(reports, SizeIs(1));
  ASSERT_THAT(reports[0].chunks, SizeIs(2));
  EXPECT_EQ(reports[0].chunks[0].source, ChunkSource::kExact);
  EXPECT_EQ(reports[0].chunks[0].key, keys[0]);

  ScoreRequest score;
  score.prompt = Request().prompt;
  score.continuation_token_ids = tokens;
  score.return_distributions = true;
  const auto scores = client_->Score(score);
  ASSERT_TRUE(scores.ok()) << scores.status();
  ASSERT_THAT(scores->tokens, SizeIs(5));
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(scores->tokens[i].top_token_id, tokens[i])
        << i;  // what was generated greedily is the likeliest
    ASSERT_GT(scores->tokens[i].distribution.size(), static_cast<size_t>(tokens[i]));
    EXPECT_FLOAT_EQ(scores->tokens[i].distribution[tokens[i]], static_cast<float>(scores->tokens[i].logprob));
  }
}

TEST_F(InProcessClientTest, LooksAfterChunks) {
  const std::vector<std::string> keys = Put();
  const std::string unknown(64, '0');
  const auto stat = client_->StatChunks("", std::vector<std::string>{keys[1], unknown});
  ASSERT_TRUE(stat.ok()) << stat.status();
  ASSERT_THAT(stat->chunks, SizeIs(1));
  EXPECT_EQ(stat->chunks[0].key, keys[1]);
  EXPECT_EQ(stat->chunks[0].label, "test");
  EXPECT_GT(stat->chunks[0].size_bytes, 0);
  EXPECT_GT(stat->chunks[0].created_unix_seconds, 1.7e9);
  EXPECT_THAT(stat->missing_keys, ElementsAre(unknown));
  EXPECT_THAT(client_->StatChunks("elsewhere", keys)->chunks, IsEmpty());
  EXPECT_EQ(client_->StatChunks("", std::vector<std::string>{"zz"}).status().code(),
            absl::StatusCode::kInvalidArgument);

  const auto pinned = client_->PinChunks("", std::vector<std::string>{keys[0], unknown}, true);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->changed, 1);
  EXPECT_THAT(pinned->missing_keys, ElementsAre(unknown));
  EXPECT_TRUE(client_->StatChunks("", keys)->chunks[0].pinned);
  ASSERT_TRUE(client_->PinChunks("", keys, false).ok());

  const auto page = client_->ListChunks("", 1, "");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(page->chunks, SizeIs(1));
  EXPECT_NE(page->next_page_token, "");
  EXPECT_EQ(client_->DeleteChunks("", std::vector<std::string>{keys[0], unknown})->changed, 1);
  EXPECT_GE(client_->DeleteAllChunks("")->changed, 1);
  EXPECT_THAT(client_->ListChunks("", 0, "")->chunks, IsEmpty());
  EXPECT_EQ(client_->GetInfo()->store.entries, 0);
}

TEST_F(InProcessClientTest, ErrorsAndCancellationComeBack) {
  GenerateRequest request = Request();
  request.prompt.question = "";
  EXPECT_EQ(client_->Generate(request, {}).status().code(), absl::StatusCode::kInvalidArgument);
  request = Request();
  request.sampling.max_tokens = 900;
  const auto result = client_->Generate(
      request, {.on_prompt = [&](const PromptReport&) { cancellation_.Request(); }, .on_text = {}});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(InProcessClientTest, BenchOnARealEngine) {
  // Long enough to be worth blending: below that the engine computes everything.
  std::vector<Passage> passages;
  for (const std::string city : {"Paris", "Rome", "Oslo"}) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += city + " is a town. ";
    passages.push_back({city, text});
  }
  const std::vector<BenchQuestion> questions = {
      {.question = "Where is Paris?", .answers = {"France"}, .passages = passages}};
  BenchOptions options;
  options.variants =
      *MakeVariants({BenchMode::kFull, BenchMode::kPrefix, BenchMode::kReuse, BenchMode::kBlend},
                    {Policy::kQuery, Policy::kAll}, {0.5}, {Anchoring::kAnchored, Anchoring::kIsolated});
  options.repeats = 1;
  options.tenant_namespace = "bench";
  std::vector<VariantResults> results;
  ASSERT_TRUE(RunBench(*client_, questions, options, nullptr, results).ok());
  ASSERT_EQ(results.size(), options.variants.size());
  for (const BenchRow& row : Summarize(results)) {
    SCOPED_TRACE(row.variant.Label());
    EXPECT_EQ(row.missing_chunks, 0);
    EXPECT_DOUBLE_EQ(row.prompt_tokens_mean, row.exact_tokens_mean + row.reused_tokens_mean +
                                                 row.recomputed_tokens_mean + row.computed_tokens_mean);
    const bool exact = row.variant.mode == BenchMode::kFull || row.variant.mode == BenchMode::kPrefix ||
                       row.variant.policy == Policy::kAll;
    if (exact) {
      EXPECT_NEAR(row.kl_mean, 0, 1e-6);
      EXPECT_DOUBLE_EQ(row.top1_agreement, 1);
    } else {
      EXPECT_GT(row.reused_tokens_mean, 0);
      EXPECT_GT(row.kl_mean, 0);
    }
    EXPECT_GT(row.ttft_p50, 0);
  }
}

}  // namespace
}  // namespace kvblend::server::cli
