// kvblend bench from arguments to tables, over fake calls.
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/files.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class BenchCommandTest : public CommandsTest {
 protected:
  /// A data file of so many questions.
  std::string Data(const std::string& name, int count) {
    OrderedJson questions = OrderedJson::array();
    for (int i = 0; i < count; ++i) {
      questions.push_back({{"question", absl::StrCat("Q", i)},
                           {"answers", {"Hello you"}},
                           {"ctxs", {{{"title", "T"}, {"text", std::string(i + 1, 'x')}}}}});
    }
    return File(name, questions.dump());
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
};

TEST_F(BenchCommandTest, WritesJsonAndTable) {
  const std::string data = File("data.json", R"([{"question": "Q", "answers": ["Hello"],
      "ctxs": [{"title": "T", "text": "One."}]}])");
  const std::string json = (folder_ / "rows.jsonl").string();
  const std::string line =
      "bench --measure ttft,f1 --policy query,link --ratio 0.05,0.15 --anchored --isolated --data " + data +
      " --json ";
  EXPECT_EQ(RunLine(line + json), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("speedup"));
  std::ifstream file(json);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  EXPECT_THAT(lines, SizeIs(2 + 2 * (1 + 2 + 1)));  // full, prefix; per anchoring reuse, query twice, link
  EXPECT_EQ(OrderedJson::parse(lines.back())["policy"], "link");
  EXPECT_EQ(OrderedJson::parse(lines.back())["anchored"], false);

  EXPECT_EQ(RunLine(line + "-"), 0);
  EXPECT_THAT(OutJson(), SizeIs(lines.size()));
  EXPECT_THAT(Err(), HasSubstr("speedup"));
  EXPECT_THAT(calls_.stored, IsEmpty());
}

TEST_F(BenchCommandTest, AFileThatCannotBeWrittenIsRefusedBeforeTheFirstQuestion) {
  const std::string line = "bench --measure f1 --modes full --data " + Data("data.json", 1);
  for (const char* flag : {" --json ", " --per-question "}) {
    EXPECT_EQ(RunLine(line + flag + Path("no/rows")), 2) << flag;
    EXPECT_THAT(Err(), HasSubstr("cannot write " + Path("no/rows") + ": No such file or directory"));
  }
  EXPECT_THAT(calls_.log, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(Path("rows")));
  // What fails only now costs neither the table nor the other file.
  const std::string rows = Path("rows");
  EXPECT_EQ(RunLine(line + " --per-question /dev/full --json " + rows), 1);
  EXPECT_THAT(Err(), HasSubstr("cannot write /dev/full"));
  EXPECT_THAT(Out(), HasSubstr("questions: 1"));
  EXPECT_THAT(*ReadFileOrStdin(rows), HasSubstr("\"mode\":\"full\""));
}

TEST_F(BenchCommandTest, InterruptedBenchTellsWhatItHasMeasured) {
  const std::string data = File("data.json", R"([
      {"question": "Q1", "answers": ["a"], "ctxs": [{"title": "T", "text": "One."}]},
      {"question": "Q2", "answers": ["a"], "ctxs": [{"title": "T", "text": "Another."}]}])");
  calls_.on_generate = [this](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    if (calls_.generated.size() == 4) {  // three for the first question
      cancellation_.Request();
      return absl::CancelledError("stopped by the client");
    }
    send(FakeCalls::PromptEvent(request));
    send(FakeCalls::FinishedEvent(v1::FINISH_REASON_MAX_TOKENS));
    return absl::OkStatus();
  };
  EXPECT_EQ(Run({"bench", "--data", data, "--modes", "full", "--measure", "ttft", "--json", "-"}), 130);
  ASSERT_THAT(OutJson(), SizeIs(1));
  EXPECT_EQ(OutJson()[0]["n"], 1);
  EXPECT_THAT(Err(), HasSubstr("interrupted"));
}

