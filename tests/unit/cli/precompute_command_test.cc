// `kvblend precompute` over fake calls, which cut every so many bytes and know chunks by their length.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/retry_delay.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class PrecomputeCommandTest : public CommandsTest {
 protected:
  std::vector<std::string> PutLabels() const {
    std::vector<std::string> labels;
    for (const v1::PutChunksRequest& request : calls_.put) {
      labels.insert(labels.end(), request.chunk_labels().begin(), request.chunk_labels().end());
    }
    return labels;
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream content;
    content << file.rdbuf();
    return content.str();
  }
};

TEST_F(PrecomputeCommandTest, SplitsAndPutsWithLabelsBehindTheAnchor) {
  const std::string a = File("a.txt", std::string(40, 'a'));
  const std::string lines = File("c.jsonl", "{\"id\": \"x\", \"text\": \"123456789012345\"}\n");
  EXPECT_EQ(Run({"precompute", a, lines, "--chunk-tokens", "30", "--overlap-tokens", "5", "--system", "S",
                 "--lead-in", "L", "--namespace", "n"}),
            0);
  ASSERT_THAT(calls_.put, SizeIs(1));
  const v1::PutChunksRequest& put = calls_.put[0];
  EXPECT_THAT(put.chunks(), ElementsAre(std::string(30, 'a'), std::string(10, 'a'), "123456789012345"));
  EXPECT_THAT(put.chunk_labels(), ElementsAre(a + "@0", a + "@30", lines + "#x@0"));
  EXPECT_EQ(put.system_text(), "S");
  EXPECT_EQ(put.lead_in(), "L");
  EXPECT_EQ(put.namespace_(), "n");
  EXPECT_EQ(calls_.split[0].chunk_tokens(), 30);
  EXPECT_EQ(calls_.split[0].overlap_tokens(), 5);
  EXPECT_EQ(calls_.split[0].lead_in(), "L");
  EXPECT_EQ(calls_.split[0].namespace_(), "n");
  EXPECT_THAT(Err(), HasSubstr("2 documents, 3 chunks, 9 tokens"));
  EXPECT_EQ(Out(), "");
}

TEST_F(PrecomputeCommandTest, DefaultsAndTextsFromFiles) {
  EXPECT_EQ(Run({"precompute", File("a.txt", "text"), "--system-file", File("s", "from a\nfile"),
                 "--lead-in-file", File("l", "also")}),
            0);
  EXPECT_FALSE(calls_.split[0].has_chunk_tokens());  // the engine's
  EXPECT_FALSE(calls_.split[0].has_overlap_tokens());
  EXPECT_EQ(calls_.put[0].system_text(), "from a\nfile");
  EXPECT_EQ(calls_.put[0].lead_in(), "also");
  EXPECT_EQ(calls_.put[0].anchoring(), v1::ANCHORING_UNSPECIFIED);
  EXPECT_EQ(Run({"precompute", File("b.txt", "other text"), "--isolated"}), 0);
  EXPECT_EQ(calls_.put[1].anchoring(), v1::ANCHORING_ISOLATED);
}

TEST_F(PrecomputeCommandTest, WhatIsStoredIsNotSent) {
  const std::string file = File("a.txt", std::string(75, 'a'));
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "30"}), 0);
  ASSERT_THAT(calls_.put, SizeIs(1));
  EXPECT_THAT(Err(), HasSubstr("2 chunks, 6 tokens, 2.0 KiB: 2 computed")) << "two of the three are the same";
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "30"}), 0);
  EXPECT_THAT(calls_.put, SizeIs(1)) << "all of it is there";
  EXPECT_THAT(Err(), HasSubstr("0 computed"));
  EXPECT_THAT(Err(), HasSubstr("2 chunks, 6 tokens, 2.0 KiB"));
  EXPECT_THAT(Err(), HasSubstr("2 were there already"));
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "30", "--pin"}), 0);
  ASSERT_THAT(calls_.put, SizeIs(2)) << "pinning is the engine's";
  EXPECT_TRUE(calls_.put[1].pin());
  EXPECT_THAT(Err(), HasSubstr("0 computed"));
}

