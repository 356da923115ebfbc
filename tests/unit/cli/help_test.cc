// What --help prints.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using HelpTest = CommandsTest;

TEST_F(HelpTest, ExplainsAndSucceeds) {
  for (const std::string command :
       {"",       "generate",   "chunks",     "chunks put",  "chunks prefetch", "score",
        "bench",  "calibrate",  "correction", "model",       "model inspect",   "info",
        "health", "precompute", "store",      "store check", "store stats",     "store gc",
        "key",    "key new"}) {
    EXPECT_EQ(RunLine(command + " --help"), 0);
    EXPECT_THAT(Out(), HasSubstr("Examples:"));
    EXPECT_EQ(Out().find("KVBLEND_SERVER is the default") != std::string::npos, command.empty()) << command;
    EXPECT_EQ(Err(), "");
  }
  EXPECT_EQ(RunLine("--version"), 0);
  EXPECT_EQ(Out(), "kvblend 1.2.3\n");
}

TEST_F(HelpTest, KeepsTheEnginesSettingsApart) {
  EXPECT_EQ(RunLine("generate --help"), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("\nSampling:\n"), HasSubstr("--help-all lists them"),
                           Not(HasSubstr("--chunk-store-bytes")), Not(HasSubstr("\n\n\n"))));
  EXPECT_EQ(RunLine("generate --help-all"), 0);
  EXPECT_THAT(Out(), AllOf(HasSubstr("\nSampling:\n"), HasSubstr("\nWith --model: Memory:\n"),
                           HasSubstr("--chunk-store-bytes"), HasSubstr("--self-check,--no-self-check "),
                           Not(HasSubstr("{false}")), Not(HasSubstr("lists them"))));
  EXPECT_EQ(RunLine("health --help"), 0);  // which runs no model
  EXPECT_THAT(Out(), Not(HasSubstr("--help-all")));
  EXPECT_EQ(RunLine("bench --help-all"), 0);  // which has a command below it
  EXPECT_THAT(Out(), AllOf(HasSubstr("--chunk-store-bytes"), HasSubstr("\n  serve  "),
                           HasSubstr("--data FILE... "), Not(HasSubstr("... ..."))));
  EXPECT_EQ(RunLine("bench serve --help"), 0);  // which runs none, unlike the command above it
  EXPECT_THAT(Out(), Not(HasSubstr("--help-all")));
}

TEST_F(HelpTest, ListsAlternativesAsAGroup) {
  EXPECT_EQ(RunLine("score --help"), 0);
  EXPECT_THAT(Out(),
              HasSubstr("\nContinuation (what is scored: exactly one of these):\n  --continuation TEXT"));
  EXPECT_EQ(RunLine("chunks rm --help"), 0);
  EXPECT_THAT(Out(), HasSubstr("\nWhich chunks (exactly one of these):\n  keys "));
}

}  // namespace
}  // namespace kvblend::server::cli