TEST_F(BenchCommandTest, ATableForEachDataFile) {
  const std::string line = "bench --measure f1 --rows reuse,query:0.05 --against cacheblend --data " +
                           Data("first.json", 3) + " --data " + Data("second.json", 4) + " --n 3 --first 1";
  EXPECT_EQ(RunLine(line), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("first, questions: 2\n"));
  EXPECT_THAT(Out(), HasSubstr("second, questions: 3\n"));
  EXPECT_EQ(RunLine(line + " --json -"), 0) << Err();
  const std::vector<OrderedJson> rows = OutJson();
  ASSERT_THAT(rows, SizeIs(2 * 3));
  EXPECT_EQ(rows[0]["data"], "first");
  EXPECT_EQ(rows[5]["data"], "second");
  EXPECT_EQ(rows[5]["n"], 3);
  EXPECT_EQ(rows[5]["policy"], "hkvd");
  EXPECT_EQ(rows[5]["anchored"], false);
  EXPECT_EQ(rows[5]["corrected"], false);
  EXPECT_EQ(rows[4]["against"]["row"], "cacheblend");
  EXPECT_EQ(rows[4]["exact_match_mean"], 1);
}

TEST_F(BenchCommandTest, GoesOnWhereItStopped) {
  const std::string line = "bench --measure f1 --modes full,reuse --data " + Data("data.json", 4) +
                           " --resume " + Path("results.jsonl") + " --json -";
  calls_.on_generate = [this](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    if (calls_.generated.size() == 6) return absl::UnavailableError("gone");  // two for each question
    send(FakeCalls::PromptEvent(request));
    send(FakeCalls::TextEvent("Hello you", {1}));
    send(FakeCalls::FinishedEvent(v1::FINISH_REASON_MAX_TOKENS));
    return absl::OkStatus();
  };
  EXPECT_NE(RunLine(line), 0);
  EXPECT_EQ(OutJson().at(0)["n"], 2);
  calls_.generated.clear();
  EXPECT_EQ(RunLine(line), 0) << Err();
  EXPECT_EQ(OutJson().at(0)["n"], 4);
  EXPECT_THAT(calls_.generated, SizeIs(2 * 2));
  calls_.generated.clear();
  EXPECT_EQ(RunLine(line + " --n 3"), 0) << Err();
  EXPECT_EQ(OutJson().at(0)["n"], 3);
  EXPECT_THAT(calls_.generated, IsEmpty());
  EXPECT_NE(RunLine(line + " --passages 1"), 0);
  EXPECT_THAT(Err(), HasSubstr("passages is 0 there and 1 here"));
}

TEST_F(BenchCommandTest, ComparesOverAsManyTokensAsAsked) {
  calls_.on_generate = [](const v1::GenerateRequest& request, const auto& send) {
    send(FakeCalls::PromptEvent(request));
    for (int32_t i = 0; i < request.sampling().max_tokens(); ++i) send(FakeCalls::TextEvent("x", {i}));
    send(FakeCalls::FinishedEvent(v1::FINISH_REASON_MAX_TOKENS));
    return absl::OkStatus();
  };
  const std::string line = "bench --measure kl --modes reuse --data " + Data("data.json", 1);
  EXPECT_NE(RunLine(line + " --kl-tokens 128"), 0);  // the fake scores one token
  ASSERT_THAT(calls_.generated, SizeIs(1));
  EXPECT_EQ(calls_.generated[0].sampling().max_tokens(), 128);
  ASSERT_THAT(calls_.scored, SizeIs(testing::Ge(1)));
  EXPECT_THAT(calls_.scored[0].continuation_token_ids().ids(), SizeIs(128));
  EXPECT_NE(RunLine(line + " --kl-tokens 0"), 0);
  EXPECT_THAT(Err(), HasSubstr("--kl-tokens"));
}

