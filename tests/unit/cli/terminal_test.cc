#include "server/cli/terminal.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/exit_code.h"
#include "server/cli/prompt_report.h"
#include "server/convert/reports.h"

namespace kvblend::server::cli {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

struct Streams {
  std::ostringstream out;
  std::ostringstream err;
};

TEST(TerminalTest, JsonIsOneLineAndAlwaysUtf8) {
  Streams streams;
  Terminal terminal{streams.out, streams.err};
  terminal.PrintJson({{"z", "line\nbreak"}, {"a", "broken \xff"}});
  EXPECT_EQ(streams.out.str(), "{\"z\":\"line\\nbreak\",\"a\":\"broken \xEF\xBF\xBD\"}\n");
  EXPECT_EQ(streams.err.str(), "");
}

TEST(TerminalTest, ColoursOnlyWhereTheyAreOn) {
  Streams plain;
  Terminal without{plain.out, plain.err, /*err_is_terminal=*/true, /*colour=*/false};
  without.PrintError(absl::NotFoundError("no such thing"));
  without.PrintNote("by the way");
  EXPECT_EQ(plain.err.str(), "error: no such thing (NOT_FOUND)\nby the way\n");
  Streams coloured;
  Terminal with{coloured.out, coloured.err, /*err_is_terminal=*/true, /*colour=*/true};
  with.PrintError(absl::NotFoundError("no such thing"));
  EXPECT_THAT(coloured.err.str(), AllOf(HasSubstr("\033["), HasSubstr("no such thing")));
  EXPECT_EQ(plain.out.str() + coloured.out.str(), "");
}

TEST(ProgressBarTest, DrawsOnTerminalsAndCleansUp) {
  Streams streams;
  Terminal terminal{streams.out, streams.err, /*err_is_terminal=*/true};
  {
    ProgressBar bar(terminal, "Work");
    bar.Update(1, 4, "first");
    EXPECT_THAT(streams.err.str(), HasSubstr("Work [######------------------] 1/4  first"));
  }
  EXPECT_THAT(streams.err.str(), testing::EndsWith("\r\033[K"));
  EXPECT_EQ(streams.out.str(), "");
}

TEST(ProgressBarTest, IsOneLineOfANarrowTerminal) {
  Streams streams;
  Terminal terminal{streams.out, streams.err, /*err_is_terminal=*/true};
  terminal.columns = [] { return 40; };
  ProgressBar bar(terminal, "Work");
  bar.Update(1, 4, "caf\xc3\xa9s and more");
  EXPECT_EQ(streams.err.str(), "\r\033[KWork [######------------------] 1/4  ca");
  terminal.columns = [] { return 43; };
  terminal.Redraw("Work [######------------------] 1/4  caf\xc3\xa9s and more");
  EXPECT_THAT(streams.err.str(),
              testing::EndsWith("\r\033[KWork [######------------------] 1/4  caf\xc3\xa9s"));
}

TEST(ProgressBarTest, SilentElsewhere) {
  Streams streams;
  Terminal terminal{streams.out, streams.err, /*err_is_terminal=*/false};
  {
    ProgressBar bar(terminal, "Work");
    bar.Update(1, 4, "first");
    bar.Update(4, 0, "odd total");
  }
  EXPECT_EQ(streams.err.str(), "");
}

TEST(ProgressBarTest, WhereThereIsNoTerminalLinesWillDo) {
  Streams streams;
  Terminal terminal{streams.out, streams.err, /*err_is_terminal=*/false};
  {
    ProgressBar bar(terminal, "Work", absl::ZeroDuration()), seldom(terminal, "Seldom", absl::Hours(1000));
    for (int64_t done = 2; done < 4; ++done) {
      bar.Update(done, 4, "going on");
      seldom.Update(done, 4, "");
    }
  }
  EXPECT_EQ(streams.err.str(), "Work 2/4  going on\nSeldom 2/4\nWork 3/4  going on\n");
  EXPECT_EQ(streams.out.str(), "");
}

TEST(ProgressBarTest, TheTimeLeftIsThatOfTheWorkThatIsShown) {
  Streams streams;
  Terminal terminal{streams.out, streams.err, /*err_is_terminal=*/false};
  absl::Time now = absl::UnixEpoch();
  ProgressBar bar(terminal, "Work", absl::ZeroDuration(), [&] { return now; });
  const auto update = [&](int64_t seconds, int64_t done, int64_t total) {
    streams.err.str("");
    now = absl::UnixEpoch() + absl::Seconds(seconds);
    bar.Update(done, total, "");
    return streams.err.str();
  };
  update(0, 0, 10);
  EXPECT_EQ(update(100, 5, 10), "Work 5/10, 1 min 40 s left\n");
  update(200, 10, 10);
  EXPECT_EQ(update(200, 0, 10), "Work 0/10\n");
  EXPECT_EQ(update(204, 2, 10), "Work 2/10, 16.00 s left\n");
  update(204, 4, 8);
  EXPECT_EQ(update(206, 6, 8), "Work 6/8, 2.00 s left\n");
  // Work that grows goes on.
  EXPECT_EQ(update(206, 6, 20), "Work 6/20, 14.00 s left\n");
}

TEST(TerminalTest, HumanUnits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(23040), "22.5 KiB");
  EXPECT_EQ(HumanBytes(int64_t{4} << 30), "4.0 GiB");
  EXPECT_EQ(HumanBytes(int64_t{138} << 20), "138 MiB");
  EXPECT_EQ(HumanSeconds(0.00082), "0.8 ms");
  EXPECT_EQ(HumanSeconds(0.132), "132 ms");
  EXPECT_EQ(HumanSeconds(0.9999), "1.00 s");
  EXPECT_EQ(HumanSeconds(2.414), "2.41 s");
  EXPECT_EQ(HumanSeconds(200), "3 min 20 s");
  EXPECT_EQ(HumanSeconds(7260), "2 h 1 min");
  EXPECT_EQ(HumanNumber(0), "0");
  EXPECT_EQ(HumanNumber(0.00002514), "0.0000251");
  EXPECT_EQ(HumanNumber(0.3000000001), "0.3");
  EXPECT_EQ(HumanNumber(7.584), "7.58");
  EXPECT_EQ(HumanNumber(99.996), "100");
  EXPECT_EQ(HumanNumber(65123.4), "65123");
}

