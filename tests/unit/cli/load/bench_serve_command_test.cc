// kvblend bench serve from arguments to tables, over fake calls that answer at once.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/files.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class BenchServeCommandTest : public CommandsTest {
 protected:
  BenchServeCommandTest() {
    OrderedJson questions = OrderedJson::array();
    for (int i = 0; i < 3; ++i) {
      questions.push_back({{"question", absl::StrCat("Q", i)},
                           {"answers", {"A"}},
                           {"ctxs", {{{"title", "T"}, {"text", std::string(i + 1, 'x')}}}}});
    }
    data_ = File("data.json", questions.dump());
  }
  int Serve(const std::string& line) { return RunLine("bench serve --data " + data_ + " " + line); }

  std::string data_;
};

TEST_F(BenchServeCommandTest, WritesJsonTableAndPage) {
  const std::string page = (folder_ / "load.html").string(), lines = (folder_ / "lines").string();
  ASSERT_EQ(Serve("--rate 1000,2000 --requests 5 --rows full,query:0.15 --slo-ttft 100 --json - --html " +
                  page + " --per-request " + lines),
            0)
      << Err();
  const std::vector<OrderedJson> rows = OutJson();
  ASSERT_THAT(rows, SizeIs(4));
  EXPECT_EQ(rows[0]["mode"], "full");
  EXPECT_EQ(rows[1]["mode"], "query:0.15");
  EXPECT_EQ(rows[3]["rate"], 2000);
  EXPECT_EQ(rows[3]["answered"], 5);
  EXPECT_EQ(rows[3]["hit_rate"], 1);
  EXPECT_THAT(Err(), HasSubstr("goodput"));
  EXPECT_THAT(*ReadFileOrStdin(page), HasSubstr("<svg"));
  // Thousands per second are written out, in the table and on the axes.
  EXPECT_THAT(Err(), Not(ContainsRegex("[0-9]e[+]")));
  EXPECT_THAT(*ReadFileOrStdin(page), Not(ContainsRegex("[0-9]e[+]")));
  const std::string requests = *ReadFileOrStdin(lines);
  EXPECT_EQ(std::count(requests.begin(), requests.end(), '\n'), 20);
  EXPECT_THAT(calls_.stored, IsEmpty());
  EXPECT_EQ(calls_.generated.back().namespace_(), "kvblend-load");
}

TEST_F(BenchServeCommandTest, AFileThatCannotBeWrittenIsRefusedBeforeTheLoad) {
  const std::string line = "--rate 1000 --requests 1 --rows reuse";
  for (const char* flag : {" --html ", " --json "}) {
    EXPECT_EQ(Serve(line + flag + (folder_ / "no/file").string()), 2) << flag;
    EXPECT_THAT(Err(), HasSubstr("no/file: No such file or directory"));
  }
  EXPECT_THAT(calls_.log, IsEmpty());
  // What fails only now costs neither the table nor the other file.
  const std::string rows = (folder_ / "rows").string();
  EXPECT_EQ(Serve(line + " --html /dev/full --json " + rows), 1);
  EXPECT_THAT(Err(), HasSubstr("cannot write /dev/full"));
  EXPECT_THAT(Out(), HasSubstr("goodput"));
  EXPECT_THAT(*ReadFileOrStdin(rows), HasSubstr("\"mode\":\"reuse\""));
}

TEST_F(BenchServeCommandTest, ClosedLoopTraceAndSearch) {
  ASSERT_EQ(Serve("--clients 1,2 --requests 3 --rows reuse --json -"), 0) << Err();
  ASSERT_THAT(OutJson(), SizeIs(2));
  EXPECT_EQ(OutJson()[1]["clients"], 2);
  ASSERT_EQ(Serve("--rows reuse --json - --trace " + File("trace", "0\n0\n0.001\n")), 0) << Err();
  EXPECT_EQ(OutJson()[0]["answered"], 3);
  // Everything is borne by a server that answers at once; it ends nevertheless.
  ASSERT_EQ(Serve("--rows reuse --search 10 --requests 2 --unloaded 1 --json -"), 0) << Err();
  EXPECT_EQ(OutJson().front()["kind"], "unloaded");
  EXPECT_EQ(OutJson().back()["kind"], "highest_rate");
}

TEST_F(BenchServeCommandTest, AnAnswerThatDiffersIsFive) {
  int asked = 0;
  calls_.on_generate = [&](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    send(FakeCalls::PromptEvent(request));
    send(FakeCalls::TextEvent("a", {++asked <= 6 ? 1 : 2}));  // one to begin with, three references
    send(FakeCalls::FinishedEvent(v1::FINISH_REASON_MAX_TOKENS));
    return absl::OkStatus();
  };
  EXPECT_EQ(Serve("--rows reuse --rate 1000 --requests 3 --check-answers"), 5);
  EXPECT_THAT(Err(), HasSubstr("1 answers under load differ"));
  EXPECT_THAT(Out(), HasSubstr("1 answers differ from their references"));
}

