#include "engine/prompt/split/prompt_split.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::prompt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kOwnNamespace = {"own"};
const std::string kOne = absl::StrCat("One: ", std::string(150, '1'));
const std::string kTwo = absl::StrCat("Two: ", std::string(150, '2'), "\nwith a second line");
const std::string kThree = absl::StrCat("Three: ", std::string(150, '3'));

/// The prompt's chunks, passages in brackets, and its question.
std::string Show(const Prompt& prompt, const std::vector<int32_t>& passages) {
  std::string text;
  for (size_t i = 0; i < prompt.chunks.size(); ++i) {
    const bool is_passage = std::find(passages.begin(), passages.end(), i) != passages.end();
    absl::StrAppend(&text, is_passage ? "[" : "", prompt.chunks[i], is_passage ? "]" : "", "|");
  }
  return text + prompt.question;
}

std::string Split(PromptSplit how, const std::string& question, const KnownTexts& known = KnownTexts(),
                  int32_t max_chunks = 100) {
  Prompt prompt;
  prompt.question = question;
  const std::vector<int32_t> passages = SplitPrompt(how, known, kOwnNamespace, max_chunks, &prompt);
  EXPECT_EQ(absl::StrJoin(prompt.chunks, "") + prompt.question, question);
  return Show(prompt, passages);
}

TEST(PromptSplitTest, KnownTextsArePassagesWhereverTheyStand) {
  KnownTexts known;
  known.Add("own", kOne);
  known.Add("own", kTwo);
  EXPECT_EQ(
      Split(PromptSplit::kStored, absl::StrCat("Context: ", kTwo, "\n    ", kOne, kThree, "\nQ?"), known),
      absl::StrCat("Context: |[", kTwo, "]|\n    |[", kOne, "]|", kThree, "\nQ?"));
  EXPECT_EQ(Split(PromptSplit::kStored, absl::StrCat(kThree, "\n\nQ?"), known),
            absl::StrCat(kThree, "\n\nQ?"));
}

// As LangChain's and LlamaIndex's prompts put them.
TEST(PromptSplitTest, ParagraphsArePassages) {
  EXPECT_EQ(Split(PromptSplit::kPassages, absl::StrCat("Use these.\n\n", kOne, "\n\n", kTwo, "\n \n\n",
                                                       kThree, "\n\nQuestion: Q?\nAnswer:")),
            absl::StrCat("Use these.\n\n|[", kOne, "]|\n\n|[", kTwo, "]|\n \n\n|[", kThree,
                         "]|\n\nQuestion: Q?\nAnswer:"));
  EXPECT_EQ(Split(PromptSplit::kPassages,
                  absl::StrCat("Answer from this context:\n", kOne, "\n\n", kThree, "\n\nQuestion: Q?")),
            absl::StrCat("Answer from this context:\n|[", kOne, "]|\n\n|[", kThree, "]|\n\nQuestion: Q?"));
}

TEST(PromptSplitTest, WhatMayBeTheQuestionIsNoPassage) {
  // One line, whose beginning is the question; and what lies behind the last blank line.
  const std::string text = absl::StrCat("Question: Q? Context: ", kOne, "\n\n", kThree);
  EXPECT_EQ(Split(PromptSplit::kPassages, text), text);
  EXPECT_EQ(Split(PromptSplit::kPassages, kOne), kOne);
  EXPECT_EQ(Split(PromptSplit::kPassages, absl::StrCat("x\n\n", kOne, "\n\n")),
            absl::StrCat("x\n\n", kOne, "\n\n"));
}

TEST(PromptSplitTest, ShortParagraphsAreTextBetween) {
  EXPECT_EQ(Split(PromptSplit::kPassages, absl::StrCat("Use.\n\n", kOne, "\n\nshort\n\n", kThree, "\n\nQ?")),
            absl::StrCat("Use.\n\n|[", kOne, "]|\n\nshort\n\n|[", kThree, "]|\n\nQ?"));
}

