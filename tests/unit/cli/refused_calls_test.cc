// What the command line says where a call came too late, did not do all, or its texts can't be sent.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST_F(CommandsTest, TooLateNamesTheTimeout) {
  const std::string text = File("a.txt", "text");
  calls_.put_status = absl::DeadlineExceededError("Deadline Exceeded");
  calls_.on_generate = [](const auto&, const auto&) { return absl::DeadlineExceededError("too late"); };
  calls_.on_score = [](const auto&, const auto&) { return absl::DeadlineExceededError("too late"); };
  for (const std::string& line :
       std::vector<std::string>{"generate --question Q", "generate --question Q --put --chunk c",
                                "score --question Q --continuation c", "chunks put " + text}) {
    EXPECT_EQ(RunLine(line + " --timeout 0.5"), 4) << line;
    EXPECT_THAT(Err(), HasSubstr("not done within --timeout, 0.5 s: ")) << line;
    EXPECT_EQ(RunLine(line), 4) << line;
    EXPECT_THAT(Err(), Not(HasSubstr("--timeout"))) << line;
  }
}

TEST_F(CommandsTest, CallsThatAreNoStreamsHaveATimeoutToo) {
  const std::string text = File("a.txt", "text");
  for (const std::string& line :
       std::vector<std::string>{"chunks prefetch " + text, "chunks list", "chunks stat k", "chunks rm k",
                                "chunks pin k", "health"}) {
    RunLine(line);
    EXPECT_EQ(connection_.unary_timeout_seconds, std::nullopt) << line;
    RunLine(line + " --timeout 0.5");
    EXPECT_EQ(connection_.unary_timeout_seconds, 0.5) << line;
    EXPECT_EQ(RunLine(line + " --timeout 0"), 2) << line;
    EXPECT_THAT(Err(), HasSubstr("--timeout")) << line;
  }
}

TEST_F(CommandsTest, WhatIsNotRemovedIsNoSuccess) {
  for (const char* key : {"a", "b", "c"}) calls_.stored[key] = FakeCalls::Chunk(key);
  calls_.undeletable = {"b", "c"};
  EXPECT_EQ(Run({"chunks", "rm", "a", "b", "a2", "c"}), 4);
  EXPECT_EQ(Out(), "1 chunk removed\n");
  EXPECT_THAT(Err(),
              HasSubstr("not removed everywhere, so that they may be found again: b and 1 more: redis: "
                        "out of reach"));
  EXPECT_EQ(Run({"chunks", "rm", "b", "--json"}), 4);
  EXPECT_EQ(
      OutJson().at(0).dump(),
      R"({"deleted":"0","missing_keys":[],"failed":"1","failed_keys":["b"],"failure":"redis: out of reach"})");
}

TEST_F(CommandsTest, TextsAreUtf8AndChunksNotEmpty) {
  const std::string bad = File("bad.txt", "caf\xE9 au lait");
  const std::string empty = File("empty.txt", "");
  const std::string lines = File("c.jsonl", "\"one\"\n{\"text\": \"\"}\n");
  const std::string bad_lines = File("b.jsonl", "\"caf\xE9\"\n");
  const struct {
    std::vector<std::string> arguments;
    std::string error;
  } cases[] = {
      {{"chunks", "put", bad}, bad + " is not valid UTF-8 at byte 3 of 12; allowed: UTF-8 text"},
      {{"chunks", "put", empty}, empty + " is empty; allowed: the text of a chunk"},
      {{"chunks", "put", "--jsonl", lines}, lines + " line 2 has an empty text"},
      {{"chunks", "put", "--jsonl", bad_lines}, bad_lines + " line 1 is not valid UTF-8 at byte 4"},
      {{"generate", "--question", "Q", "--chunk-file", bad}, bad + " is not valid UTF-8"},
      {{"generate", "--question", "Q", "--chunk", "\xE9"}, "--chunk is not valid UTF-8 at byte 0"},
      {{"generate", "--question", "Q\xE9"}, "--question is not valid UTF-8 at byte 1"},
      {{"score", "--question", "Q", "--continuation", "\xE9"}, "--continuation is not valid UTF-8"},
      {{"score", "--question", "Q", "--continuation-file", bad}, bad + " is not valid UTF-8"},
  };
  for (const auto& [arguments, error] : cases) {
    EXPECT_EQ(Run(arguments), 2) << error;
    EXPECT_THAT(Err(), HasSubstr(error));
  }
  EXPECT_THAT(calls_.log, IsEmpty());
}

}  // namespace
}  // namespace kvblend::server::cli
