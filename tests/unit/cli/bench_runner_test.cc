// The bench over an engine whose distributions and times are known in closed form.
#include "server/cli/bench/bench_runner.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/bench_report.h"
#include "tests/unit/cli/bench_engine.h"

namespace kvblend::server::cli {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

std::vector<BenchRow> Rows(KnownEngine& engine, int num_questions,
                           const BenchOptions& options = Options(kAllModes)) {
  const auto results = Bench(engine, Questions(num_questions), options);
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? Summarize(*results) : std::vector<BenchRow>();
}

TEST(BenchRunnerTest, FiguresMatchClosedForms) {
  KnownEngine engine;
  const std::vector<BenchRow> rows = Rows(engine, 3);
  ASSERT_THAT(rows, SizeIs(4));
  const double kl = 0.6 * std::log(0.6 / 0.3) + 0.4 * std::log(0.4 / 0.7);
  const double exact_nll = -std::log(0.6);
  const double reuse_nll = -(std::log(0.3) + std::log(0.6)) / 2;
  for (int exact : {0, 1}) {
    EXPECT_DOUBLE_EQ(rows[exact].kl_mean.value, 0);
    EXPECT_DOUBLE_EQ(rows[exact].kl_first_token_mean.value, 0);
    EXPECT_DOUBLE_EQ(rows[exact].top1_agreement.value, 1);
    EXPECT_NEAR(rows[exact].answer_nll_mean.value, exact_nll, 1e-9);
  }
  for (int blended : {2, 3}) {
    EXPECT_NEAR(rows[blended].kl_first_token_mean.value, kl, 1e-6);
    EXPECT_NEAR(rows[blended].kl_mean.value, kl / kTokens, 1e-6);
    EXPECT_NEAR(rows[blended].kl_median, kl / kTokens, 1e-6);
    EXPECT_DOUBLE_EQ(rows[blended].top1_agreement.value, 15.0 / kTokens);
    EXPECT_NEAR(rows[blended].answer_nll_mean.value, reuse_nll, 1e-9);
  }
  const std::vector<double> seconds = {8, 4, 1, 2};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].num_questions, 3);
    EXPECT_DOUBLE_EQ(rows[i].f1_mean.value, 1);  // "The gold answer" against "gold answer"
    EXPECT_DOUBLE_EQ(rows[i].ttft_p50, seconds[i]);
    EXPECT_DOUBLE_EQ(rows[i].ttft_p95, seconds[i]);
    EXPECT_DOUBLE_EQ(rows[i].ttft_speedup.value, 8 / seconds[i]);
    EXPECT_DOUBLE_EQ(rows[i].prompt_tokens_mean, 100);
    EXPECT_EQ(rows[i].missing_chunks, 0);
  }
  EXPECT_DOUBLE_EQ(rows[3].recomputed_tokens_mean, 15);
  EXPECT_DOUBLE_EQ(rows[2].recomputed_tokens_mean, 0);
}

