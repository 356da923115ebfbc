// The command line from arguments to exit code, over fake calls.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/files.h"
#include "tests/support/message_text.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using test_support::ExpectMessage;
using test_support::FromText;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

TEST_F(CommandsTest, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"nosuch", "'nosuch' is no command; allowed: generate, chunks, precompute, "},
      {"nosuch --help", "'nosuch' is no command; allowed: generate, chunks, precompute, "},
      {"chunks delete", "'delete' is no command; allowed: put, prefetch, list, stat, rm, pin"},
      {"chunks list extra", "'extra' belongs to no flag of this command"},
      {"generate --question Q --nosuch", "'--nosuch' belongs to no flag of this command"},
      {"generate --question Q --timeout 0", "--timeout is '0'; allowed: a number above 0"},
      {"generate --question Q --timeout abc", "--timeout is 'abc'; allowed: a number above 0"},
      {"generate --question Q --timeout inf", "--timeout is 'inf'; allowed: a number above 0"},
      {"score --question Q --continuation-ids 1,x",
       "--continuation-ids is 'x'; allowed: a whole number, 0 to 2147483647"},
      {"chunks list --limit 0", "--limit is '0'; allowed: a whole number from 1"},
      {"bench --n 0", "--n is '0'; allowed: a whole number from 1"},
      {"bench --n 1.5", "--n is '1.5'; allowed: a whole number from 1"},
      {"bench --repeat 1001", "--repeat is '1001'; allowed: a whole number, 1 to 1000"},
      {"bench serve --data d --duration 0", "--duration is '0'; allowed: a number, 0.001 to 1000000"},
      {"bench serve --data d --arrivals often", "--arrivals is 'often'; allowed: poisson, fixed"},
      {"generate --question Q --model m --threads all",
       "--threads is 'all'; allowed: a whole number, 0 to 1024"},
      {"generate --question Q --model m --chunk-store-bytes 1x",
       "--chunk-store-bytes is '1x'; allowed: bytes, as 65536"},
      {"generate --question Q --model m --chunk-redis-tls-ca gone",
       "--chunk-redis-tls-ca is 'gone'; allowed: a file that is there"}};
  for (const auto& [line, message] : cases) {
    EXPECT_EQ(RunLine(line), 2) << line;
    EXPECT_THAT(Err(), StartsWith(message)) << line;
    EXPECT_EQ(Out(), "") << line;
  }
}

TEST_F(CommandsTest, APutThatNobodyTookHasNoSummary) {
  calls_.put_status = absl::UnavailableError("nobody listens");
  EXPECT_EQ(Run({"chunks", "put", File("a.txt", "text")}), 4);
  EXPECT_THAT(Err(), AllOf(HasSubstr("nobody listens"), Not(HasSubstr("of 1 chunks"))));
}

TEST_F(CommandsTest, WrongUsageIsTwoAndSaysSoOnStandardError) {
  const std::string data = File("data.json", "[]");
  for (const std::string& line :
       std::vector<std::string>{"",
                                "dance",
                                "generate --no-such-flag",
                                "generate",  // no question
                                "generate --question Q --ratio much",
                                "generate --question Q --policy best",
                                "generate --question Q --anchored --isolated",
                                "generate --question Q --timeout -1",
                                "generate --question Q --model m --server s:1",
                                "generate --question Q --threads 2",  // without --model
                                "generate --question Q --model m --threads -1",
                                "score --question Q",
                                "score --question Q --continuation a --continuation-ids 1",
                                "chunks",
                                "chunks rm",
                                "chunks rm --all key",
                                "chunks put",
                                "bench",
                                "bench --data " + data,  // no questions in it
                                "bench --modes fast --data " + data,
                                "bench --measure beauty --data " + data,
                                "bench --ratio 2 --data " + data,
                                "bench --corrected maybe --data " + data,
                                "bench --shard 3/2 --data " + data,
                                "bench --rows fast --data " + data,
                                "bench --rows reuse,reuse --data " + data,
                                "bench --rows reuse --modes full --data " + data,
                                "bench --against fast --data " + data,
                                "bench --merge /no/such/file --data " + data,
                                "bench --merge " + data,     // no results
                                "calibrate --data " + data,  // without --model
                                "bench --n 0 --data " + data}) {
    EXPECT_EQ(RunLine(line), 2) << line;
    EXPECT_EQ(Out(), "") << line;
    EXPECT_NE(Err(), "") << line;
  }
  EXPECT_THAT(calls_.log, IsEmpty());
}