TEST_F(BenchServeCommandTest, WarnsOfChunksThatWereNotThere) {
  v1::ChunkSource source = v1::CHUNK_SOURCE_MISS;
  calls_.on_generate = [&](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    v1::GenerateEvent prompt = FakeCalls::PromptEvent(request);
    prompt.mutable_prompt()->mutable_chunks(0)->set_source(source);
    send(prompt);
    send(FakeCalls::TextEvent("a", {1}));
    return absl::OkStatus();
  };
  // Of the mode prefix only the first chunk is looked for.
  ASSERT_EQ(Serve("--rows full,prefix,reuse --rate 1000 --requests 2"), 0) << Err();
  EXPECT_THAT(Err(), HasSubstr("reuse, 1000/s: not all chunks were in the store"));
  EXPECT_THAT(Err(), Not(HasSubstr("prefix, 1000/s: not all chunks")));
  source = v1::CHUNK_SOURCE_OTHER_ANCHOR;
  ASSERT_EQ(Serve("--rows reuse --rate 1000 --requests 2 --json -"), 0) << Err();
  EXPECT_THAT(Err(), HasSubstr("reuse, 1000/s: 100% of the chunks were computed behind another system text"));
  EXPECT_THAT(Err(), Not(HasSubstr("not all chunks")));
  EXPECT_EQ(OutJson()[0]["other_anchor_rate"], 1);
}

TEST_F(BenchServeCommandTest, WarnsWhereClientsAreMoreThanTheQueueHolds) {
  int asked = 0;
  calls_.on_generate = [&](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    if (++asked == 2) return absl::ResourceExhaustedError("full");
    send(FakeCalls::PromptEvent(request));
    send(FakeCalls::TextEvent("a", {1}));
    return absl::OkStatus();
  };
  ASSERT_EQ(Serve("--rows reuse --clients 2 --requests 4"), 0) << Err();
  EXPECT_THAT(Err(), HasSubstr("reuse, 2 clients: 1 requests were refused"));
  asked = 1;
  ASSERT_EQ(Serve("--rows reuse --rate 1000 --requests 4"), 0) << Err();
  EXPECT_THAT(Err(), Not(HasSubstr("were refused")));
}

TEST_F(BenchServeCommandTest, ErrorsAreCountedByCode) {
  calls_.on_generate = [](const v1::GenerateRequest&, const auto&) {
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_EQ(Serve("--rows reuse --rate 1000 --requests 4"), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("4 RESOURCE_EXHAUSTED (refused within"));
}

// The table comes first, and then why: what a load may end with is no failure, a request that the server does
// not take is.
TEST_F(BenchServeCommandTest, RequestsThatFailForAnotherReasonThanLoadAreTold) {
  int asked = 0;
  calls_.on_generate = [&](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    ++asked;
    if (asked == 2) return absl::DeadlineExceededError("late");
    if (asked > 2) return absl::InvalidArgumentError("prompt is too long");
    send(FakeCalls::PromptEvent(request));
    send(FakeCalls::TextEvent("a", {1}));
    send(FakeCalls::FinishedEvent(v1::FINISH_REASON_MAX_TOKENS));
    return absl::OkStatus();
  };
  EXPECT_EQ(Serve("--rows reuse --rate 100000 --requests 5"), 2);
  EXPECT_THAT(Out(), HasSubstr("100000/s"));
  EXPECT_THAT(Out(), HasSubstr("1 DEADLINE_EXCEEDED, 3 INVALID_ARGUMENT"));
  EXPECT_THAT(Err(), HasSubstr("3 of 5 requests failed, the first one with: prompt is too long"));
}

TEST_F(BenchServeCommandTest, WrongUsageIsTwo) {
  for (const auto& [line, part] : std::vector<std::pair<std::string, std::string>>{
           {"", "0 loads are given; allowed: one of --rate, --trace, --clients, --search"},
           {"--rate 1 --clients 1", "2 loads are given"},
           {"--rate 0", "--rate"},
           {"--rate 1 --rows full,full", "row full is there twice"},
           {"--rate 1 --rows best", "best"},
           {"--rate 1 --output-tokens few", "output-tokens is 'few'"},
           {"--rate 1 --arrivals sometimes", "--arrivals"},
           {"--rate 1000 --duration 100000", "too many requests"},
           {"--rate 1 --zipf 9", "--zipf"},
           {"--rate 1 --zipf 1 --passages 4", "passages is 4, but these questions have 3"},
           {"--search 3 --side-by-side", "--side-by-side"},
           {"--rate 1 --check-answers --turns 2", "turns is 2"},
           {"--rate 1 --cold --keep-chunks", "--cold"},
           {"--trace " + File("trace", "2\n1\n"), "line 2 of the trace"},
       }) {
    EXPECT_EQ(Serve(line), 2) << line;
    EXPECT_THAT(Err(), HasSubstr(part)) << line;
  }
  EXPECT_EQ(RunLine("bench serve --rate 1"), 2);  // no data
}

TEST_F(BenchServeCommandTest, InterruptedItTellsWhatItHas) {
  calls_.on_generate = [this](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    if (calls_.generated.size() == 3) cancellation_.Request();
    send(FakeCalls::PromptEvent(request));
    send(FakeCalls::TextEvent("a", {1}));
    return absl::OkStatus();
  };
  EXPECT_EQ(Serve("--rows reuse --rate 1000 --requests 100 --json -"), 130);
  ASSERT_THAT(OutJson(), SizeIs(1));
  EXPECT_LT(OutJson()[0]["answered"], 100);
  EXPECT_EQ(OutJson()[0]["requests"], 100);
  EXPECT_EQ(OutJson()[0]["interrupted"], true);
}

}  // namespace
}  // namespace kvblend::server::cli