TEST(ExitCodeTest, IsForShells) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::FailedPreconditionError("")), 1);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::DataLossError("")), 5);
  EXPECT_EQ(ExitCodeOf(absl::CancelledError("")), 130);
}

TEST(PromptReportTest, SaysWhatBecameOfEveryToken) {
  PromptReport report;
  report.ratio = 0.1517;
  report.prompt_tokens = 3051;
  report.exact_tokens = 600;
  report.reused_tokens = 2000;
  report.recomputed_tokens = 400;
  report.computed_tokens = 51;
  report.time_to_first_token_seconds = 0.2;
  report.others_seconds = 0.15;
  report.chunks.resize(2);
  report.chunks[1].index = 1;
  report.chunks[1].source = ChunkSource::kExact;
  const std::vector<std::string> lines = DescribePrompt(ToProto(report));
  EXPECT_THAT(lines, SizeIs(4));
  report.kept_tokens = 700;
  report.kept_exact_tokens = 650;
  EXPECT_THAT(DescribePrompt(ToProto(report))[0], HasSubstr("= 700 kept (650 of them exact) + 600 exact +"));
  report.shared_tokens = 400;
  EXPECT_THAT(DescribePrompt(ToProto(report))[0], HasSubstr(" + 600 exact (400 shared) + "));
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("3051 tokens = 600 exact + 2000 reused + 400 recomputed + 51 computed"),
                    HasSubstr("policy query, 15.2%")));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("chunk  1"), HasSubstr("miss")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("chunk  2"), HasSubstr("exact")));
  EXPECT_THAT(lines[3], AllOf(HasSubstr("first token: 200 ms"), HasSubstr(" + 150 ms others")));
  report.reused_tokens = report.recomputed_tokens = 0;
  EXPECT_THAT(DescribePrompt(ToProto(report))[0],
              AllOf(HasSubstr("nothing to recompute"), Not(HasSubstr("%"))));
}