TEST_F(CommandsTest, ServerOrModel) {
  EXPECT_EQ(Run({"info"}), 0);
  EXPECT_EQ(connection_.server, "127.0.0.1:50051");
  EXPECT_EQ(connection_.engine_options.model_path, "");
  setenv("KVBLEND_SERVER", "far:1", 1);
  EXPECT_EQ(Run({"info"}), 0);
  EXPECT_EQ(connection_.server, "far:1");
  EXPECT_EQ(Run({"info", "--server", "near:2"}), 0);
  EXPECT_EQ(connection_.server, "near:2");
  // A model on the command line wins over a server in the environment.
  EXPECT_EQ(Run({"info", "--model", "m.gguf", "--threads", "3", "--chunk-store-bytes", "2MB"}), 0);
  EXPECT_EQ(connection_.engine_options.model_path, "m.gguf");
  EXPECT_EQ(connection_.engine_options.num_threads, 3);
  EXPECT_EQ(connection_.engine_options.chunk_store_bytes, 2'000'000);
  unsetenv("KVBLEND_SERVER");
}

TEST_F(CommandsTest, TheServersAddressHasAPort) {
  for (const char* server : {"far:50051", "10.0.0.1:1", "[::1]:65535", "unix:/run/kvblend", "dns:///far:1"}) {
    EXPECT_EQ(Run({"info", "--server", server}), 0) << Err();
    EXPECT_EQ(connection_.server, server);
  }
  for (const char* server :
       {"", "far", "far:", ":1", "far:0", "far:65536", "far:x", "::1:1", "http://far:1"}) {
    EXPECT_EQ(Run({"info", "--server", server}), 2) << server;
    EXPECT_THAT(Err(),
                StartsWith(absl::StrCat("--server is '", server, "'; allowed: HOST:PORT or [IPV6]:PORT")));
  }
}

TEST_F(CommandsTest, OutputThatIsNotTakenIsAnError) {
  class FullDisk : public std::streambuf {};
  FullDisk full_disk;
  std::ostream out(&full_disk);
  Terminal terminal{out, err_};
  const auto make_calls = [this](const Connection&, Cancellation&,
                                 Terminal&) -> absl::StatusOr<std::shared_ptr<Calls>> {
    return calls_.Lend();
  };
  EXPECT_EQ(RunCommandLine({"info"}, "1.2.3", terminal, cancellation_, make_calls), 1);
  EXPECT_THAT(Err(), HasSubstr("standard output did not take all"));
}

TEST_F(CommandsTest, APageThatCannotBeWrittenIsRefusedBeforeTheAnswer) {
  const std::string page = (folder_ / "page.html").string();
  EXPECT_EQ(Run({"generate", "--question", "Q", "--html", page + "/x"}), 2);
  EXPECT_THAT(Err(), HasSubstr(absl::StrCat("cannot write ", page, "/x: No such file or directory")));
  EXPECT_THAT(calls_.log, IsEmpty());
  EXPECT_EQ(Run({"generate", "--question", "Q", "--html", page}), 0);
  EXPECT_THAT(*ReadFileOrStdin(page), HasSubstr("<html"));
}

TEST_F(CommandsTest, ACorrectionTakesNoDevicesPlace) {
  EXPECT_EQ(Run({"calibrate", "--model", "m", "--output", "/dev/null", "--data", File("data.json", "[]")}),
            2);
  EXPECT_THAT(Err(),
              HasSubstr("--output is /dev/null, which is a device; allowed: a regular file, or a new name"));
  const std::string loop = (folder_ / "loop").string();
  std::filesystem::create_symlink("loop", loop);
  for (const char* flag : {"--output", "--resume"}) {
    EXPECT_EQ(Run({"calibrate", "--model", "m", flag, loop, "--data", File("data.json", "[]")}), 2);
    EXPECT_THAT(Err(),
                HasSubstr(absl::StrCat(flag, " is ", loop, ", which is a link in a circle; allowed: ")));
  }
}

