// What the bench reads and which rows it makes of its flags.
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/bench_spec.h"
#include "server/cli/bench/bench_tasks.h"
#include "server/cli/bench/dataset.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DatasetTest, PromptIsTheReferenceOneToTheLetter) {
  const auto questions = ParseQuestions(R"([{"question": "Who?", "answers": ["She", "Her"], "extra": 1,
      "ctxs": [{"title": "T1", "text": "One."}, {"title": "T2", "text": "Two."}, {"title": "T3", "text": "Three."}]}])");
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 1u);
  EXPECT_THAT(questions->front().answers, ElementsAre("She", "Her"));
  const v1::Prompt prompt = MakePrompt(questions->front(), /*max_passages=*/2);
  EXPECT_EQ(prompt.system_text(),
            "You are a helpful AI assistant. Answer the question based on the given passages. Answer with a "
            "few words "
            "only.");
  EXPECT_EQ(prompt.lead_in(), "Passages:\n\n");
  EXPECT_THAT(prompt.chunks(), ElementsAre("T1\nOne.\n\n", "T2\nTwo.\n\n"));
  EXPECT_EQ(prompt.question(), "Question: Who?\nAnswer the question with a few words only.");
  EXPECT_TRUE(prompt.history().empty());
  EXPECT_EQ(MakePrompt(questions->front(), 0).chunks_size(), 3);
  EXPECT_EQ(MakePrompt(questions->front(), 99).chunks_size(), 3);
}

TEST(DatasetTest, ACueEndsThePromptAndMakesAnotherQuestion) {
  const auto questions = ParseQuestions(R"([
      {"question": "Who?", "answers": ["She"], "ctxs": [{"title": "T", "text": "One."}]},
      {"question": "Who?", "cue": "\nAnswer:", "answers": ["She"], "ctxs": [{"title": "T", "text": "One."}]}])");
  ASSERT_TRUE(questions.ok()) << questions.status();
  EXPECT_EQ(MakePrompt(questions->back(), 0).question(),
            "Question: Who?\nAnswer the question with a few words only.\nAnswer:");
  EXPECT_NE(HashOf(questions->front(), 0), HashOf(questions->back(), 0));
}

TEST(DatasetTest, ASystemTextTakesThePlaceOfTheBenchsOwn) {
  const auto questions = ParseQuestions(R"([
      {"question": "Who?", "answers": ["She"], "ctxs": [{"title": "T", "text": "One."}]},
      {"question": "Who?", "system": "Be brief.", "answers": ["She"], "ctxs": [{"title": "T", "text": "One."}]}])");
  ASSERT_TRUE(questions.ok()) << questions.status();
  EXPECT_THAT(MakePrompt(questions->front(), 0).system_text(), HasSubstr("helpful"));
  EXPECT_EQ(MakePrompt(questions->back(), 0).system_text(), "Be brief.");
  EXPECT_NE(HashOf(questions->front(), 0), HashOf(questions->back(), 0));
}

TEST(DatasetTest, ErrorsNameQuestionAndKey) {
  const auto message = [](const char* json) {
    const auto questions = ParseQuestions(json);
    EXPECT_EQ(questions.status().code(), absl::StatusCode::kInvalidArgument) << json;
    return std::string(questions.status().message());
  };
  EXPECT_THAT(message("[{]"), HasSubstr("not valid JSON"));
  EXPECT_THAT(message("{}"), HasSubstr("JSON list"));
  EXPECT_THAT(message("[]"), HasSubstr("at least one question"));
  EXPECT_THAT(message("[7]"), HasSubstr("question 0"));
  EXPECT_THAT(message(R"([{"answers": ["a"], "ctxs": []}])"), HasSubstr("'question'"));
  EXPECT_THAT(message(R"([{"question": "q", "cue": 1, "answers": ["a"], "ctxs": []}])"), HasSubstr("'cue'"));
  EXPECT_THAT(message(R"([{"question": "q", "system": [], "answers": ["a"], "ctxs": []}])"),
              HasSubstr("'system'"));
  EXPECT_THAT(message(R"([{"question": "q", "answers": [], "ctxs": []}])"), HasSubstr("'answers'"));
  EXPECT_THAT(message(R"([{"question": "q", "answers": [1], "ctxs": []}])"), HasSubstr("'answers'"));
  EXPECT_THAT(message(R"([{"question": "q", "answers": ["a"], "ctxs": []}])"), HasSubstr("'ctxs'"));
  EXPECT_THAT(message(R"([{"question": "q", "answers": ["a"], "ctxs": [{"title": "t"}]}])"),
              HasSubstr("'text'"));
}