TEST(PromptSplitTest, ATextThatEndsWithAPassageKeepsItAsItsQuestion) {
  KnownTexts known;
  known.Add("own", kOne);
  known.Add("own", kThree);
  EXPECT_EQ(Split(PromptSplit::kStored, absl::StrCat(kThree, kOne, "\n"), known),
            absl::StrCat("[", kThree, "]|", kOne, "\n"));
  EXPECT_EQ(Split(PromptSplit::kStored, kOne, known), kOne);
}

TEST(PromptSplitTest, BlanksOfAllKindsAreNoQuestion) {
  for (const char* blank :
       {"\f", "\v", "\xC2\xA0", "\xE2\x80\xA8", "\xE3\x80\x80", "\xE2\x80\x8B", "\xEF\xBB\xBF"}) {
    const std::string text = absl::StrCat("Use.\n\n", kOne, "\n\n", kThree, "\n\n", blank, " ", blank);
    EXPECT_EQ(Split(PromptSplit::kPassages, text),
              absl::StrCat("Use.\n\n|[", kOne, "]|\n\n", kThree, "\n\n", blank, " ", blank));
  }
}

// What lies behind each passage is not looked through again: that would take longer than a test may.
TEST(PromptSplitTest, ManyPassagesInABlankTextAreLeftOutAtOnce) {
  const std::string text = "x" + std::string(16'000'000, ' ');
  std::vector<TextRange> known;
  for (size_t begin = 1; begin + 64 <= text.size(); begin += 64) known.push_back({begin, begin + 64});
  EXPECT_THAT(FindPassages(text, known, false, known.size()), IsEmpty());
}

TEST(PromptSplitTest, KnownTextsComeBeforeParagraphs) {
  KnownTexts known;
  const std::string whole = absl::StrCat(kOne, "\n\n", kTwo);
  known.Add("own", whole);
  EXPECT_EQ(Split(PromptSplit::kPassages, absl::StrCat("Use.\n\n", whole, "\n\n", kThree, "\n\nQ?"), known),
            absl::StrCat("Use.\n\n|[", whole, "]|\n\n|[", kThree, "]|\n\nQ?"));
}

TEST(PromptSplitTest, EarlierTurnsAreCutAsTheyWereThen) {
  const std::string text = absl::StrCat("Use.\n\n", kOne, "\n\nQ?");
  Prompt first, second;
  first.question = text;
  second.question = absl::StrCat("Use.\n\n", kTwo, "\n\nNext?");
  second.history = {{.role = Role::kUser, .text = text}, {.role = Role::kAssistant, .text = text}};
  SplitPrompt(PromptSplit::kPassages, KnownTexts(), kOwnNamespace, 100, &first);
  EXPECT_THAT(SplitPrompt(PromptSplit::kPassages, KnownTexts(), kOwnNamespace, 100, &second), ElementsAre(1));
  EXPECT_EQ(second.history[0].chunks, first.chunks);
  EXPECT_EQ(second.history[0].text, first.question);
  EXPECT_THAT(second.history[1].chunks, IsEmpty());
}

// Otherwise the KV that is kept of them would not be that of the same chunks.
TEST(PromptSplitTest, LaterTurnsDoNotChangeHowEarlierOnesAreCut) {
  const std::string text = absl::StrCat("Use.\n\n", kOne, "\n\n", kThree, "\n\nQ?");
  std::vector<Turn> before;
  for (int turn = 0; turn < 6; ++turn) {
    Prompt prompt;
    for (int i = 0; i < turn; ++i) prompt.history.push_back({.role = Role::kUser, .text = text});
    prompt.question = text;
    SplitPrompt(PromptSplit::kPassages, KnownTexts(), kOwnNamespace, 11, &prompt);
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(prompt.history[i].chunks, before[i].chunks) << turn << " " << i;
      EXPECT_EQ(prompt.history[i].text, before[i].text) << turn << " " << i;
    }
    EXPECT_EQ(prompt.chunks.size(), turn < 2 ? 4 : turn == 2 ? 2 : 0) << turn;
    before = std::move(prompt.history);
    before.push_back({.role = Role::kUser, .text = prompt.question, .chunks = prompt.chunks});
  }
}