TEST_F(CommandsTest, AChunkMayComeThroughAPipeIfSomebodyWritesIt) {
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(Run({"generate", "--question", "Q", "--chunk-file", pipe}), 2);
  EXPECT_THAT(Err(), HasSubstr(absl::StrCat("cannot read ", pipe, ": it is a pipe that nobody writes to")));
  EXPECT_THAT(calls_.log, IsEmpty());
  std::thread writer([&] { std::ofstream(pipe) << "Paris is in France."; });
  EXPECT_EQ(Run({"generate", "--question", "Q", "--chunk-file", pipe}), 0) << Err();
  writer.join();
  EXPECT_EQ(calls_.generated.at(0).prompt().chunks(0), "Paris is in France.");
}

TEST_F(CommandsTest, HealthIsAnExitCode) {
  EXPECT_EQ(Run({"health"}), 0);
  EXPECT_EQ(Out(), "serving\n");
  calls_.health = absl::UnavailableError("server x is not serving");
  EXPECT_EQ(Run({"health", "--server", "x:1"}), 4);
  EXPECT_EQ(connection_.server, "x:1");
  EXPECT_EQ(Out(), "");
  EXPECT_NE(Err(), "");
  EXPECT_EQ(Run({"health", "--model", "m.gguf"}), 2);
}

TEST_F(CommandsTest, GenerateStreamsTextAndReportsOnStandardError) {
  const std::string chunk = File("chunk.txt",
                                 "\xEF\xBB\xBF"
                                 "from a file");  // as some editors write it
  EXPECT_EQ(
      RunLine("generate --system S --lead-in L --chunk one --chunk two --question Q --isolated --policy hkvd "
              "--ratio 0.3 --no-store-misses --max-tokens 9 --stop x --stop y --seed 4 --namespace n "
              "--chunk-file " +
              chunk),
      0);
  EXPECT_EQ(Out(), "Hello you\n");
  EXPECT_THAT(Err(), HasSubstr("prompt: 100 tokens"));
  ASSERT_THAT(calls_.generated, SizeIs(1));
  const v1::GenerateRequest& request = calls_.generated[0];
  ExpectMessage(request, R"(  # what was not given is left to the engine
      namespace: "n"
      prompt { system_text: "S"  lead_in: "L"  chunks: [ "one", "two", "from a file" ]  question: "Q" }
      blend { anchoring: ANCHORING_ISOLATED  policy: POLICY_HKVD  ratio_mode: RATIO_MODE_FIXED  ratio: 0.3
              store_misses: false }
      sampling { max_tokens: 9  stop: [ "x", "y" ]  seed: 4 })");
  EXPECT_EQ(calls_.deadlines[0], absl::InfiniteFuture());
}

TEST_F(CommandsTest, TextsArriveAsTheyAre) {
  EXPECT_EQ(Run({"generate", "--question", "{}", "--stop", "[a,b]", "--namespace", ""}), 0);
  EXPECT_EQ(calls_.generated.at(0).prompt().question(), "{}");
  EXPECT_THAT(calls_.generated.at(0).sampling().stop(), ElementsAre("[a,b]"));
}

TEST_F(CommandsTest, ATimeoutIsADeadline) {
  const absl::Time before = absl::Now();
  EXPECT_EQ(Run({"generate", "--question", "Q", "--timeout", "60"}), 0);
  EXPECT_GE(calls_.deadlines.at(0), before + absl::Seconds(60));
  EXPECT_LE(calls_.deadlines.at(0), absl::Now() + absl::Seconds(60));
}

TEST_F(CommandsTest, RefusedFlagsNameWhatIsAllowed) {
  const auto refusal = [this](const std::string& flag, const std::string& value) {
    EXPECT_EQ(Run({"generate", "--question", "Q", flag, value}), 2);
    return Err();
  };
  EXPECT_THAT(refusal("--policy", "best"),
              HasSubstr("--policy is 'best'; allowed: query, hkvd, link, none, all, random"));
  EXPECT_THAT(refusal("--top-k", "1.5"), HasSubstr("--top-k is '1.5'; allowed: a whole number"));
  EXPECT_THAT(refusal("--seed", "-1"), HasSubstr("--seed is '-1'; allowed: a whole number from 0"));
  EXPECT_THAT(refusal("--top-p", "much"), HasSubstr("--top-p is 'much'; allowed: a number"));
  EXPECT_THAT(refusal("--ratio", "much"), HasSubstr("--ratio is 'much'; allowed: 0 to 1, or auto"));
  EXPECT_THAT(calls_.generated, IsEmpty());
  EXPECT_EQ(Run({"generate", "--help"}), 0);
  EXPECT_THAT(Out(), HasSubstr("chosen: query (default), hkvd, link, none, all or random"));
}