TEST(BenchRunnerTest, AsksForWhatItMeasures) {
  KnownEngine engine;
  ASSERT_TRUE(Bench(engine, Questions(1), Options(kAllModes)).ok());
  // Stored once, before anything else.
  ASSERT_THAT(engine.put, SizeIs(1));
  EXPECT_EQ(engine.log.front(), "put");
  EXPECT_EQ(engine.put[0].lead_in(), "Passages:\n\n");
  EXPECT_EQ(engine.put[0].anchoring(), v1::ANCHORING_ANCHORED);
  EXPECT_EQ(engine.put[0].namespace_(), "bench");
  // The reference: full prefill, 16 tokens whatever the model says, greedy.
  EXPECT_EQ(engine.generated[0].blend().reuse(), v1::REUSE_NOTHING);
  EXPECT_TRUE(engine.generated[0].sampling().ignore_eos());
  EXPECT_EQ(engine.generated[0].sampling().max_tokens(), kTokens);
  EXPECT_EQ(engine.generated[0].sampling().temperature(), 0);
  // Answers end where the model ends them.
  EXPECT_FALSE(engine.generated[1].sampling().ignore_eos());
  EXPECT_EQ(engine.generated[1].sampling().max_tokens(), 32);
  // Times at last, the variants in turns.
  ASSERT_THAT(engine.generated, SizeIs(1 + 4 + 2 * 4));
  std::vector<v1::Reuse> order;
  for (size_t i = 5; i < engine.generated.size(); ++i) {
    EXPECT_EQ(engine.generated[i].sampling().max_tokens(), 1);
    order.push_back(engine.generated[i].blend().reuse());
  }
  EXPECT_THAT(order, ElementsAre(v1::REUSE_NOTHING, v1::REUSE_PREFIX, v1::REUSE_CHUNKS, v1::REUSE_CHUNKS,
                                 v1::REUSE_NOTHING, v1::REUSE_PREFIX, v1::REUSE_CHUNKS, v1::REUSE_CHUNKS));
  // 16 tokens with distributions and the gold answer without, per variant; full prefill's 16 only once.
  ASSERT_THAT(engine.scored, SizeIs(8));
  EXPECT_THAT(engine.scored[0].continuation_token_ids().ids(), SizeIs(kTokens));
  EXPECT_TRUE(engine.scored[0].return_distributions());
  EXPECT_EQ(engine.scored[1].continuation_text(), "gold answer");
  EXPECT_FALSE(engine.scored[1].return_distributions());
  for (const v1::ScoreRequest& request : engine.scored) {
    EXPECT_TRUE(request.blend().has_store_misses());
    EXPECT_FALSE(request.blend().store_misses());
  }
}

TEST(BenchRunnerTest, WithoutModeFullTheReferenceIsStillFullPrefill) {
  KnownEngine engine;
  const std::vector<BenchRow> rows = Rows(engine, 2, Options({BenchMode::kBlend}));
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_GT(rows[0].kl_mean.value, 0);
  EXPECT_TRUE(std::isnan(rows[0].ttft_speedup.value));
  EXPECT_EQ(engine.generated[0].blend().reuse(), v1::REUSE_NOTHING);
}

TEST(BenchRunnerTest, MeasuresOnlyWhatIsAsked) {
  KnownEngine engine;
  BenchOptions options = Options({BenchMode::kFull, BenchMode::kBlend});
  options.measures = {.ttft = true, .kl = false, .nll = false, .f1 = false};
  const std::vector<BenchRow> rows = Rows(engine, 1, options);
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_TRUE(engine.scored.empty());
  EXPECT_THAT(engine.generated, SizeIs(2 * 2));
  const OrderedJson row = ToJson(rows[1], "questions", options.repeats);
  EXPECT_TRUE(row["kl_mean"].is_null());
  EXPECT_TRUE(row["f1_mean"].is_null());
  EXPECT_EQ(row["ttft_s"]["p50"], 2);
}

TEST(BenchRunnerTest, LeavesTheStoreAsItWasFound) {
  KnownEngine engine;
  const std::vector<BenchQuestion> questions = Questions(2);
  const std::string kept = absl::StrCat("key-anchored-", MakePrompt(questions[0], 0).chunks(0).size());
  engine.stored[kept] = FakeCalls::Chunk(kept);
  ASSERT_TRUE(Bench(engine, questions, Options(kAllModes)).ok());
  ASSERT_THAT(engine.stored, SizeIs(1));
  EXPECT_EQ(engine.stored.begin()->first, kept);
}