TEST(PromptReportTest, ManyChunksAreCut) {
  PromptReport report;
  report.chunks.resize(30);
  EXPECT_THAT(DescribePrompt(ToProto(report)),
              AllOf(SizeIs(1 + 20 + 1 + 1), Contains(HasSubstr("10 more chunks"))));
}

TEST(TerminalTest, NamesOfOthersStayOnOneLine) {
  EXPECT_EQ(OnOneLine("a\nb\t\033[31mred\x7F"), "a\\x0ab\\x09\\x1b[31mred\\x7f");
  EXPECT_EQ(OnOneLine("\xC2\x9B"
                      "31m \xC2\xB0 \xC3\xA9 it's\xC2"),
            "\\x9b31m \xC2\xB0 \xC3\xA9 it's\\xc2");
  EXPECT_EQ(OnOneLine("\x9B"
                      "31m \xE2\x82 \xE2\x82\xAC \xF0\x9F\x98\x80\x80 \xC0\x8A"),
            "\\x9b31m \\xe2\\x82 \xE2\x82\xAC \xF0\x9F\x98\x80\\x80 \\xc0\\x8a");
}

TEST(PromptReportTest, SaysHowTheRatioWasChosenAndFromWhat) {
  PromptReport report;
  report.chunks.resize(1);
  report.chunks[0].source = ChunkSource::kBypassed;
  report.chunks[0].tier = Tier::kDisk;
  report.loading = {.mode = RatioMode::kAuto,
                    .ratio_min = 0.15,
                    .ratio_max = 0.5,
                    .ratio = 0.234,
                    .bypassed_chunks = 1,
                    .predicted = true,
                    .predicted_seconds = 0.9,
                    .predicted_load_seconds = 0.5,
                    .predicted_compute_seconds = 0.8,
                    .compute_seconds_per_token = 0.001,
                    .reads = {{.tier = Tier::kDisk, .bytes = 2 << 20, .bytes_per_second = 1e6}}};
  std::vector<std::string> lines = DescribePrompt(ToProto(report));
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_THAT(lines[1], AllOf(HasSubstr("bypassed"), HasSubstr("left on disk")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("ratio 0.23 chosen between 0.15 and 0.50, chunks bypassed: 1"),
                              HasSubstr("predicted 900 ms (load alone 500 ms, compute alone 800 ms)"),
                              HasSubstr("disk 2.0 MiB at ")));
  report.loading = {.mode = RatioMode::kAuto, .ratio = 0.15};
  EXPECT_THAT(DescribePrompt(ToProto(report))[2], HasSubstr("nothing measured yet"));
  report.loading = {};  // a fixed ratio and nothing to read: nothing to say
  EXPECT_THAT(DescribePrompt(ToProto(report)), SizeIs(3));
  // Whoever set it: the request, the server, or that so few tokens are all recomputed.
  report.loading = {
      .mode = RatioMode::kFixed, .ratio = 1, .reads = {{.tier = Tier::kRedis, .bytes = 2 << 20}}};
  EXPECT_EQ(DescribePrompt(ToProto(report))[2], "loading: ratio 1.00; redis 2.0 MiB");
}

TEST(PromptReportTest, SaysHowTheAnswerEnded) {
  GenerateResult result;
  result.finish_reason = FinishReason::kStopString;
  result.stop_string = "END";
  result.completion_tokens = 11;
  result.time_to_first_token_seconds = 1;
  result.total_seconds = 2;
  EXPECT_THAT(DescribeResult(ToProto(result)),
              AllOf(HasSubstr("11 tokens in 2.00 s"), HasSubstr("10.0 tokens/s"), HasSubstr("\"END\""),
                    Not(HasSubstr("seed"))));
}

}  // namespace
}  // namespace kvblend::server::cli