TEST_F(PrecomputeCommandTest, AChunkSentTwiceAtOnceIsComputedOnce) {
  EXPECT_EQ(Run({"precompute", File("a.txt", "same length"), File("b.txt", "equal size!"), "--json"}), 0);
  const OrderedJson summary = OutJson().at(0);
  EXPECT_EQ(summary["chunks"], 1) << "as --dry-run counts";
  EXPECT_EQ(summary["stored_bytes"], 1000);
  EXPECT_EQ(summary["tokens"], 3);
  EXPECT_EQ(summary["computed_chunks"], 1);
  EXPECT_EQ(summary["complete"], true);
}

TEST_F(PrecomputeCommandTest, BadInputsAreSkippedNamedAndTold) {
  std::filesystem::create_directories(folder_ / "docs");
  File("docs/good.txt", "good");
  File("docs/bad.txt", "\xFF");
  File("docs/c.jsonl", "{}\n\"fine\"\n");
  EXPECT_EQ(Run({"precompute", (folder_ / "docs").string()}), 5);
  EXPECT_THAT(Err(), AllOf(HasSubstr("bad.txt: line 1 is not valid UTF-8"),
                           HasSubstr("c.jsonl line 1: no string"), HasSubstr("2 inputs could not be used")));
  EXPECT_THAT(PutLabels(), SizeIs(2));
  calls_.put.clear();
  EXPECT_EQ(Run({"precompute", (folder_ / "docs").string(), "--strict"}), 2);
  EXPECT_THAT(Err(), HasSubstr("bad.txt: line 1 is not valid UTF-8"));
  EXPECT_THAT(calls_.put, IsEmpty());
}

TEST_F(PrecomputeCommandTest, OutputHasEveryChunkWithItsKey) {
  const std::string file = File("a.txt", std::string(20, 'a') + "tail \xC3\xA9");
  const std::string lines = File("c.jsonl", "{\"id\": \"x\", \"text\": \"one\"}\n");
  const std::string output = (folder_ / "chunks.jsonl").string();
  EXPECT_EQ(Run({"precompute", file, lines, "--chunk-tokens", "20", "--output", output}), 0);
  const std::string first = Read(output);
  std::vector<OrderedJson> chunks;
  for (const absl::string_view line : absl::StrSplit(first, '\n', absl::SkipEmpty())) {
    chunks.push_back(OrderedJson::parse(std::string(line)));
  }
  ASSERT_THAT(chunks, SizeIs(3));
  EXPECT_EQ(chunks[1], (OrderedJson{{"key", "key-anchored-7"},
                                    {"text", "tail \xC3\xA9"},
                                    {"path", file},
                                    {"begin_byte", 20},
                                    {"end_byte", 27},
                                    {"num_tokens", 3}}));
  EXPECT_EQ(chunks[2]["id"], "x");
  // What is there already is in the file all the same.
  EXPECT_EQ(Run({"precompute", file, lines, "--chunk-tokens", "20", "--output", output}), 0);
  EXPECT_EQ(Read(output), first);
  EXPECT_FALSE(std::filesystem::exists(output + ".part"));
  EXPECT_EQ(Run({"precompute", file, "--output", "/no/such/folder/x"}), 2);
  // What is no file is written to, and still there: as root a renamed file would take the place of /dev/null.
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDWR | O_NONBLOCK);
  EXPECT_EQ(Run({"precompute", file, lines, "--chunk-tokens", "20", "--output", pipe}), 0);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  std::string taken(first.size() + 1, 0);
  EXPECT_EQ(read(reader, taken.data(), taken.size()), static_cast<ssize_t>(first.size()));
  close(reader);
  EXPECT_EQ(Run({"precompute", file, lines, "--chunk-tokens", "20", "--output", "-"}), 0);
  EXPECT_EQ(Out(), first);
  EXPECT_FALSE(std::filesystem::exists("-"));
  for (const std::string flag : {"--json", "--dry-run"}) {
    EXPECT_EQ(Run({"precompute", file, "--output", "-", flag}), 2);
    EXPECT_THAT(Err(),
                HasSubstr(absl::StrCat("--output is -, but ", flag, " writes to standard output too")));
  }
}

TEST_F(PrecomputeCommandTest, OutputTakesThePlaceOfNoInputAndOfNoFolder) {
  const std::string text = "{\"text\": \"one\"}\n";
  const std::string input = File("c.jsonl", text);
  const std::string link = (folder_ / "link.jsonl").string();
  std::filesystem::create_symlink(input, link);
  for (const std::string& output : {input, link}) {
    EXPECT_EQ(Run({"precompute", input, "--output", output}), 2);
    EXPECT_THAT(Err(), HasSubstr("--output is " + output + ", which is an input too and would be replaced"));
    EXPECT_EQ(Read(output), text);
  }
  EXPECT_EQ(Run({"precompute", input, "--output", folder_.string()}), 2);
  EXPECT_THAT(Err(), HasSubstr("cannot write " + folder_.string() + ": it is a folder"));
  EXPECT_THAT(calls_.put, IsEmpty()) << "it is said before anything is computed";
}