TEST(DatasetTest, TheSampleLoads) {
  const auto questions = LoadQuestions(KVBLEND_SOURCE_DIR "/tests/fixtures/musique_sample.json");
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 5u);
  for (const BenchQuestion& question : *questions) EXPECT_EQ(question.passages.size(), 10u);
  EXPECT_THAT(questions->front().answers, ElementsAre("Exeter College"));
}

TEST(DatasetTest, MissingFileIsNotFound) {
  EXPECT_EQ(LoadQuestions("/no/such/file.json").status().code(), absl::StatusCode::kNotFound);
}

std::vector<std::string> Labels(const std::vector<BenchVariant>& variants) {
  std::vector<std::string> labels;
  for (const BenchVariant& variant : variants) labels.push_back(variant.Label());
  return labels;
}

TEST(BenchSpecTest, OneVariantPerCombinationThatMatters) {
  const auto variants = MakeVariants(
      {BenchMode::kBlend, BenchMode::kFull, BenchMode::kReuse, BenchMode::kPrefix},
      {v1::POLICY_QUERY, v1::POLICY_LINK}, {0.05, 0.15}, {v1::ANCHORING_ANCHORED, v1::ANCHORING_ISOLATED});
  ASSERT_TRUE(variants.ok()) << variants.status();
  EXPECT_THAT(Labels(*variants),
              ElementsAre("full", "prefix", "reuse anchored", "blend query 0.05 anchored",
                          "blend query 0.15 anchored", "blend link anchored", "reuse isolated",
                          "blend query 0.05 isolated", "blend query 0.15 isolated", "blend link isolated"));
}

TEST(BenchSpecTest, VariantsBecomeBlendOptions) {
  const auto variants =
      MakeVariants({BenchMode::kFull, BenchMode::kPrefix, BenchMode::kReuse, BenchMode::kBlend},
                   {v1::POLICY_HKVD}, {0.3}, {v1::ANCHORING_ISOLATED});
  ASSERT_TRUE(variants.ok()) << variants.status();
  ASSERT_EQ(variants->size(), 4u);
  EXPECT_EQ((*variants)[0].blend_options().reuse(), v1::REUSE_NOTHING);
  EXPECT_EQ((*variants)[1].blend_options().reuse(), v1::REUSE_PREFIX);
  EXPECT_EQ((*variants)[1].blend_options().anchoring(), v1::ANCHORING_ANCHORED);
  EXPECT_EQ((*variants)[2].blend_options().reuse(), v1::REUSE_CHUNKS);
  EXPECT_EQ((*variants)[2].blend_options().policy(), v1::POLICY_NONE);
  const v1::BlendOptions blend = (*variants)[3].blend_options();
  EXPECT_EQ(blend.reuse(), v1::REUSE_CHUNKS);
  EXPECT_EQ(blend.policy(), v1::POLICY_HKVD);
  EXPECT_EQ(blend.ratio(), 0.3);
  EXPECT_EQ(blend.anchoring(), v1::ANCHORING_ISOLATED);
  for (const BenchVariant& variant : *variants) {
    EXPECT_TRUE(variant.blend_options().has_store_misses() && !variant.blend_options().store_misses());
    EXPECT_TRUE(variant.blend_options().has_share_prefix() && !variant.blend_options().share_prefix());
  }
}