TEST_F(CommandsTest, GenerateQuietSaysNothingElse) {
  EXPECT_EQ(Run({"generate", "--question", "Q", "--quiet"}), 0);
  EXPECT_EQ(Out(), "Hello you\n");
  EXPECT_EQ(Err(), "");
}

TEST_F(CommandsTest, GenerateJsonIsOneObjectPerEvent) {
  EXPECT_EQ(Run({"generate", "--question", "Q", "--chunk", "c", "--json"}), 0);
  const std::vector<OrderedJson> events = OutJson();
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[0]["prompt"]["prompt_tokens"], 100);
  EXPECT_EQ(events[0]["prompt"]["chunks"][0]["source"], "CHUNK_SOURCE_BLENDED");
  EXPECT_EQ(events[1]["text"]["text"], "Hello");
  EXPECT_EQ(events[2]["text"]["token_ids"], OrderedJson({8}));
  EXPECT_EQ(events[3]["finished"]["reason"], "FINISH_REASON_END_OF_TEXT");
  EXPECT_EQ(Err(), "");
}

TEST_F(CommandsTest, TheRatioIsANumberOrAuto) {
  EXPECT_EQ(Run({"generate", "--question", "Q"}), 0);
  EXPECT_FALSE(calls_.generated.at(0).blend().has_ratio());  // the engine's or the server's
  EXPECT_EQ(calls_.generated.at(0).blend().ratio_mode(), v1::RATIO_MODE_UNSPECIFIED);
  EXPECT_EQ(
      Run({"generate", "--question", "Q", "--ratio", "auto", "--ratio-min", "0.1", "--ratio-max", "0.6"}), 0);
  EXPECT_EQ(calls_.generated.at(1).blend().ratio_mode(), v1::RATIO_MODE_AUTO);
  EXPECT_EQ(calls_.generated.at(1).blend().ratio_min(), 0.1);
  EXPECT_EQ(calls_.generated.at(1).blend().ratio_max(), 0.6);
  EXPECT_EQ(Run({"generate", "--question", "Q", "--ratio", "0.4"}), 0);
  EXPECT_EQ(calls_.generated.at(2).blend().ratio_mode(), v1::RATIO_MODE_FIXED);
  EXPECT_EQ(calls_.generated.at(2).blend().ratio(), 0.4);
}

TEST_F(CommandsTest, FlagsOverrideTheRequestFile) {
  const std::string file = File("request.json", R"({"prompt": {"question": "old", "chunks": ["a"]},
      "blend": {"policy": "link", "ratio": 0.9}, "sampling": {"max_tokens": 3}})");
  EXPECT_EQ(Run({"generate", "--request", file, "--question", "new", "--chunk", "b", "--ratio", "0.2"}), 0);
  const v1::GenerateRequest& request = calls_.generated.at(0);
  EXPECT_EQ(request.prompt().question(), "new");
  EXPECT_THAT(request.prompt().chunks(), ElementsAre("a", "b"));
  EXPECT_EQ(request.blend().policy(), v1::POLICY_LINK);
  EXPECT_EQ(request.blend().ratio(), 0.2);
  EXPECT_EQ(request.sampling().max_tokens(), 3);
}

TEST_F(CommandsTest, GeneratePutsChunksFirstWhenAsked) {
  EXPECT_EQ(
      Run({"generate", "--question", "Q", "--chunk", "c", "--system", "S", "--priority", "low", "--put"}), 0);
  EXPECT_THAT(calls_.log, ElementsAre("put", "generate"));
  EXPECT_EQ(calls_.put[0].system_text(), "S");
  EXPECT_EQ(calls_.put[0].priority(), v1::PRIORITY_LOW);
  EXPECT_EQ(Run({"generate", "--question", "Q", "--put"}), 0);  // nothing to put
  EXPECT_THAT(calls_.log, ElementsAre("put", "generate", "generate"));
}

