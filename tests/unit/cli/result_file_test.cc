// Results per question: written, read, gone on with, merged; and what is refused.
#include "server/cli/bench/result_file.h"

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/bench_report.h"
#include "server/cli/files.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::server::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

RunSettings Settings() {
  v1::GetInfoResponse info;
  info.set_version("1.2.3");
  info.mutable_model()->set_name("model");
  info.mutable_model()->set_fingerprint("f00d");
  info.set_backend("cpu");
  BenchOptions options;
  options.variants = {*ParseRow("full"), *ParseRow("query:0.15:20-layers"), CacheBlendAsPublished()};
  options.measures.nll = false;
  options.max_passages = 5;
  return MakeRunSettings(info, options);
}

FinishedQuestion Finished(const std::string& data, int index) {
  FinishedQuestion question{.data = data, .index = index, .hash = "h", .rows = {}};
  for (int row = 0; row < 3; ++row) {
    QuestionResult& result = question.rows.emplace_back();
    result.prompt_tokens = 100 + index;
    result.ttft_seconds = {0.1 * index, 1.0 / 3};
    result.kl = 0.1 * row * (index + 1);
    result.exact_match = row > 1;
    result.full_exact_match = index > 1;
    result.answer = "an \"answer\"\n";
  }
  return question;
}

std::vector<std::string> Lines(const std::vector<FinishedQuestion>& questions) {
  std::vector<std::string> lines;
  for (const FinishedQuestion& question : questions) lines.push_back(JsonLine(ToJson(question)));
  return lines;
}

class ResultFileTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<FinishedQuestion>> GoOn(const RunSettings& settings,
                                                     const std::vector<FinishedQuestion>& added = {}) {
    std::vector<FinishedQuestion> finished;
    auto file = ResultFile::Open(path_, settings, finished);
    if (!file.ok()) return file.status();
    for (const FinishedQuestion& question : added) EXPECT_TRUE(file->Append(question).ok());
    return finished;
  }
  std::string Content() const { return *ReadFileOrStdin(path_); }

  const test_support::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/results.jsonl";
};

TEST_F(ResultFileTest, WhatIsNoFileIsNamedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(GoOn(Settings()).status().message()),
              testing::HasSubstr("--resume is " + path_ + ", which is a pipe; allowed: a regular file"));
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("results.jsonl", path_);
  EXPECT_THAT(std::string(GoOn(Settings()).status().message()),
              testing::HasSubstr("which is a link in a circle"));
}

TEST_F(ResultFileTest, GoesOnWithWhatWasWritten) {
  const std::vector<FinishedQuestion> written = {Finished("a", 0), Finished("a", 1), Finished("b", 0)};
  EXPECT_THAT(*GoOn(Settings(), {written[0], written[1]}), IsEmpty());
  EXPECT_EQ(Lines(*GoOn(Settings(), {written[2]})), Lines({written[0], written[1]}));
  const auto read = GoOn(Settings());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Lines(*read), Lines(written));
  EXPECT_TRUE(std::isnan(read->front().rows[0].answer_nll));
  EXPECT_EQ(read->front().rows[0].ttft_seconds[1], 1.0 / 3);  // to the last bit
}

TEST_F(ResultFileTest, SettingsComeBack) {
  const auto settings = RunSettingsFromJson(ToJson(Settings()));
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->options.variants, Settings().options.variants);
  EXPECT_FALSE(settings->options.measures.nll);
  EXPECT_TRUE(settings->options.measures.ttft);
  EXPECT_EQ(settings->options.max_passages, 5);
  EXPECT_EQ(settings->Title(), "model on cpu");
}

TEST_F(ResultFileTest, KilledAnywhereItGoesOnWithTheWholeLines) {
  ASSERT_TRUE(GoOn(Settings(), {Finished("a", 0), Finished("a", 1)}).ok());
  const std::string whole = Content();
  const size_t first = whole.find('\n') + 1;
  const size_t second = whole.find('\n', first) + 1;
  for (const size_t size : {size_t{0}, size_t{1}, first - 1, first, first + 1, (first + second) / 2,
                            second - 1, second, second + 1, whole.size() - 1}) {
    ASSERT_TRUE(WriteFile(path_, whole.substr(0, size)).ok());
    const auto finished = GoOn(Settings());
    ASSERT_TRUE(finished.ok()) << size << ": " << finished.status();
    ASSERT_THAT(*finished, SizeIs(size < second ? 0 : 1)) << size;
    // The torn line is gone, so that the next one is not appended to it.
    EXPECT_EQ(Content().size(), size < second ? first : second) << size;
  }
}