TEST(BenchSpecTest, RowsWithAndWithoutTheCorrection) {
  const auto variants = MakeVariants({BenchMode::kFull, BenchMode::kReuse, BenchMode::kBlend},
                                     {v1::POLICY_QUERY}, {0.1}, {v1::ANCHORING_ANCHORED}, {0}, {true, false});
  ASSERT_TRUE(variants.ok()) << variants.status();
  EXPECT_THAT(Labels(*variants),
              ElementsAre("full", "reuse anchored", "blend query 0.1 anchored", "reuse anchored uncorrected",
                          "blend query 0.1 anchored uncorrected"));
  EXPECT_FALSE((*variants)[1].blend_options().has_correction());
  EXPECT_TRUE((*variants)[3].blend_options().has_correction());
  EXPECT_FALSE((*variants)[3].blend_options().correction());
}

TEST(BenchSpecTest, AutomaticRatiosAndVotingLayers) {
  const auto variants = MakeVariants({BenchMode::kBlend}, {v1::POLICY_QUERY, v1::POLICY_HKVD},
                                     {*ParseBenchRatio("auto"), 0.1}, {v1::ANCHORING_ANCHORED}, {0, 20});
  ASSERT_TRUE(variants.ok()) << variants.status();
  EXPECT_THAT(Labels(*variants),
              ElementsAre("blend query auto anchored", "blend query 0.1 anchored",
                          "blend query by 20 layers auto anchored", "blend query by 20 layers 0.1 anchored",
                          "blend hkvd auto anchored", "blend hkvd 0.1 anchored"));
  EXPECT_EQ((*variants)[0].blend_options().ratio_mode(), v1::RATIO_MODE_AUTO);
  EXPECT_FALSE((*variants)[0].blend_options().has_ratio());
  EXPECT_EQ((*variants)[3].blend_options().ratio_mode(), v1::RATIO_MODE_FIXED);
  EXPECT_EQ((*variants)[3].blend_options().ratio(), 0.1);
  EXPECT_EQ((*variants)[3].blend_options().query_layers(), 20);
  for (const char* text : {"", "much", "-0.1", "1.5", "nan", "0.1x"}) {
    EXPECT_THAT(ParseBenchRatio(text).status().ToString(), HasSubstr("allowed: 0 to 1, or auto")) << text;
  }
}

TEST(BenchSpecTest, RefusesWhatMakesNoSense) {
  const std::vector<v1::Anchoring> anchored = {v1::ANCHORING_ANCHORED};
  EXPECT_FALSE(MakeVariants({}, {v1::POLICY_QUERY}, {0.1}, anchored).ok());
  EXPECT_FALSE(MakeVariants({BenchMode::kBlend}, {}, {0.1}, anchored).ok());
  EXPECT_FALSE(MakeVariants({BenchMode::kBlend}, {v1::POLICY_QUERY}, {}, anchored).ok());
  EXPECT_TRUE(MakeVariants({BenchMode::kBlend}, {v1::POLICY_ALL}, {}, anchored).ok());
  for (const double ratio : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    const auto variants = MakeVariants({BenchMode::kBlend}, {v1::POLICY_QUERY}, {ratio}, anchored);
    EXPECT_EQ(variants.status().code(), absl::StatusCode::kInvalidArgument) << ratio;
    EXPECT_THAT(variants.status().ToString(), HasSubstr("allowed: 0 to 1"));
  }
  EXPECT_THAT(ParseName<BenchMode>("mode", "fast").status().ToString(),
              HasSubstr("full, prefix, reuse, blend"));
}