TEST_F(CommandsTest, ErrorsBecomeExitCodes) {
  const auto run_with = [this](absl::Status status) {
    calls_.on_generate = [status](const v1::GenerateRequest&, const auto&) { return status; };
    const int code = Run({"generate", "--question", "Q", "--json"});
    EXPECT_EQ(Out(), "");
    EXPECT_THAT(Err(), HasSubstr(std::string(status.message())));
    return code;
  };
  EXPECT_EQ(run_with(absl::InvalidArgumentError("ratio is 7; allowed: 0 to 1")), 2);
  EXPECT_EQ(run_with(absl::ResourceExhaustedError("queue full")), 4);
  EXPECT_EQ(run_with(absl::InternalError("broken")), 1);
  connect_status_ = absl::NotFoundError("no such model");
  EXPECT_EQ(Run({"generate", "--question", "Q"}), 3);
  EXPECT_EQ(Run({"generate", "--question", "Q", "--chunk-file", "/no/such/file"}), 3);
}

TEST_F(CommandsTest, InterruptionIs130AndKeepsWhatCame) {
  calls_.on_generate = [this](const v1::GenerateRequest&, const auto& send) {
    send(FakeCalls::TextEvent("Hel", {7}));
    cancellation_.Request();
    return absl::CancelledError("stopped by the client");
  };
  EXPECT_EQ(Run({"generate", "--question", "Q"}), 130);
  EXPECT_EQ(Out(), "Hel\n");
  EXPECT_THAT(Err(), HasSubstr("interrupted"));
}

TEST_F(CommandsTest, ScorePrintsTokensAndTotals) {
  EXPECT_EQ(Run({"score", "--question", "Q", "--continuation", "P"}), 0);
  EXPECT_THAT(Out(), HasSubstr("perplexity 1.649"));  // exp(0.5)
  EXPECT_EQ(calls_.scored.at(0).continuation_text(), "P");
  EXPECT_FALSE(calls_.scored.at(0).return_distributions());
  EXPECT_EQ(Run({"score", "--question", "Q", "--continuation-ids", "5,6", "--json"}), 0);
  EXPECT_THAT(calls_.scored.at(1).continuation_token_ids().ids(), ElementsAre(5, 6));
  const std::vector<OrderedJson> lines = OutJson();
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[1]["token"]["token_id"], 5);
  EXPECT_EQ(lines[2]["total"]["nll_per_token"], 0.5);
}

TEST_F(CommandsTest, ChunksPutReadsFilesAndJsonLines) {
  const std::string a = File("a.txt", "1");
  const std::string lines = File("c.jsonl", "\"22\"\n\n{\"text\": \"333\", \"id\": 1}\n");
  EXPECT_EQ(Run({"chunks", "put", a, "--jsonl", lines, "--system", "S", "--lead-in", "L", "--label", "x",
                 "--pin", "--json"}),
            0);
  ASSERT_THAT(calls_.put, SizeIs(1));
  EXPECT_THAT(calls_.put[0].chunks(), ElementsAre("1", "22", "333"));
  EXPECT_EQ(calls_.put[0].lead_in(), "L");
  EXPECT_EQ(calls_.put[0].label(), "x");
  EXPECT_TRUE(calls_.put[0].pin());
  ASSERT_THAT(OutJson(), SizeIs(3));
  EXPECT_EQ(OutJson()[2]["done"], 3);
  EXPECT_EQ(OutJson()[2]["already_present"], false);
  EXPECT_EQ(Run({"chunks", "put", "--jsonl", File("bad.jsonl", "\"ok\"\n{\"txt\": 1}\n")}), 2);
  EXPECT_THAT(Err(), HasSubstr("bad.jsonl line 2"));
}

TEST_F(CommandsTest, ChunksPutSendsACorpusInBatchesAndCountsItAsOne) {
  std::string lines;
  for (int i = 0; i < 150; ++i) lines += "\"" + std::string(i + 1, 'x') + "\"\n";
  EXPECT_EQ(Run({"chunks", "put", "--jsonl", File("corpus.jsonl", lines), "--json"}), 0);
  ASSERT_THAT(calls_.put, SizeIs(3));
  EXPECT_THAT(calls_.put[0].chunks(), SizeIs(64));
  EXPECT_THAT(calls_.put[2].chunks(), SizeIs(22));
  const std::vector<OrderedJson> progress = OutJson();
  ASSERT_THAT(progress, SizeIs(150));
  for (int i = 0; i < 150; ++i) {
    EXPECT_EQ(progress[i]["index"], i);
    EXPECT_EQ(progress[i]["done"], i + 1);
    EXPECT_EQ(progress[i]["total"], 150);
  }
}

