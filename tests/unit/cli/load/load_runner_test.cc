#include "server/cli/load/load_runner.h"

#include <set>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/load/load_page.h"
#include "server/cli/load/load_report.h"
#include "tests/unit/cli/load/simulated_server.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class LoadRunnerTest : public testing::Test {
 protected:
  LoadRunnerTest() {
    for (int i = 0; i < 4; ++i) {
      Conversation& conversation = conversations_.emplace_back();
      conversation.prompt.add_chunks(std::string(i + 1, 'x'));
      conversation.questions = {absl::StrCat("Q", i)};
      conversation.output_tokens = {3};
    }
    options_.modes = {*ParseRow("full"), *ParseRow("query:0.15")};
    options_.limits = {.seconds = LoadRecord::kNever, .requests = 40};
    options_.tenant_namespace = "load";
    // Blending takes a fifth of full prefill's time.
    server_.prefill = [](const v1::GenerateRequest& request) {
      return absl::Seconds(request.blend().reuse() == v1::REUSE_NOTHING ? 1 : 0.2);
    };
  }

  absl::Status Run() {
    Client client(server_.Lend(), cancellation_);
    return LoadRunner(client, clock_, cancellation_, conversations_, options_, nullptr,
                      [this](const LoadPoint&, const LoadRecord& record) { records_.push_back(record); })
        .Run(run_);
  }

  SimulatedClock clock_;
  SimulatedServer server_{clock_};
  Cancellation cancellation_;
  std::vector<Conversation> conversations_;
  LoadOptions options_;
  LoadRun run_;
  std::vector<LoadRecord> records_;
};

TEST_F(LoadRunnerTest, EveryModeGetsEveryRate) {
  options_.rates = {0.5, 2};
  ASSERT_TRUE(Run().ok());
  std::vector<std::string> lines;
  for (const LoadPoint& point : run_.points)
    lines.push_back(absl::StrCat(options_.modes[point.mode].RowName(), " ", LoadName(point)));
  EXPECT_THAT(lines, ElementsAre("full 0.5/s", "query:0.15 0.5/s", "full 2/s", "query:0.15 2/s"));
  EXPECT_THAT(records_, SizeIs(160));
  // At twice what full prefill bears its waits grow to the end; blending is not half busy.
  EXPECT_GT(run_.points[2].summary.ttft.max, 10);
  EXPECT_LT(run_.points[3].summary.ttft.p95, 1);
  // Chunks are stored for the blended mode alone, and are gone at the end.
  ASSERT_THAT(server_.put, SizeIs(1));
  EXPECT_EQ(server_.put[0].chunks_size(), 4);
  EXPECT_THAT(server_.stored, IsEmpty());
}

TEST_F(LoadRunnerTest, ChunksAreKeptOrNotStoredAsAsked) {
  options_.rates = {1};
  options_.keep_chunks = true;
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(server_.stored, SizeIs(4));
  server_.stored.clear();
  options_.warm = false;
  ASSERT_TRUE(Run().ok());
  EXPECT_THAT(server_.stored, IsEmpty());
}

TEST_F(LoadRunnerTest, SideBySideIsOneStream) {
  options_.rates = {0.5};
  options_.side_by_side = true;
  ASSERT_TRUE(Run().ok());
  ASSERT_THAT(run_.points, SizeIs(2));
  EXPECT_EQ(run_.points[0].summary.requests, 20);
  EXPECT_EQ(run_.points[1].summary.requests, 20);
  EXPECT_EQ(run_.points[1].rate, 0.25);
}