TEST(BenchSpecTest, RowsHaveNamesThatAreReadBack) {
  for (const char* name : {"full", "prefix", "reuse", "reuse:isolated", "reuse:uncorrected", "query:0.15",
                           "query:auto", "query:0.05:20-layers:isolated", "hkvd:0.15:isolated", "cacheblend",
                           "link", "none", "all", "random:1:isolated:uncorrected", "query:0.05:unspread"}) {
    const auto row = ParseRow(name);
    ASSERT_TRUE(row.ok()) << row.status();
    EXPECT_EQ(row->RowName(), name);
  }
  EXPECT_EQ(*ParseRow("hkvd:unspread:uncorrected:isolated:0.15"), CacheBlendAsPublished());
  EXPECT_EQ(ParseRow("cacheblend")->Label(), "blend hkvd 0.15 isolated uncorrected unspread");
  EXPECT_EQ(*ParseRow("query:0.15"),
            MakeVariants({BenchMode::kBlend}, {v1::POLICY_QUERY}, {0.15}, {v1::ANCHORING_ANCHORED})->front());
  for (const char* name :
       {"", "best", "query", "query:2", "query:0.1:0-layers", "hkvd:0.1:3-layers", "full:isolated",
        "reuse:0.1", "link:0.1", "query:0.1:", "cacheblend:isolated", "reuse:unspread"}) {
    const absl::Status status = ParseRow(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.ToString(), HasSubstr("allowed: full, prefix, cacheblend")) << name;
  }
}

std::vector<std::string> Names(const absl::StatusOr<std::vector<BenchTask>>& tasks) {
  EXPECT_TRUE(tasks.ok()) << tasks.status();
  std::vector<std::string> names;
  for (const BenchTask& task : *tasks) names.push_back(absl::StrCat(task.data, task.index));
  return names;
}

TEST(BenchTasksTest, QuestionsOfEachFileInParts) {
  const std::vector<BenchData> data = {{.label = "a", .questions = std::vector<BenchQuestion>(5)},
                                       {.label = "b", .questions = std::vector<BenchQuestion>(2)}};
  EXPECT_THAT(Names(SelectTasks(data, 0, 0, {})), ElementsAre("a0", "a1", "a2", "a3", "a4", "b0", "b1"));
  EXPECT_THAT(Names(SelectTasks(data, 1, 2, {})), ElementsAre("a1", "a2", "b1"));
  EXPECT_THAT(Names(SelectTasks(data, 0, 0, *ParseShard("1/2"))), ElementsAre("a0", "a2", "a4", "b1"));
  EXPECT_THAT(Names(SelectTasks(data, 0, 0, *ParseShard("2/2"))), ElementsAre("a1", "a3", "b0"));
  EXPECT_THAT(SelectTasks(data, 2, 0, {}).status().ToString(),
              HasSubstr("first is 2, but b has 2 questions"));
  for (const char* text : {"", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2"}) {
    EXPECT_THAT(ParseShard(text).status().ToString(), HasSubstr("allowed: I/N")) << text;
  }
}

TEST(BenchTasksTest, FilesAreNamedWithoutFolderAndEnding) {
  const std::string sample = KVBLEND_SOURCE_DIR "/tests/fixtures/musique_sample.json";
  const auto data = LoadBenchData({sample});
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->front().label, "musique_sample");
  EXPECT_THAT(LoadBenchData({sample, sample}).status().ToString(), HasSubstr("two data files"));
}

TEST(BenchTasksTest, HashesTellQuestionsApart) {
  const BenchQuestion question{.question = "Q", .answers = {"A", "B"}, .passages = {{"T", "ab"}, {"U", "c"}}};
  BenchQuestion other = question;
  EXPECT_EQ(HashOf(question, 0), HashOf(other, 0));
  EXPECT_NE(HashOf(question, 0), HashOf(question, 1));
  other.answers = {"A"};
  EXPECT_NE(HashOf(question, 0), HashOf(other, 0));
  other = question;
  other.passages[1].text = "d";
  EXPECT_NE(HashOf(question, 0), HashOf(other, 0));
  EXPECT_EQ(HashOf(question, 1), HashOf(other, 1));  // not asked
}

}  // namespace
}  // namespace kvblend::server::cli