TEST_F(PrecomputeCommandTest, TwoRunsDoNotWriteOneOutput) {
  const std::string input = File("a.txt", "text"), output = (folder_ / "chunks.jsonl").string();
  int code = 0;
  bool is_first = true;
  calls_.on_put = [&](const v1::PutChunksRequest&) {  // while the first is under way
    if (!std::exchange(is_first, false)) return absl::OkStatus();
    std::ostringstream out, err;
    Terminal terminal{out, err};
    Cancellation cancellation;
    code = RunCommandLine({"precompute", input, "--output", output}, "1", terminal, cancellation,
                          [this](const Connection&, Cancellation&, Terminal&) {
                            return absl::StatusOr<std::shared_ptr<Calls>>(calls_.Lend());
                          });
    EXPECT_THAT(err.str(), HasSubstr("another process is writing " + output));
    return absl::OkStatus();
  };
  EXPECT_EQ(Run({"precompute", input, "--output", output}), 0) << Err();
  EXPECT_EQ(code, 4);
  EXPECT_THAT(calls_.put, SizeIs(1)) << "it was said before anything was computed";
  EXPECT_EQ(OrderedJson::parse(Read(output))["text"], "text");
}

TEST_F(PrecomputeCommandTest, OutputGoesWhereALinkLeadsAndKeepsItsMode) {
  const std::string file = File("kept.jsonl", "old"), link = (folder_ / "link.jsonl").string();
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  std::filesystem::create_symlink("kept.jsonl", link);
  EXPECT_EQ(Run({"precompute", File("a.txt", "text"), "--output", link}), 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(OrderedJson::parse(Read(file))["text"], "text");
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600));
}

TEST_F(PrecomputeCommandTest, OneIsNotMany) {
  EXPECT_EQ(Run({"precompute", File("a.txt", "aaa")}), 0);
  EXPECT_THAT(Err(), AllOf(HasSubstr("1 document, 1 chunk, 3 tokens, "), HasSubstr(" 0 were there already")));
}

TEST_F(PrecomputeCommandTest, PlacesAreThoseInAFileWithAByteOrderMark) {
  const std::string file = File("a.txt", "\xEF\xBB\xBFtext");
  const std::string output = (folder_ / "chunks.jsonl").string();
  EXPECT_EQ(Run({"precompute", file, "--output", output}), 0);
  const OrderedJson chunk = OrderedJson::parse(Read(output));
  EXPECT_EQ(chunk["text"], "text");
  EXPECT_EQ(chunk["begin_byte"], 3);
  EXPECT_EQ(chunk["end_byte"], 7);
  EXPECT_THAT(PutLabels(), ElementsAre(file + "@3"));
}

TEST_F(PrecomputeCommandTest, TheOutputIsNoInput) {
  std::filesystem::create_directories(folder_ / "docs");
  File("docs/a.txt", "text");
  const std::string output = (folder_ / "docs" / "chunks.jsonl").string();
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(Run({"precompute", (folder_ / "docs").string(), "--output", output, "--json"}), 0);
    EXPECT_EQ(OutJson().at(0)["documents"], 1);
  }
}

TEST_F(PrecomputeCommandTest, AnInterruptedRunLeavesNoHalfOutput) {
  const std::string output = File("chunks.jsonl", "old");
  calls_.on_put = [this](const v1::PutChunksRequest&) {
    cancellation_.Request();
    return absl::CancelledError("cancelled");
  };
  EXPECT_EQ(Run({"precompute", File("a.txt", "text"), "--output", output}), 130);
  EXPECT_EQ(Read(output), "old");
  EXPECT_FALSE(std::filesystem::exists(output + ".part"));
  EXPECT_THAT(Err(), HasSubstr("the same command goes on from here"));
}