TEST_F(CommandsTest, ChunksPrefetchSaysWhereTheyWere) {
  const std::string known = File("known.txt", "four");
  const std::string unknown = File("unknown.txt", "seven..");
  ASSERT_EQ(Run({"chunks", "put", "--system", "S", known}), 0);
  calls_.stored.begin()->second.set_tier(v1::TIER_DISK);
  calls_.stored.begin()->second.set_label("two\nlines");
  ASSERT_EQ(Run({"chunks", "list"}), 0);
  EXPECT_THAT(Out(), HasSubstr("  two\\x0alines\n"));
  EXPECT_EQ(Run({"chunks", "prefetch", "--system", "S", "--lead-in", "L", "--namespace", "n",
                 "--read-namespace", "m", "--read-namespace", "o", known}),
            0);
  EXPECT_THAT(Out(), HasSubstr("from disk"));
  ASSERT_THAT(calls_.prefetched, SizeIs(1));
  EXPECT_EQ(calls_.prefetched[0].system_text(), "S");
  EXPECT_EQ(calls_.prefetched[0].lead_in(), "L");
  EXPECT_EQ(calls_.prefetched[0].namespace_(), "n");
  EXPECT_THAT(calls_.prefetched[0].read_namespaces(), ElementsAre("m", "o"));

  EXPECT_EQ(Run({"chunks", "prefetch", "--json", known, unknown}), 3);
  const std::vector<OrderedJson> objects = OutJson();
  ASSERT_THAT(objects, SizeIs(2));
  EXPECT_EQ(objects[0]["tier"], "TIER_DISK");
  EXPECT_EQ(objects[1]["num_tokens"], 3);
  EXPECT_THAT(Err(), HasSubstr("1 of 2 chunks are not stored"));
  EXPECT_EQ(Run({"chunks", "prefetch"}), 2);
}

TEST_F(CommandsTest, ChunksListFollowsPages) {
  for (const char* key : {"a", "b", "c", "d", "e"}) calls_.stored[key] = FakeCalls::Chunk(key);
  EXPECT_EQ(Run({"chunks", "list", "--json"}), 0);
  EXPECT_THAT(OutJson(), SizeIs(5));
  EXPECT_EQ(Run({"chunks", "list", "--limit", "3"}), 0);
  EXPECT_THAT(Out(), HasSubstr("tokens"));
  EXPECT_THAT(Out(), HasSubstr("\nc "));
  EXPECT_THAT(Out(), Not(HasSubstr("\nd ")));
  calls_.stored.clear();
  EXPECT_EQ(Run({"chunks", "list"}), 0);
  EXPECT_EQ(Out(), "");
}

TEST_F(CommandsTest, ChunksStatRemovePin) {
  for (const char* key : {"a", "b", "c"}) calls_.stored[key] = FakeCalls::Chunk(key);
  EXPECT_EQ(Run({"chunks", "stat", "a", "c", "--json"}), 0);
  EXPECT_THAT(OutJson(), SizeIs(2));
  EXPECT_EQ(Run({"chunks", "stat", "a", "zz"}), 3);
  EXPECT_THAT(Out(), HasSubstr("\na "));
  EXPECT_THAT(Err(), HasSubstr("zz"));
  EXPECT_EQ(Run({"chunks", "pin", "a", "b"}), 0);
  EXPECT_TRUE(calls_.stored["a"].pinned());
  EXPECT_EQ(Run({"chunks", "pin", "a", "--unpin"}), 0);
  EXPECT_FALSE(calls_.stored["a"].pinned());
  EXPECT_EQ(Run({"chunks", "rm", "a", "a2", "--json"}), 3);
  EXPECT_THAT(OutJson().at(0).dump(), HasSubstr(R"({"deleted":"1","missing_keys":["a2"])"));
  EXPECT_EQ(Run({"chunks", "rm", "--all"}), 0);
  EXPECT_EQ(Out(), "2 chunks removed\n");
  EXPECT_THAT(calls_.stored, IsEmpty());
}