// Sixteen texts stand in every place of each turn.
TEST(PromptSplitTest, ASearchEndsAtItsBoundHoweverManyTurnsThereAre) {
  KnownTexts known;
  for (size_t bytes = 64; bytes < 80; ++bytes) known.Add("own", std::string(bytes, 'a'));
  Prompt prompt;
  const std::string text = std::string(3000, 'a') + "?";
  for (int i = 0; i < 8; ++i) prompt.history.push_back({.role = Role::kUser, .text = text});
  prompt.question = text;
  EXPECT_THAT(SplitPrompt(PromptSplit::kStored, known, kOwnNamespace, 100'000, &prompt), IsEmpty());
  EXPECT_FALSE(prompt.history[0].chunks.empty());
  EXPECT_EQ(prompt.history[7].text, text);
}

TEST(PromptSplitTest, ChunksAreCounted) {
  const std::string text = absl::StrCat("Use.\n\n", kOne, "\n\n", kThree, "\n\n", kOne, "x\n\nQ?");
  EXPECT_EQ(Split(PromptSplit::kPassages, text, KnownTexts(), 5),
            absl::StrCat("Use.\n\n|[", kOne, "]|\n\n|[", kThree, "]|\n\n", kOne, "x\n\nQ?"));
  EXPECT_EQ(Split(PromptSplit::kPassages, text, KnownTexts(), 1), text);
}

TEST(PromptSplitTest, RandomTextsLoseNothingAndAreCutInTheSameWayAgain) {
  for (int seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    KnownTexts known;
    std::string text;
    const std::vector<std::string> parts = {"\n", "\n\n", " ",    "\r\n\r\n", "\t",
                                            kOne, kTwo,   kThree, "x",        "\n \n"};
    for (int i = 0; i < 30; ++i) text += parts[random() % parts.size()];
    if (seed % 2 == 0) known.Add("own", kTwo);
    const PromptSplit how = seed % 3 == 0 ? PromptSplit::kStored : PromptSplit::kPassages;
    Prompt prompt;
    prompt.question = text;
    const auto max_chunks = static_cast<int32_t>(random() % 40);
    const std::vector<int32_t> passages = SplitPrompt(how, known, kOwnNamespace, max_chunks, &prompt);
    EXPECT_EQ(absl::StrJoin(prompt.chunks, "") + prompt.question, text);
    EXPECT_LE(static_cast<int32_t>(prompt.chunks.size()), max_chunks);
    for (const std::string& chunk : prompt.chunks) EXPECT_FALSE(chunk.empty());
    if (!passages.empty()) {
      EXPECT_NE(prompt.question.find_first_not_of(" \t\r\n"), std::string::npos);
      EXPECT_EQ(passages.back() + 1, static_cast<int32_t>(prompt.chunks.size()));
    }
    EXPECT_EQ(Split(how, text, known, max_chunks), Show(prompt, passages));
  }
}

TEST(PromptSplitTest, SpansOfTextBetweenAreMarked) {
  PromptLayout layout;
  layout.spans = {{SpanKind::kLeadIn, -1, 0, 1},
                  {SpanKind::kChunk, 0, 1, 2},
                  {SpanKind::kChunk, 1, 2, 3},
                  {SpanKind::kQuestion, -1, 3, 4}};
  MarkTextBetween({1}, &layout);
  EXPECT_FALSE(layout.spans[0].is_text);
  EXPECT_TRUE(layout.spans[1].is_text);
  EXPECT_FALSE(layout.spans[2].is_text);
  EXPECT_FALSE(layout.spans[3].is_text);
}

}  // namespace
}  // namespace kvblend::prompt