TEST_F(LoadRunnerTest, SearchFindsWhatEachModeBears) {
  options_.search_factor = 3;
  options_.unloaded_requests = 5;
  options_.poisson =
      false;  // then one by one is borne up to 1 / prefill, and a little more for 40 requests alone
  ASSERT_TRUE(Run().ok());
  ASSERT_THAT(run_.highest, SizeIs(2));
  EXPECT_NEAR(run_.highest[0].limit, 3, 1e-6);
  EXPECT_GE(run_.highest[0].highest, 0.9);
  EXPECT_LE(run_.highest[0].highest, 1.1);
  EXPECT_NEAR(run_.highest[1].highest / run_.highest[0].highest, 5, 0.75);
  EXPECT_THAT(HighestRateLines(run_, options_.modes)[1], HasSubstr("x of full"));
  EXPECT_EQ(run_.points[0].kind, LoadKind::kUnloaded);
  EXPECT_EQ(run_.points[0].summary.requests, 5);
  EXPECT_NEAR(run_.points[1].summary.ttft.p95, 0.2, 1e-6);
}

// A burst of 60 prompts of 10 ms is over before one of them has waited for a second.
TEST_F(LoadRunnerTest, ASearchIsNotFooledByAQueueThatTakesAWholeTry) {
  options_.search_factor = 100;
  options_.unloaded_requests = 5;
  options_.poisson = false;
  options_.limits.requests = 60;
  server_.prefill = [](const auto&) { return absl::Milliseconds(10); };
  ASSERT_TRUE(Run().ok());
  for (const HighestRate& highest : run_.highest) {
    EXPECT_NEAR(highest.limit, 1, 1e-6);
    EXPECT_GE(highest.highest, 95);
    EXPECT_LE(highest.highest, 112);
  }
}

// First tokens come at once, and ten answers a second end.
TEST_F(LoadRunnerTest, ASearchWantsAnswersAsFastAsRequests) {
  options_.search_factor = 3;
  options_.unloaded_requests = 5;
  options_.poisson = false;
  server_.prefill = [](const auto&) { return absl::Milliseconds(1); };
  server_.one_answer = absl::Milliseconds(100);
  ASSERT_TRUE(Run().ok());
  EXPECT_GE(run_.highest[0].highest, 9);
  EXPECT_LE(run_.highest[0].highest, 1.12 * 10);
  ASSERT_TRUE(run_.highest[0].refused.has_value());
}

// Answers that take long are no backlog: the last ones' own time counts for nothing.
TEST_F(LoadRunnerTest, ASearchDoesNotTakeLongAnswersForABacklog) {
  options_.search_factor = 3;
  options_.unloaded_requests = 5;
  options_.poisson = false;
  server_.prefill = [](const auto&) { return absl::Milliseconds(10); };
  server_.token = absl::Seconds(2);
  ASSERT_TRUE(Run().ok());
  EXPECT_GE(run_.highest[0].highest, 90);
  EXPECT_LE(run_.highest[0].highest, 112);
}

TEST_F(LoadRunnerTest, ASearchCountsTheRequestsOfItsConversations) {
  for (Conversation& conversation : conversations_) {
    conversation.questions.assign(5, "Q");
    conversation.output_tokens.assign(5, 1);
  }
  options_.modes = {*ParseRow("full")};
  options_.search_factor = 1.5;
  options_.unloaded_requests = 5;
  options_.poisson = false;
  options_.limits.requests = 19;  // of whose conversations no one may be late, but of their 95 requests 4
  const std::string slow = "slow";
  conversations_.resize(19, conversations_[0]);
  conversations_[18].questions[0] = slow;
  server_.prefill = [&](const v1::GenerateRequest& request) {
    return absl::Seconds(request.prompt().question() == slow ? 2 : 1);
  };
  ASSERT_TRUE(Run().ok());
  ASSERT_THAT(run_.highest, SizeIs(1));
  EXPECT_GT(run_.highest[0].highest, 0);
  EXPECT_THAT(HighestRateLines(run_, options_.modes)[0], HasSubstr(" conversations/s, and not at "));
  EXPECT_THAT(LoadPage(run_, options_.modes, "", ""), HasSubstr("conversations per second, planned"));
}

TEST_F(LoadRunnerTest, ASearchWithoutAnUpperEndSaysSo) {
  run_.highest = {{.mode = 0, .limit = 1, .highest = 64}};
  EXPECT_THAT(HighestRateLines(run_, options_.modes)[0],
              HasSubstr("up to 64 requests/s at least: no rate was found that is too much"));
}

