#include "engine/prompt/corpus_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::prompt {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

class CorpusPromptsTest : public testing::Test {
 protected:
  CorpusPromptsTest() {
    text::SmallVocabulary vocabulary("gpt-2");
    auto tokenizer = text::Tokenizer::Create(vocabulary.spec);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  absl::StatusOr<std::vector<Prompt>> Prompts() const { return PromptsOfCorpus(corpus_, *tokenizer_); }
  std::string Error() const { return std::string(Prompts().status().message()); }

  std::unique_ptr<text::Tokenizer> tokenizer_;
  // A token per byte; no document is longer than a chunk.
  CalibrationCorpus corpus_{.documents = {}, .chunk_tokens = 32, .chunks_per_prompt = 3, .max_prompts = 0};
};

TEST_F(CorpusPromptsTest, EveryChunkStandsInOnePromptAndTheOrderIsAlwaysTheSame) {
  for (int i = 0; i < 11; ++i) corpus_.documents.push_back(absl::StrCat("Document ", i, "."));
  const auto prompts = Prompts();
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_THAT(*prompts, SizeIs(3));  // two chunks are left over
  std::set<std::string> seen;
  for (const Prompt& prompt : *prompts) {
    EXPECT_THAT(prompt.chunks, SizeIs(3));
    EXPECT_FALSE(prompt.question.empty());
    seen.insert(prompt.chunks.begin(), prompt.chunks.end());
  }
  EXPECT_THAT(seen, SizeIs(9));
  EXPECT_THAT(seen, Each(testing::MatchesRegex("Document [0-9]+\\.\n\n")));
  EXPECT_NE(prompts->front().chunks.front(), "Document 0.\n\n");  // shuffled
  EXPECT_EQ(Prompts()->back().chunks, prompts->back().chunks);

  corpus_.max_prompts = 2;
  EXPECT_THAT(*Prompts(), SizeIs(2));
  EXPECT_EQ(Prompts()->back().chunks, (*prompts)[1].chunks);
}

TEST_F(CorpusPromptsTest, LongDocumentsAreCut) {
  corpus_.documents = {std::string(400, 'a')};
  const auto prompts = Prompts();
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  EXPECT_GE(prompts->size(), 4);
  for (const Prompt& prompt : *prompts) {
    for (const std::string& chunk : prompt.chunks) EXPECT_LE(chunk.size(), 32 + 2);
  }
}

TEST_F(CorpusPromptsTest, WhatCannotBeIsNamed) {
  corpus_.documents = {"one", "two", "three", "four", "five"};
  EXPECT_THAT(Error(), HasSubstr("the documents have 5 chunks of up to 32 tokens; allowed: at least 6"));
  corpus_.documents.push_back("six");
  EXPECT_EQ(Error(), "");
  corpus_.chunks_per_prompt = 1;
  EXPECT_THAT(Error(), HasSubstr("chunks per prompt are 1; allowed: 2 to 1000"));
  corpus_.chunks_per_prompt = 3;
  corpus_.max_prompts = -1;
  EXPECT_THAT(Error(), HasSubstr("the most prompts are -1"));
  corpus_.max_prompts = 0;
  corpus_.chunk_tokens = 3;
  EXPECT_THAT(Error(), HasSubstr("chunk_tokens"));
  corpus_.chunk_tokens = 32;
  corpus_.documents.back() = "\xFF";
  EXPECT_THAT(Error(), HasSubstr("UTF-8"));
}

}  // namespace
}  // namespace kvblend::prompt