TEST_F(PrecomputeCommandTest, DryRunCountsAndSendsNothing) {
  const std::string file = File("a.txt", std::string(75, 'a'));
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "30", "--dry-run"}), 0);
  EXPECT_THAT(calls_.put, IsEmpty());
  EXPECT_THAT(Out(),
              AllOf(HasSubstr("documents      1\n"), HasSubstr("chunks         2, of which 0 are there"),
                    HasSubstr("tokens         6, to compute 6\n"), HasSubstr("in the store   2.0 KiB"),
                    HasSubstr("time           not known")));
  // With one of them stored, how long it took tells of the others.
  calls_.stored["key-anchored-30"] = FakeCalls::Chunk("key-anchored-30", 30);
  calls_.stored["key-anchored-30"].set_compute_seconds(0.5);
  calls_.info.mutable_store()->set_budget_bytes(1 << 30);
  calls_.info.mutable_store()->set_namespace_byte_limit(1000);
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "30", "--dry-run", "--json"}), 0);
  const OrderedJson estimate = OutJson().at(0);
  EXPECT_EQ(estimate["chunks"], 2);
  EXPECT_EQ(estimate["chunks_to_compute"], 1);
  EXPECT_EQ(estimate["tokens_to_compute"], 3);
  EXPECT_EQ(estimate["stored_bytes"], 2000);
  EXPECT_EQ(estimate["store_bytes_limit"], 1000) << "the caller's own room";
  EXPECT_DOUBLE_EQ(estimate["estimated_seconds"], 0.05);
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "30", "--dry-run"}), 0);
  EXPECT_THAT(Err(), HasSubstr("the room in the store is smaller than the corpus"));
  calls_.stored["key-anchored-15"] = FakeCalls::Chunk("key-anchored-15", 15);
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "30", "--dry-run"}), 0);
  EXPECT_THAT(Out(), HasSubstr("none: everything is there"));
}

TEST_F(PrecomputeCommandTest, WhatDidNotReachTheDiskIsAnError) {
  v1::TierInfo& disk = *calls_.info.add_tiers();
  disk.set_tier(v1::TIER_DISK);
  disk.set_failing(true);
  calls_.not_durable = {"key-anchored-4"};
  const std::string output = File("chunks.jsonl", "old");
  EXPECT_EQ(Run({"precompute", File("a.txt", "text"), File("b.txt", "fine!"), "--json", "--output", output}),
            4);
  EXPECT_THAT(Err(), HasSubstr("1 of 2 chunks is in memory but not on disk: the disk is full or failing"));
  const OrderedJson summary = OutJson().at(0);
  EXPECT_EQ(summary["complete"], false);
  EXPECT_EQ(summary["not_durable"], 1);
  EXPECT_EQ(summary["missing_at_end"], 0);
  EXPECT_EQ(Read(output), "old");
  // A server without a disk has no such chunks.
  calls_.info.clear_tiers();
  EXPECT_EQ(Run({"precompute", File("c.txt", "text"), "--json", "--output", output}), 0);
  EXPECT_EQ(OutJson().at(0)["not_durable"], 0);
  EXPECT_EQ(OutJson().at(0)["complete"], true);
}

TEST_F(PrecomputeCommandTest, ChunksOfTheCorpusThatAreGoneAtTheEndAreToldAndNoOthers) {
  calls_.info.mutable_store()->set_namespace_byte_limit(5000);
  const std::vector<std::string> command = {
      "precompute", File("a.txt", "text"), File("b.txt", std::string(30, 'b')), "--namespace", "n", "--json"};
  calls_.on_put = [this](const v1::PutChunksRequest&) {
    calls_.info.mutable_store()->set_evictions(58);  // of other clients
    return absl::OkStatus();
  };
  EXPECT_EQ(Run(command), 0) << "others' chunks are not this command's";
  EXPECT_EQ(calls_.info_request.namespace_(), "n");
  calls_.after_put = [this] { calls_.stored.erase("key-anchored-4"); };
  calls_.stored.clear();
  EXPECT_EQ(Run(command), 4);
  EXPECT_EQ(OutJson().at(0)["missing_at_end"], 1);
  EXPECT_EQ(OutJson().at(0)["complete"], false);
  EXPECT_EQ(OutJson().at(0)["computed_chunks"], 2);
  EXPECT_THAT(Err(), HasSubstr("1 of 2 chunks is not in the store at the end: they made room for others"));
  calls_.info.mutable_store()->set_namespace_byte_limit(1500);
  calls_.stored.clear();
  EXPECT_EQ(Run(command), 4);
  EXPECT_THAT(Err(),
              HasSubstr("at the end: together they take 2.0 KiB of the 1.5 KiB that the namespace may take"));
}