// One of these conversations alone has more turns than are asked without load.
TEST_F(LoadRunnerTest, EveryModeIsMeasuredWithoutLoadWhateverTheTurns) {
  for (Conversation& conversation : conversations_) {
    conversation.questions.assign(8, "Q");
    conversation.output_tokens.assign(8, 1);
  }
  options_.rates = {0.1};
  options_.limits.requests = 2;
  options_.unloaded_requests = 3;
  ASSERT_TRUE(Run().ok());
  ASSERT_THAT(run_.points, SizeIs(4));
  for (const int mode : {0, 1}) {
    const LoadPoint& unloaded = run_.points[mode];
    EXPECT_EQ(unloaded.kind, LoadKind::kUnloaded);
    EXPECT_EQ(unloaded.mode, mode);
    EXPECT_EQ(unloaded.summary.requests, 3);
    EXPECT_EQ(unloaded.summary.answered, 3);
  }
  // Each per second of its own time: one after the other, 1 s and 0.2 s.
  EXPECT_NEAR(run_.points[0].summary.answers_per_second, 1, 1e-6);
  EXPECT_NEAR(run_.points[1].summary.answers_per_second, 5, 1e-6);
}

TEST_F(LoadRunnerTest, ASearchWithoutATimeToGoByIsAnError) {
  options_.search_factor = 3;
  options_.unloaded_requests = 2;
  server_.prefill = [](const auto&) { return absl::ZeroDuration(); };
  const absl::Status status = Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("time to the first token of full is 0 s without load"));
  EXPECT_THAT(run_.points, SizeIs(2));
}

TEST_F(LoadRunnerTest, AnswersAreHeldAgainstThoseWithoutLoad) {
  options_.clients = {2};
  options_.limits.requests = 8;
  options_.check_answers = true;
  options_.unloaded_requests = 4;
  ASSERT_TRUE(Run().ok());
  for (const LoadPoint& point : run_.points) EXPECT_EQ(point.summary.mismatches, 0);
  // The same questions with longer answers: all differ.
  int asked = 0;
  class Longer : public SimulatedServer {
   public:
    Longer(SimulatedClock& clock, int& asked) : SimulatedServer(clock), asked_(asked) {}
    Started Generate(v1::GenerateRequest request, const CallerContext& caller,
                     std::shared_ptr<EventSink<v1::GenerateEvent>> sink) override {
      if (++asked_ > 10) request.mutable_sampling()->set_max_tokens(4);
      return SimulatedServer::Generate(std::move(request), caller, std::move(sink));
    }
    int& asked_;
  } longer(clock_, asked);
  Client client(longer.Lend(), cancellation_);
  LoadRun run;
  ASSERT_TRUE(
      LoadRunner(client, clock_, cancellation_, conversations_, options_, nullptr, nullptr).Run(run).ok());
  int64_t mismatches = 0;
  for (const LoadPoint& point : run.points) mismatches += point.summary.mismatches;
  EXPECT_EQ(mismatches, 16);
}

TEST_F(LoadRunnerTest, WithoutAnAnswerBeforeThereIsNoLoad) {
  options_.rates = {1};
  options_.unloaded_requests = 2;
  server_.max_waiting = -1;
  const absl::Status status = Run();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("without load failed: full"));
  EXPECT_THAT(run_.points, IsEmpty());
}