TEST_F(CommandsTest, CorrectionIsShownAndSteered) {
  calls_.correction = FromText<v1::CorrectionInfo>(R"(
      version: "abcd"  learning: LEARNING_STATE_FROZEN  learned: true  tokens: 640  fitted_chunks: 8  kept_back_chunks: 2
      fits: 3  fits_applied: 1  deviation_before: [ 0, 0.5 ]  deviation_after: [ 0, 0.125 ]
      shared: true  replicas_found: 5  replicas_merged: 4  moments_published: 7  moments_refused: 8)");
  EXPECT_EQ(Run({"correction"}), 0);
  EXPECT_THAT(
      Out(),
      HasSubstr("in force      version abcd, learned while serving\n"
                "learning      frozen\n"
                "seen          640 tokens; 8 chunks to fit, 2 to judge by, 0 waiting\n"
                "fits          3 tried, 1 applied since the start\n"
                "shared        5 other replicas found, 4 in the last fit; published 7 times, 8 refused, "
                "0 failures\n"));
  EXPECT_THAT(Out(), HasSubstr("    1              0.50000    0.12500\n"));
  EXPECT_EQ(Run({"correction", "reset", "--json"}), 0);
  EXPECT_EQ(OutJson().at(0)["version"], "abcd");
  EXPECT_THAT(calls_.correction_actions,
              ElementsAre(v1::CORRECTION_ACTION_SHOW, v1::CORRECTION_ACTION_RESET));
  EXPECT_EQ(Run({"correction", "melt"}), 2);
  EXPECT_THAT(Err(), HasSubstr("action is 'melt'; allowed: show, freeze, learn, reset"));
  calls_.correction.Clear();
  EXPECT_EQ(Run({"correction", "show"}), 0);
  EXPECT_THAT(Out(), HasSubstr("in force      none: stored KV is placed as it is\n"));
}

TEST_F(CommandsTest, InfoForPeopleAndMachines) {
  calls_.info = FromText<v1::GetInfoResponse>(R"(
      version: "1.2.3"  model { name: "fake" }  store { prompt_chunks: 5  prompt_chunks_found: 4  evictions: 3 }
      load { pages_used: 5  pages_total: 9  pages_kept: 3  requests_running: 2  sequences_decoding: 1
             requests_waiting: 4  tokens_waiting: 800  predicted_wait_seconds: 2.5  decoded_tokens: 77 }
      device { device: "cuda:1"  reason: "GPU with compute capability 9.0"
               memory_used_bytes: 3145728  memory_total_bytes: 4194304 }
      tiers { tier: TIER_DISK  failing: true
              stats { key: "entries"  value: 12 }  stats { key: "pinned_entries"  value: 1 }
              stats { key: "bytes"  value: 3145728 }  stats { key: "quota_bytes"  value: 4194304 }
              stats { key: "opens"  value: 7 } }
      tiers { tier: TIER_REDIS  stats { key: "nodes"  value: 3 }  stats { key: "nodes_working"  value: 2 } })");
  EXPECT_EQ(Run({"info"}), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("version       1.2.3"), HasSubstr("of 5 chunks of prompts 4 found;")));
  EXPECT_THAT(Out(), HasSubstr("device        cuda:1: GPU with compute capability 9.0\nGPU memory    "));
  EXPECT_THAT(Out(), HasSubstr("KV pages      5 of 9 in use, 3 kept between turns\n"
                               "requests      2 running (1 decoding), 4 waiting (800 tokens, about 2.5 s); "
                               "77 tokens of answers decoded\n"));
  EXPECT_THAT(Out(), HasSubstr("\non disk       12 chunks (1 pinned), 3.0 MiB of 4.0 MiB; 7 read, 0 evicted, "
                               "0 damaged; the disk is full or failing\n"
                               "in Redis      2 of 3 nodes work; 0 hits"));
  EXPECT_EQ(Run({"info", "--json"}), 0);
  EXPECT_EQ(OutJson().at(0)["model"]["name"], "fake");
  EXPECT_EQ(OutJson().at(0)["device"]["memory_used_bytes"], "3145728");
  EXPECT_EQ(OutJson().at(0)["load"]["pages_total"], 9);
  EXPECT_EQ(OutJson().at(0)["tiers"][0]["stats"]["entries"], 12);

  // A tenant is not shown zeros for what is left out.
  calls_.info = FromText<v1::GetInfoResponse>(
      R"(totals_left_out: true  load { pages_total: 9 }  store { budget_bytes: 4194304 })");
  EXPECT_EQ(Run({"info"}), 0);
  EXPECT_THAT(Out(), HasSubstr("chunk store   of 4.0 MiB\nKV pages      9\n"
                               "load          told to admins only: it sums over all tenants\n"));
  EXPECT_THAT(Out(), Not(HasSubstr("requests")));
}

}  // namespace
}  // namespace kvblend::server::cli