TEST_F(PrecomputeCommandTest, ATenantsLimitsSlowItDownAndDoNotEndIt) {
  const absl::Status full = WithRetryDelay(absl::ResourceExhaustedError("too many"), absl::Milliseconds(1));
  std::atomic<int> splits = 0, puts = 0;
  calls_.on_split = [&](const v1::SplitDocumentRequest&) {
    return ++splits % 2 == 1 ? full : absl::OkStatus();
  };
  calls_.on_put = [&](const v1::PutChunksRequest&) { return ++puts % 2 == 1 ? full : absl::OkStatus(); };
  EXPECT_EQ(Run({"precompute", File("a.txt", "text"), File("b.txt", "more text"), "--json"}), 0) << Err();
  EXPECT_EQ(splits, 4);
  EXPECT_EQ(OutJson().at(0)["computed_chunks"], 2);
  EXPECT_EQ(Run({"precompute", File("c.txt", "text"), "--timeout", "0.1"}), 4);
  EXPECT_THAT(Err(), HasSubstr("not done within --timeout, 0.1 s"));
}

TEST_F(PrecomputeCommandTest, AModelOfItsOwnNeedsAPlaceThatLasts) {
  const std::string file = File("a.txt", "text");
  EXPECT_EQ(Run({"precompute", file, "--model", "m.gguf"}), 2);
  EXPECT_THAT(Err(), HasSubstr("--chunk-disk-path DIR"));
  EXPECT_EQ(Run({"precompute", file, "--model", "m.gguf", "--chunk-disk-path", "d"}), 0);
  EXPECT_EQ(connection_.engine_options.chunk_disk_path, "d");
  EXPECT_EQ(Run({"precompute", file, "--model", "m.gguf", "--dry-run"}), 0);
}

TEST_F(PrecomputeCommandTest, TooLateNamesTheTimeout) {
  calls_.put_status = absl::DeadlineExceededError("Deadline Exceeded");
  EXPECT_EQ(Run({"precompute", File("a.txt", "text"), "--timeout", "2"}), 4);
  EXPECT_THAT(Err(), HasSubstr("not done within --timeout, 2 s"));
}

TEST_F(PrecomputeCommandTest, WrongUsage) {
  const std::string file = File("a.txt", "text");
  std::filesystem::create_directories(folder_ / "empty");
  EXPECT_EQ(Run({"precompute"}), 2);
  EXPECT_EQ(Run({"precompute", (folder_ / "empty").string()}), 2);
  EXPECT_THAT(Err(), HasSubstr("nothing to read"));
  EXPECT_EQ(Run({"precompute", "/no/such/file"}), 3);
  EXPECT_EQ(Run({"precompute", file, "--chunk-disk-path", "d"}), 2);  // without --model
  EXPECT_EQ(Run({"precompute", file, "--isolated", "--lead-in", "L"}), 2);
  EXPECT_EQ(Run({"precompute", file, "--in-flight", "0"}), 2);
  calls_.split_status = absl::InvalidArgumentError("chunk_tokens is 3; allowed: 16 and up");
  EXPECT_EQ(Run({"precompute", file, "--chunk-tokens", "3"}), 2);
  EXPECT_THAT(Err(), HasSubstr("chunk_tokens is 3"));
  EXPECT_THAT(calls_.put, IsEmpty());
}

TEST_F(PrecomputeCommandTest, LongNamesKeepTheirEndAsLabels) {
  const std::string lines = File(
      "c.jsonl", "{\"id\": \"" + std::string(150, '\xC3') + "\", \"text\": \"t\"}\n" + "{\"id\": \"" + [] {
        std::string id;
        for (int i = 0; i < 200; ++i) id += "\xC3\xA9";
        return id;
      }() + "\", \"text\": \"tt\"}\n");
  EXPECT_EQ(Run({"precompute", lines}), 5);
  ASSERT_THAT(PutLabels(), SizeIs(1));
  const std::string label = PutLabels()[0];
  EXPECT_LE(label.size(), 256u);
  EXPECT_GE(label.size(), 255u);
  EXPECT_THAT(label, AllOf(testing::StartsWith("...\xC3\xA9"), testing::EndsWith("\xC3\xA9@0")));
}

}  // namespace
}  // namespace kvblend::server::cli
