#include "server/cli/load/load_driver.h"

#include <set>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/load/load_summary.h"
#include "tests/unit/cli/load/simulated_server.h"

namespace kvblend::server::cli {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::SizeIs;

class LoadDriverTest : public testing::Test {
 protected:
  LoadDriverTest() {
    for (int i = 0; i < 3; ++i) {
      Conversation& conversation = conversations_.emplace_back();
      conversation.questions = {absl::StrCat("Q", i)};
      conversation.output_tokens = {1};
    }
  }
  LoadScript Script() const {
    return {.conversations = conversations_, .modes = modes_, .mode_indices = {0}, .tenant_namespace = "n"};
  }
  LoadResult Run(const LoadStep& step) { return Run(step, Script()); }
  LoadResult Run(const LoadStep& step, const LoadScript& script) {
    return RunLoad(server_, clock_, cancellation_, script, step);
  }

  SimulatedClock clock_;
  SimulatedServer server_{clock_};
  Cancellation cancellation_;
  std::vector<Conversation> conversations_;
  std::vector<BenchVariant> modes_ = {BenchVariant{}, BenchVariant{.mode = BenchMode::kPrefix}};
};

// Pollaczek and Khinchine: with Poisson arrivals and equal service times the mean wait is s u / (2 (1 - u)).
TEST_F(LoadDriverTest, WaitsInAnOpenLoopAreThoseOfTheQueue) {
  server_.prefill = [](const auto&) { return absl::Milliseconds(100); };
  for (const double load : {0.3, 0.6}) {
    std::mt19937_64 random(5);
    const LoadResult result =
        Run({.arrivals = PoissonArrivals(load / 0.1, {.seconds = 1e9, .requests = 20000}, random)});
    ASSERT_THAT(result.records, SizeIs(20000));
    const LoadSummary summary = SummarizeLoad(result.records, 0, result.seconds, {});
    EXPECT_NEAR(summary.ttft.mean - 0.1, 0.1 * load / (2 * (1 - load)), 0.07 * 0.1 * load / (2 * (1 - load)));
    EXPECT_LT(summary.late_p99, 1e-9);
  }
}

// A sender that is held up sends late, and that is in the latencies: all were planned before.
TEST_F(LoadDriverTest, LatenciesCountFromThePlannedTimes) {
  server_.prefill = [](const auto&) { return absl::Milliseconds(1); };
  server_.slow_to_accept = absl::Seconds(1);
  const LoadResult result = Run({.arrivals = FixedArrivals(10, {.seconds = 1})});
  ASSERT_THAT(result.records, SizeIs(10));
  const LoadSummary summary = SummarizeLoad(result.records, 0, result.seconds, {});
  // The k-th is sent at k instead of k / 10; first tokens are seen when all are sent.
  EXPECT_NEAR(summary.late_p99, 8.1, 0.1);
  EXPECT_NEAR(summary.ttft.max, 10, 1e-6);
  EXPECT_NEAR(summary.ttft.p50, 10 - 0.45, 1e-6);
}

TEST_F(LoadDriverTest, NotesTokensAndGaps) {
  conversations_[0].output_tokens = {4};
  const LoadResult result = Run({.arrivals = {2}});
  ASSERT_THAT(result.records, SizeIs(1));
  const LoadRecord& record = result.records[0];
  EXPECT_NEAR(record.planned, 2, 1e-9);
  EXPECT_NEAR(record.ttft(), 1, 1e-9);
  EXPECT_THAT(record.gaps, SizeIs(3));
  EXPECT_THAT(record.gaps, Each(testing::DoubleNear(0.01, 1e-6)));
  EXPECT_NEAR(record.seconds_per_token(), 0.01, 1e-6);
  EXPECT_NEAR(result.seconds, 3.03, 1e-6);
  EXPECT_EQ(record.output_tokens, 4);
}

TEST_F(LoadDriverTest, AClosedLoopKeepsItsClientsBusyUntilTheTimeIsOver) {
  conversations_[0].output_tokens = conversations_[1].output_tokens = conversations_[2].output_tokens = {101};
  const LoadResult result = Run({.clients = 4, .seconds = 20});
  // One prefill a second and another second to decode: the queue is never empty, and the first are sent at
  // once.
  EXPECT_EQ(server_.most_in_flight, 4);
  EXPECT_NEAR(double(result.records.size()), 22, 2);
  for (const LoadRecord& record : result.records) EXPECT_LT(record.planned, 20);
  const LoadResult few = Run({.clients = 4, .seconds = 1e9, .requests = 6});
  EXPECT_THAT(few.records, SizeIs(6));
}

TEST_F(LoadDriverTest, ConversationsGoOnBehindTheirAnswers) {
  conversations_[0].questions = {"Q", "R", "S"};
  conversations_[0].output_tokens = {1, 2, 1};
  LoadScript script = Script();
  script.think_seconds = 5;
  script.timeout = absl::Seconds(60);
  const absl::Time before = absl::Now();
  const LoadResult result = Run({.arrivals = {1}}, script);
  const absl::Time after = absl::Now();
  ASSERT_THAT(result.records, SizeIs(3));
  EXPECT_NEAR(result.records[1].planned, 2 + 5, 1e-6);
  EXPECT_NEAR(result.records[2].planned, 7 + 1.01 + 5, 1e-6);
  EXPECT_EQ(result.records[2].turn, 2);
  ASSERT_EQ(server_.generated[2].prompt().history_size(), 4);
  EXPECT_EQ(server_.generated[2].prompt().history(3).text(), "ab");
  // From its planned time, by the machine's clock.
  EXPECT_GE(server_.deadlines[1], before + absl::Seconds(60));
  EXPECT_LE(server_.deadlines[1], after + absl::Seconds(60));
}

TEST_F(LoadDriverTest, FurtherTurnsCountForTheBudgetOfAClosedLoop) {
  for (Conversation& conversation : conversations_) {
    conversation.questions = {"Q", "R", "S"};
    conversation.output_tokens = {1, 1, 1};
  }
  EXPECT_THAT(Run({.clients = 2, .seconds = 1e9, .requests = 7}).records, SizeIs(7));
  EXPECT_THAT(Run({.clients = 1, .seconds = 1e9, .requests = 2}).records, SizeIs(2));
  // One a second, the next turn at once: what is planned at 5 s is after the end.
  EXPECT_THAT(Run({.clients = 1, .seconds = 4.5}).records, SizeIs(5));
  // In an open loop arrivals count, and whoever has begun asks to the end.
  EXPECT_THAT(Run({.arrivals = {0, 9}, .seconds = 10}).records, SizeIs(6));
}

TEST_F(LoadDriverTest, ModesTakeTurnsOnTheSameConversations) {
  LoadScript script = Script();
  script.mode_indices = {0, 1};
  const LoadResult result = Run({.arrivals = {0, 0, 0, 0, 0, 0, 0, 0}}, script);
  std::multiset<std::pair<int, int>> seen;
  for (const LoadRecord& record : result.records) seen.emplace(record.mode, record.conversation);
  EXPECT_EQ(seen, (std::multiset<std::pair<int, int>>{
                      {0, 0}, {0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 0}, {1, 1}, {1, 2}}));
  EXPECT_EQ(server_.generated[1].blend().reuse(), v1::REUSE_PREFIX);
}

TEST_F(LoadDriverTest, RefusalsAreNotedAndClientsComeBack) {
  server_.max_waiting = 0;
  const LoadResult open = Run({.arrivals = {0, 0.5}});
  ASSERT_THAT(open.records, SizeIs(2));
  EXPECT_TRUE(absl::IsResourceExhausted(open.records[0].status));
  EXPECT_EQ(open.records[0].first_token, LoadRecord::kNever);
  EXPECT_TRUE(open.records[1].ok());

  const LoadResult closed = Run({.clients = 2, .seconds = 1e9, .requests = 30});
  ASSERT_THAT(closed.records, SizeIs(30));
  const int64_t refused =
      SummarizeLoad(closed.records, 0, closed.seconds, {}).errors.at("RESOURCE_EXHAUSTED");
  EXPECT_GE(refused, 20);
  EXPECT_LT(refused, 30);
}

TEST_F(LoadDriverTest, StopsWhereTooManyAreLate) {
  // Twice what it bears: the k-th waits k / 2 seconds.
  const LoadResult result =
      Run({.arrivals = FixedArrivals(2, {.seconds = 100}), .bound = TtftBound{.seconds = 3, .allowed = 2}});
  EXPECT_TRUE(result.stopped_early);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.records.size() + result.unfinished.at(0), 200u);
  EXPECT_LT(result.seconds, 12);
  EXPECT_GT(server_.cancelled, 0);
  EXPECT_EQ(server_.in_flight, 0);
  for (const LoadRecord& record : result.records) EXPECT_TRUE(record.ok()) << record.status;
  clock_.Advance(absl::Hours(1));  // the server is done with what it had
  const LoadResult borne =
      Run({.arrivals = FixedArrivals(1, {.seconds = 100}), .bound = TtftBound{.seconds = 3, .allowed = 2}});
  EXPECT_FALSE(borne.stopped_early);
  EXPECT_THAT(borne.records, SizeIs(100));
}

TEST_F(LoadDriverTest, CtrlCEndsWhatRuns) {
  clock_.At(clock_.Now() + absl::Seconds(2.5), [this] { cancellation_.Request(); });
  const LoadResult result = Run({.arrivals = FixedArrivals(1, {.seconds = 1000})});
  EXPECT_THAT(result.records, SizeIs(2));
  EXPECT_FALSE(result.stopped_early);
  EXPECT_TRUE(result.interrupted);
  EXPECT_THAT(result.unfinished, ElementsAre(testing::Pair(0, 998)));
  EXPECT_EQ(result.planned, 1000);
  EXPECT_EQ(server_.cancelled, 1);
}

TEST_F(LoadDriverTest, AnswersAreToldApart) {
  conversations_[1].output_tokens = {2};
  const LoadResult result = Run({.arrivals = {0, 1, 2, 3}});
  std::vector<std::string> hashes;
  for (const LoadRecord& record : result.records) hashes.push_back(record.answer_hash);
  EXPECT_EQ(hashes[0], hashes[2]);
  EXPECT_EQ(hashes[0], hashes[3]);
  EXPECT_NE(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace kvblend::server::cli