TEST_F(ResultFileTest, OtherSettingsAreRefusedByName) {
  ASSERT_TRUE(GoOn(Settings(), {Finished("a", 0)}).ok());
  const auto refused = [&](auto change) {
    RunSettings settings = Settings();
    change(settings);
    const auto finished = GoOn(settings);
    EXPECT_EQ(finished.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(finished.status().ToString(), HasSubstr(path_));
    return finished.status().ToString();
  };
  const std::string before = Content();
  EXPECT_THAT(refused([](RunSettings& s) { s.options.max_passages = 6; }),
              HasSubstr("passages is 5 there and 6 here"));
  EXPECT_THAT(refused([](RunSettings& s) { s.options.measures.nll = true; }), HasSubstr("measures is"));
  EXPECT_THAT(refused([](RunSettings& s) { s.options.variants.pop_back(); }), HasSubstr("rows is"));
  EXPECT_THAT(refused([](RunSettings& s) { s.engine["fingerprint"] = "beef"; }),
              HasSubstr("fingerprint is \"f00d\" there and \"beef\" here"));
  EXPECT_EQ(Content(), before);
}

TEST_F(ResultFileTest, OtherFilesAreRefusedAndLeftAlone) {
  const std::string head = JsonLine(ToJson(Settings())) + "\n";
  const std::string line = JsonLine(ToJson(Finished("a", 0))) + "\n";
  for (const std::string& content :
       {std::string("my notes\n"), std::string("my notes"), std::string("{}\n"), line, head + "{}\n",
        head + "x\n", head + line + line, head + R"({"data":"a","question":-1,"hash":"h","rows":[]})" + "\n",
        head + R"({"data":"a","question":1,"hash":"h","rows":[]})" + "\n",
        head + R"({"data":"a","question":1,"hash":"h","rows":[1,2,3]})" + "\n"}) {
    ASSERT_TRUE(WriteFile(path_, content).ok());
    EXPECT_EQ(GoOn(Settings()).status().code(), absl::StatusCode::kInvalidArgument) << content;
    EXPECT_EQ(Content(), content);
  }
}

TEST_F(ResultFileTest, OneRunAtATime) {
  std::vector<FinishedQuestion> finished;
  const auto file = ResultFile::Open(path_, Settings(), finished);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(GoOn(Settings()).status().ToString(), HasSubstr("another run writes to it"));
}

TEST_F(ResultFileTest, MergedShardsAreTheWhole) {
  std::vector<std::string> paths;
  std::vector<FinishedQuestion> whole;
  for (int shard : {0, 1, 2}) {
    paths.push_back(absl::StrCat(folder_.path(), "/", shard));
    std::vector<FinishedQuestion> finished;
    auto file = ResultFile::Open(paths.back(), Settings(), finished);
    ASSERT_TRUE(file.ok()) << file.status();
    for (int i = shard; i < 8; i += 3) ASSERT_TRUE(file->Append(Finished("a", i)).ok());
  }
  for (int i = 0; i < 8; ++i) whole.push_back(Finished("a", i));
  const auto merged = MergeResultFiles(paths);
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_EQ(Lines(merged->questions), Lines(whole));
  const auto rows_of = [](const std::vector<FinishedQuestion>& questions) {
    const auto& variants = Settings().options.variants;
    std::string lines;
    for (const BenchRow& row : Summarize(GroupByData(variants, questions).front().rows, 2)) {
      lines += JsonLine(ToJson(row, "a", 3)) + "\n";
    }
    return lines;
  };
  EXPECT_EQ(rows_of(merged->questions), rows_of(whole));

  EXPECT_THAT(MergeResultFiles({paths[0], paths[1], paths[0]}).status().ToString(),
              HasSubstr("question 0 of a"));
  RunSettings other = Settings();
  other.options.repeats = 9;
  std::vector<FinishedQuestion> finished;
  ASSERT_TRUE(ResultFile::Open(path_, other, finished).ok());
  EXPECT_THAT(MergeResultFiles({paths[0], path_}).status().ToString(),
              HasSubstr("repeats is 9 there and 3 here"));
  EXPECT_EQ(MergeResultFiles({"/no/such/file"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(TasksLeftTest, SkipsWhatIsThereAndNoticesOtherQuestions) {
  const BenchQuestion question{.question = "Q", .answers = {"A"}, .passages = {{"T", "text"}, {"U", "more"}}};
  const std::vector<BenchTask> tasks = {{.data = "a", .index = 3, .question = question},
                                        {.data = "a", .index = 4, .question = question},
                                        {.data = "b", .index = 3, .question = question}};
  FinishedQuestion finished = Finished("a", 3);
  finished.hash = HashOf(question, 1);
  const auto left = TasksLeft(tasks, 1, {finished});
  ASSERT_TRUE(left.ok()) << left.status();
  ASSERT_THAT(*left, SizeIs(2));
  EXPECT_EQ((*left)[0].index, 4);
  EXPECT_EQ((*left)[1].data, "b");
  EXPECT_THAT(TasksLeft(tasks, 2, {finished}).status().ToString(), HasSubstr("question 3 of a"));
}

}  // namespace
}  // namespace kvblend::server::cli