// Ctrl-C ends the put on the client's side, and a chunk is stored that it has not heard of.
TEST_F(LoadRunnerTest, WhatAnInterruptedPutStoredUnheardIsRemovedToo) {
  server_.stored["other"] = FakeCalls::Chunk("other", 3);
  server_.stored["other"].set_label("kvblend bench serve, another one");
  options_.rates = {1};
  server_.on_put = [&](const v1::PutChunksRequest& request) -> absl::Status {
    if (!server_.log.empty()) return absl::OkStatus();
    server_.log.push_back("interrupted");
    for (const char* key : {"unheard 1", "unheard 2", "unheard 3"}) {  // more than the fake has on one page
      server_.stored[key] = FakeCalls::Chunk(key, 3);
      server_.stored[key].set_label(request.label());
    }
    return absl::CancelledError("interrupted");
  };
  EXPECT_TRUE(absl::IsCancelled(Run()));
  ASSERT_THAT(server_.put, SizeIs(1)) << "one more, behind which the interrupted one is over";
  EXPECT_EQ(server_.put[0].chunks_size(), 1);
  EXPECT_EQ(server_.stored.count("other"), 1u);
  for (const auto& [key, chunk] : server_.stored) {
    EXPECT_TRUE(key == "other" || chunk.label().empty()) << key;
  }
}

// Nor does it wait for ever for a server that answers nothing any more.
TEST_F(LoadRunnerTest, AnInterruptedPutEndsWhereTheServerHangs) {
  class Hanging : public SimulatedServer {
   public:
    using SimulatedServer::SimulatedServer;
    Started Put(v1::PutChunksRequest, const CallerContext& caller,
                std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) override {
      if (++puts == 1) return absl::CancelledError("interrupted");
      sink_ = std::move(sink);
      deadline = caller.deadline;
      return std::make_shared<Handle>(*this);
    }
    struct Handle : RequestHandle {
      explicit Handle(Hanging& server) : server(server) {}
      void Cancel() override { server.put_cancelled = true; }
      Hanging& server;
    };
    int puts = 0;
    bool put_cancelled = false;
    absl::Time deadline;
    std::shared_ptr<EventSink<v1::PutChunkProgress>> sink_;
  } hanging(clock_);
  options_.rates = {1};
  Client client(hanging.Lend(), cancellation_);
  const absl::Time before = clock_.Now();
  LoadRun run;
  const absl::Status status =
      LoadRunner(client, clock_, cancellation_, conversations_, options_, nullptr, nullptr).Run(run);
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("may be left in namespace 'load'"));
  EXPECT_EQ(clock_.Now() - before, StoredChunks::kPatience);
  EXPECT_TRUE(hanging.put_cancelled);
  EXPECT_LE(hanging.deadline, absl::Now() + StoredChunks::kPatience);
}

TEST_F(LoadRunnerTest, ChunksAreStoredBehindTheSystemTextOfEachQuestion) {
  for (int i = 0; i < 4; ++i) conversations_[i].prompt.set_system_text(i < 3 ? "first" : "second");
  options_.modes = {*ParseRow("query:0.15"), *ParseRow("cacheblend")};
  options_.rates = {1};
  ASSERT_TRUE(Run().ok());
  ASSERT_THAT(server_.put, SizeIs(3));
  EXPECT_EQ(server_.put[0].system_text(), "first");
  EXPECT_EQ(server_.put[0].chunks_size(), 3);
  EXPECT_EQ(server_.put[1].system_text(), "second");
  EXPECT_EQ(server_.put[1].chunks_size(), 1);
  EXPECT_EQ(server_.put[2].anchoring(), v1::ANCHORING_ISOLATED);
  EXPECT_EQ(server_.put[2].system_text(), "");
  EXPECT_EQ(server_.put[2].chunks_size(), 4);
}

// A loop of clients by its requests, or by its time; an open one by the requests of its conversations.
TEST_F(LoadRunnerTest, ProgressIsTowardsWhatEndsTheMeasurement) {
  for (Conversation& conversation : conversations_) {
    conversation.questions.assign(2, "Q");
    conversation.output_tokens.assign(2, 1);
  }
  options_.modes = {*ParseRow("full")};
  const auto totals = [&] {
    std::set<int64_t> seen;
    int64_t most = 0;
    Client client(server_.Lend(), cancellation_);
    LoadRun run;
    const LoadRunner::Progress progress = [&](int64_t done, int64_t total, std::string_view what) {
      if (what == "storing chunks") return;
      seen.insert(total);
      most = std::max(most, done);
    };
    EXPECT_TRUE(
        LoadRunner(client, clock_, cancellation_, conversations_, options_, progress, nullptr).Run(run).ok());
    EXPECT_GE(most, *seen.begin() - 1);
    return seen;
  };
  options_.clients = {2};
  options_.limits = {.seconds = LoadRecord::kNever, .requests = 7};
  EXPECT_THAT(totals(), ElementsAre(7));
  options_.limits = {.seconds = 30};
  EXPECT_THAT(totals(), ElementsAre(30));
  options_.clients.clear();
  options_.rates = {1};
  options_.limits = {.seconds = LoadRecord::kNever, .requests = 7};
  EXPECT_THAT(totals(), ElementsAre(14));
}

