#include "server/cli/precompute/corpus_progress.h"

#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CorpusProgressTest : public testing::Test {
 protected:
  CorpusProgress Make(bool is_terminal) {
    terminal_.err_is_terminal = is_terminal;
    return CorpusProgress(terminal_, /*total_input_bytes=*/1000, [this] { return now_; });
  }
  static void AddComputed(CorpusProgress& progress, int64_t input_bytes, int64_t tokens) {
    progress.Update([&](CorpusCounts& counts) {
      ++counts.chunks;
      ++counts.computed_chunks;
      counts.tokens += tokens;
      counts.computed_tokens += tokens;
      counts.stored_bytes += 1 << 20;
      counts.input_bytes += input_bytes;
    });
  }

  std::ostringstream out_;
  std::ostringstream err_;
  Terminal terminal_{out_, err_};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(CorpusProgressTest, ALineNowAndThenWhereThereIsNoTerminal) {
  auto progress = Make(false);
  AddComputed(progress, 100, 50);
  EXPECT_EQ(err_.str(), "");
  now_ += absl::Seconds(10);
  AddComputed(progress, 100, 50);
  EXPECT_EQ(err_.str(), "20%  2 chunks  0.2 chunks/s  10 tokens/s  2.0 MiB  40.00 s left\n");
  AddComputed(progress, 100, 50);
  now_ += absl::Seconds(9);
  AddComputed(progress, 100, 50);
  EXPECT_EQ(err_.str().find('\n'), err_.str().size() - 1) << "too soon";
}

TEST_F(CorpusProgressTest, ABarOnTerminals) {
  {
    auto progress = Make(true);
    now_ += absl::Seconds(2);
    AddComputed(progress, 500, 50);
    EXPECT_THAT(err_.str(), HasSubstr("\r\033[K[########--------] 50%  1 chunk  "));
    const std::string drawn = err_.str();
    AddComputed(progress, 100, 50);
    EXPECT_EQ(err_.str(), drawn) << "not more often than people read";
    progress.Warn("look out");
    EXPECT_THAT(err_.str(), HasSubstr("\r\033[Kwarning: look out\n")) << "the bar makes way";
    now_ += CorpusProgress::kRedrawInterval;
    AddComputed(progress, 100, 50);
    EXPECT_THAT(err_.str(), HasSubstr("70%  3 chunks"));
  }
  EXPECT_THAT(err_.str(), testing::EndsWith("\r\033[K"));
}

// The rest of a line that breaks into two would stay on the screen, once for every redraw.
TEST_F(CorpusProgressTest, ABarIsOneLineOfANarrowTerminal) {
  terminal_.columns = [] { return 30; };
  auto progress = Make(true);
  now_ += absl::Seconds(2);
  AddComputed(progress, 500, 50);
  EXPECT_EQ(err_.str(), "\r\033[K[########--------] 50%  1 chu");
}

TEST_F(CorpusProgressTest, WhatWasThereSaysNothingOfTheTimeLeft) {
  auto progress = Make(false);
  progress.Update([](CorpusCounts& counts) {
    counts.chunks = 6;
    counts.input_bytes = 600;
    counts.present_input_bytes = 600;
  });
  now_ += absl::Seconds(10);
  progress.Update([](CorpusCounts&) {});
  EXPECT_THAT(err_.str(), AllOf(HasSubstr("60%  6 chunks (6 there)"), Not(HasSubstr("left"))));
  now_ += absl::Seconds(10);
  AddComputed(progress, 100, 40);  // a tenth in 20 s
  EXPECT_THAT(err_.str(),
              HasSubstr("70%  7 chunks (6 there)  0.1 chunks/s  2 tokens/s  1.0 MiB  60.00 s left"));
}

TEST_F(CorpusProgressTest, NothingToDoIsNoDivisionByZero) {
  CorpusProgress progress(terminal_, 0, [this] { return now_; });
  now_ += absl::Seconds(10);
  progress.Update([](CorpusCounts&) {});
  EXPECT_THAT(err_.str(), HasSubstr("0%  0 chunks"));
}

}  // namespace
}  // namespace kvblend::server::cli