TEST(BenchRunnerTest, CleansUpAfterAnErrorAndNamesTheQuestion) {
  KnownEngine engine;
  engine.failing_generate = 15;  // in the second question: each makes 13 calls
  const BenchRun run = RunTasks(engine, Questions(3), Options(kAllModes));
  EXPECT_EQ(run.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(run.status.message(), "question 2: gone");
  ASSERT_THAT(run.finished, SizeIs(1));  // the one that was finished
  EXPECT_THAT(run.finished.front().rows, SizeIs(4));
  EXPECT_TRUE(engine.stored.empty());
}

TEST(BenchRunnerTest, StoresBothAnchoringsAndAnchorsForThePrefix) {
  KnownEngine engine;
  BenchOptions options = Options({BenchMode::kFull});
  options.variants = *MakeVariants({BenchMode::kPrefix, BenchMode::kReuse}, {}, {}, {v1::ANCHORING_ISOLATED});
  ASSERT_TRUE(Bench(engine, Questions(1), options).ok());
  std::vector<v1::Anchoring> anchorings;
  for (const v1::PutChunksRequest& request : engine.put) anchorings.push_back(request.anchoring());
  EXPECT_THAT(anchorings, ElementsAre(v1::ANCHORING_ANCHORED, v1::ANCHORING_ISOLATED));
}

TEST(BenchRunnerTest, CountsChunksThatWentMissing) {
  KnownEngine engine;
  const auto known = engine.on_generate;
  engine.on_generate = [&](const v1::GenerateRequest& request, const auto& send) {
    return known(request, [&](v1::GenerateEvent event) {
      if (event.has_prompt()) event.mutable_prompt()->mutable_chunks(1)->set_source(v1::CHUNK_SOURCE_MISS);
      send(event);
    });
  };
  const std::vector<BenchRow> rows = Rows(engine, 2);
  ASSERT_THAT(rows, SizeIs(4));
  EXPECT_EQ(rows[0].missing_chunks, 0);  // full prefill looks for none
  EXPECT_EQ(rows[3].missing_chunks, 2);  // one per question
}

TEST(BenchRunnerTest, ProgressCountsEveryStepOnce) {
  KnownEngine engine;
  std::vector<int> steps;
  int last_total = 0;
  ASSERT_TRUE(Bench(engine, Questions(2), Options(kAllModes), [&](int done, int total, std::string_view) {
                steps.push_back(done);
                last_total = total;
              }).ok());
  ASSERT_THAT(steps, SizeIs(last_total));
  for (int i = 0; i < last_total; ++i) EXPECT_EQ(steps[i], i);
}

TEST(BenchReportTest, JsonHasTheDocumentedKeys) {
  KnownEngine engine;
  const std::vector<BenchRow> rows = Rows(engine, 1);
  ASSERT_THAT(rows, SizeIs(4));
  const OrderedJson blend = ToJson(rows[3], "questions", 2);
  std::vector<std::string> keys;
  for (const auto& [key, value] : blend.items()) keys.push_back(key);
  keys.resize(15);
  EXPECT_THAT(keys, ElementsAre("data", "mode", "policy", "ratio", "anchored", "corrected", "spread", "n",
                                "prompt_tokens_mean", "recomputed_tokens_mean", "ttft_s",
                                "kl_first_token_mean", "kl_mean", "top1_agreement", "f1_mean"));
  EXPECT_EQ(blend["mode"], "blend");
  EXPECT_EQ(blend["policy"], "query");
  EXPECT_EQ(blend["ratio"], 0.15);
  EXPECT_EQ(blend["anchored"], true);
  EXPECT_EQ(blend["n"], 1);
  EXPECT_TRUE(blend["answer_nll_mean"].is_number());
  const OrderedJson full = ToJson(rows[0], "questions", 2);
  EXPECT_TRUE(full["policy"].is_null());
  EXPECT_TRUE(full["ratio"].is_null());
  EXPECT_EQ(full["ttft_s"].dump(), R"({"p50":8.0,"p95":8.0})");
}

TEST(BenchReportTest, TableIsAlignedAndFits) {
  KnownEngine engine;
  const std::string table = FormatTable(Rows(engine, 1));
  std::vector<std::string> lines = absl::StrSplit(table, '\n');
  ASSERT_THAT(lines, SizeIs(2 + 4 + 1));
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  std::vector<size_t> widths;
  for (const std::string& line : lines) widths.push_back(line.size());
  EXPECT_THAT(widths, Each(119u));
  // A column's cells end where its head ends.
  const size_t end = lines[0].find("speedup") + 7;
  EXPECT_EQ(lines[2].substr(end - 4, 4), "1.0x");
  EXPECT_EQ(lines[5].substr(end - 4, 4), "4.0x");
}

}  // namespace
}  // namespace kvblend::server::cli