TEST_F(BenchCommandTest, ShardsMergedAreTheWhole) {
  const std::string line =
      "bench --measure kl,nll,f1 --modes reuse,blend --data " + Data("a.json", 3) + " " + Data("b.json", 4);
  calls_.on_score = [](const v1::ScoreRequest& request, const auto& send) {
    v1::ScoreEvent event;
    *event.mutable_prompt() = FakeCalls::Report(request.prompt(), request.blend());
    send(event);
    const double p = request.blend().reuse() == v1::REUSE_NOTHING
                         ? 0.5
                         : 0.5 + 0.05 * static_cast<double>(request.prompt().chunks(0).size());
    const int count = request.has_continuation_text() ? 1 : request.continuation_token_ids().ids_size();
    for (int i = 0; i < count; ++i) {
      event.mutable_token()->set_logprob(std::log(p));
      event.mutable_token()->clear_distribution();
      event.mutable_token()->add_distribution(std::log(p));
      event.mutable_token()->add_distribution(std::log(1 - p));
      send(event);
    }
    return absl::OkStatus();
  };
  EXPECT_EQ(RunLine(line + " --against reuse --json " + Path("whole")), 0) << Err();
  const std::string whole = Out();
  EXPECT_EQ(RunLine(line + " --shard 1/2 --resume " + Path("1")), 0) << Err();
  EXPECT_EQ(RunLine(line + " --shard 2/2 --resume " + Path("2")), 0) << Err();
  calls_.log.clear();
  EXPECT_EQ(Run({"bench", "--merge", Path("1"), Path("2"), "--against", "reuse", "--json", Path("merged")}),
            0)
      << Err();
  EXPECT_EQ(Out(), whole);
  EXPECT_EQ(*ReadFileOrStdin(Path("merged")), *ReadFileOrStdin(Path("whole")));
  EXPECT_THAT(calls_.log, IsEmpty());
  EXPECT_EQ(Run({"bench", "--merge", Path("1"), "--against", "cacheblend"}), 2);
  EXPECT_THAT(Err(), HasSubstr("these results have reuse, query:0.15"));
}

TEST_F(BenchCommandTest, SaysWhatCameFromTheCache) {
  const std::string line = "bench --measure f1 --modes reuse --data " + Data("data.json", 2) +
                           " --reference-cache " + Path("cache");
  EXPECT_EQ(RunLine(line), 0) << Err();
  EXPECT_THAT(Err(), HasSubstr("0 results from"));
  EXPECT_EQ(RunLine(line), 0) << Err();
  EXPECT_THAT(Err(), HasSubstr("2 results from " + Path("cache") + ", 0 computed"));
  for (const auto& entry : std::filesystem::directory_iterator(Path("cache"))) {
    ASSERT_TRUE(WriteFile(entry.path().string(), "damaged").ok());
  }
  EXPECT_EQ(RunLine(line), 0) << Err();
  EXPECT_THAT(Err(), HasSubstr("is computed again"));
}

TEST_F(BenchCommandTest, AnEngineThatLearnsMeanwhileIsNoticed) {
  calls_.info.mutable_kv_format()->set_correction("one");
  calls_.on_generate = [this](const v1::GenerateRequest& request, const auto& send) -> absl::Status {
    calls_.info.mutable_kv_format()->set_correction("two");
    send(FakeCalls::PromptEvent(request));
    send(FakeCalls::FinishedEvent(v1::FINISH_REASON_MAX_TOKENS));
    return absl::OkStatus();
  };
  const std::string line = "bench --measure ttft --modes reuse --data " + Data("data.json", 1);
  EXPECT_EQ(RunLine(line), 0);
  EXPECT_THAT(Err(), HasSubstr("from 'one' to 'two'"));
  EXPECT_EQ(RunLine(line), 0);
  EXPECT_EQ(Err(), "");
}

TEST_F(BenchCommandTest, APartMayBeEmpty) {
  EXPECT_EQ(RunLine("bench --measure ttft --modes reuse --shard 3/3 --data " + Data("data.json", 2)), 0);
  EXPECT_EQ(Out(), "");
  EXPECT_THAT(Err(), HasSubstr("no questions"));
}

}  // namespace
}  // namespace kvblend::server::cli
