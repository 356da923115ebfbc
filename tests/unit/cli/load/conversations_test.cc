#include "server/cli/load/conversations.h"

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<BenchQuestion> FiveQuestions() {
  std::vector<BenchQuestion> questions;
  for (int i = 0; i < 5; ++i) {
    questions.push_back({.question = absl::StrCat("Q", i), .answers = {"A"}, .passages = {}});
    for (int j = 0; j < 4; ++j) {
      questions.back().passages.push_back({.title = "T", .text = absl::StrCat("text ", i, " ", j)});
    }
  }
  return questions;
}

TEST(ConversationsTest, TurnsGoOnWithTheNextQuestionOverTheSameChunks) {
  const auto conversations =
      *MakeConversations(FiveQuestions(), {.turns = 3, .passages = 2, .zipf = {}, .output = {5, 5}});
  ASSERT_THAT(conversations, SizeIs(5));
  const Conversation& last = conversations[4];
  EXPECT_THAT(last.prompt.chunks(), ElementsAre("T\ntext 4 0\n\n", "T\ntext 4 1\n\n"));
  const v1::GenerateRequest request = last.Request(2, {"one", "two"}, {}, "n");
  EXPECT_EQ(request.namespace_(), "n");
  EXPECT_THAT(request.prompt().question(), HasSubstr("Question: Q1\n"));
  ASSERT_EQ(request.prompt().history_size(), 4);
  EXPECT_THAT(request.prompt().history(0).text(), HasSubstr("Q4"));
  EXPECT_EQ(request.prompt().history(1).text(), "one");
  EXPECT_EQ(request.prompt().history(1).role(), v1::ROLE_ASSISTANT);
  EXPECT_THAT(request.prompt().history(2).text(), HasSubstr("Q0"));
  EXPECT_EQ(request.prompt().history(3).text(), "two");
  EXPECT_EQ(request.prompt().history(0).chunks_size(), 2);
  EXPECT_EQ(request.prompt().chunks_size(), 0);
  EXPECT_EQ(request.sampling().max_tokens(), 5);
  EXPECT_TRUE(request.sampling().ignore_eos());
  EXPECT_FALSE(request.blend().store_misses());
  EXPECT_EQ(request.blend().reuse(), v1::REUSE_NOTHING);
  const std::vector<ChunkGroup> groups = GroupChunks(conversations, /*isolated=*/false);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_THAT(groups[0].chunks, SizeIs(10));
}

TEST(ConversationsTest, ChunksAreGroupedByWhatTheyStandBehind) {
  std::vector<BenchQuestion> questions = FiveQuestions();
  questions[1].system_text = "Be brief.";
  questions[3].system_text = "Be brief.";
  questions[3].passages[0] = questions[1].passages[0];
  questions[4].passages[0] = questions[1].passages[0];
  const auto conversations = *MakeConversations(questions, {.passages = 2, .zipf = {}, .output = {}});
  const std::vector<ChunkGroup> groups = GroupChunks(conversations, /*isolated=*/false);
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_EQ(groups[0].system_text, conversations[0].prompt.system_text());
  EXPECT_EQ(groups[0].lead_in, conversations[0].prompt.lead_in());
  EXPECT_THAT(groups[0].chunks, SizeIs(6));
  EXPECT_EQ(groups[1].system_text, "Be brief.");
  EXPECT_THAT(groups[1].chunks, SizeIs(3));
  const std::vector<ChunkGroup> isolated = GroupChunks(conversations, /*isolated=*/true);
  ASSERT_THAT(isolated, SizeIs(1));
  EXPECT_EQ(isolated[0].system_text, "");
  EXPECT_EQ(isolated[0].lead_in, "");
  EXPECT_THAT(isolated[0].chunks, SizeIs(8));
}

TEST(ConversationsTest, ZipfMixesThePassagesOfAllQuestions) {
  const auto make = [](uint64_t seed) {
    return *MakeConversations(FiveQuestions(),
                              {.count = 400, .passages = 3, .zipf = 1, .output = {}, .seed = seed});
  };
  const auto conversations = make(1);
  ASSERT_THAT(conversations, SizeIs(400));
  std::map<std::string, int> counts;
  for (const Conversation& conversation : conversations) {
    const auto& chunks = conversation.prompt.chunks();
    EXPECT_THAT(std::set<std::string>(chunks.begin(), chunks.end()), SizeIs(3));
    for (const std::string& chunk : chunks) ++counts[chunk];
  }
  EXPECT_THAT(counts, SizeIs(20));
  std::vector<int> sorted;
  for (const auto& [chunk, count] : counts) sorted.push_back(count);
  std::sort(sorted.rbegin(), sorted.rend());
  EXPECT_GT(sorted.front(), 4 * sorted.back());
  EXPECT_EQ(make(1)[7].prompt.SerializeAsString(), conversations[7].prompt.SerializeAsString());
  EXPECT_NE(make(2)[7].prompt.SerializeAsString(), conversations[7].prompt.SerializeAsString());
}

TEST(ConversationsTest, TooFewPassagesAreRefused) {
  const auto conversations = MakeConversations(FiveQuestions(), {.passages = 21, .zipf = 1, .output = {}});
  EXPECT_THAT(std::string(conversations.status().message()),
              HasSubstr("passages is 21, but these questions have 20"));
}

TEST(ConversationsTest, LengthsAreWithinTheirBounds) {
  const OutputLength length = *ParseOutputLength("3-6");
  std::map<int, int> counts;
  const auto conversations =
      *MakeConversations(FiveQuestions(), {.count = 4000, .zipf = {}, .output = length});
  for (const Conversation& conversation : conversations) {
    ++counts[conversation.output_tokens[0]];
  }
  ASSERT_THAT(counts, SizeIs(4));
  for (const auto& [tokens, count] : counts) EXPECT_NEAR(count, 1000, 120) << tokens;  // over 4 sigma
  EXPECT_EQ(counts.begin()->first, 3);
  EXPECT_EQ(ParseOutputLength("7")->most, 7);
  for (const std::string text : {"", "0", "5-4", "a", "5-", "-5", "5-6-7"}) {
    EXPECT_THAT(std::string(ParseOutputLength(text).status().message()),
                HasSubstr("output-tokens is '" + text))
        << text;
  }
}

}  // namespace
}  // namespace kvblend::server::cli