TEST_F(LoadRunnerTest, CtrlCKeepsWhatWasMeasured) {
  options_.rates = {1, 2};
  clock_.At(clock_.Now() + absl::Seconds(1000), [this] { cancellation_.Request(); });
  options_.limits.requests = 1000;
  EXPECT_TRUE(absl::IsCancelled(Run()));
  ASSERT_THAT(run_.points, SizeIs(1));
  const LoadPoint& point = run_.points[0];
  EXPECT_GT(point.summary.answered, 500);
  EXPECT_TRUE(point.interrupted);
  EXPECT_FALSE(point.stopped_early);
  EXPECT_EQ(point.summary.requests, 1000);
  EXPECT_EQ(point.summary.answered + point.summary.unfinished, 1000);
  EXPECT_NEAR(point.seconds, 1000, 1e-6);
  const OrderedJson json = ToJson(point, options_.modes);
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_EQ(json["unfinished"], point.summary.unfinished);
  const std::string table = FormatLoadTable(run_, options_.modes);
  EXPECT_THAT(table, HasSubstr(absl::StrCat(point.summary.answered, "+/1000")));
  EXPECT_THAT(table, HasSubstr(absl::StrCat("interrupted, ", point.summary.unfinished, " unfinished")));
  // A chart has no place for it.
  EXPECT_THAT(LoadPage(run_, options_.modes, "", ""), Not(HasSubstr("<svg")));
}

// The last request of 10 seconds at 0.4/s comes at 7.5 and is answered a second later.
TEST_F(LoadRunnerTest, RatesArePerSecondOfTheDuration) {
  options_.modes = {*ParseRow("full")};
  options_.rates = {0.4};
  options_.poisson = false;
  options_.limits = {.seconds = 10};
  ASSERT_TRUE(Run().ok());
  ASSERT_THAT(run_.points, SizeIs(1));
  EXPECT_EQ(run_.points[0].seconds, 10);
  EXPECT_EQ(run_.points[0].summary.answers_per_second, 0.4);
  EXPECT_EQ(run_.points[0].summary.goodput, 0.4);
  // A number of requests has no duration but until the last answer, however long it might have taken.
  options_.limits = {.seconds = 1000, .requests = 4};
  ASSERT_TRUE(Run().ok());
  EXPECT_NEAR(run_.points[1].seconds, 8.52, 1e-6);
  options_.rates.clear();
  options_.clients = {1};
  ASSERT_TRUE(Run().ok());
  EXPECT_NEAR(run_.points[2].seconds, 4 * 1.02, 1e-6);
  // Nobody asks in the last second, since the pause ends after it.
  options_.limits = {.seconds = 10};
  server_.max_waiting = -1;
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(run_.points[3].seconds, 10);
}

TEST_F(LoadRunnerTest, PageHoldsCurvesAndAsksForNothing) {
  options_.rates = {0.5, 2};
  ASSERT_TRUE(Run().ok());
  const std::string page = LoadPage(run_, options_.modes, "Model <1> on cpu", "kvblend");
  EXPECT_THAT(page, HasSubstr("Model &lt;1&gt; on cpu"));
  EXPECT_THAT(page, HasSubstr("Time to first token, p95"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  for (const std::string outside : {"http", "src=", "url(", "@import", "<link", "<script"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(FormatLoadTable(run_, options_.modes), HasSubstr("query:0.15"));
}

}  // namespace
}  // namespace kvblend::server::cli
