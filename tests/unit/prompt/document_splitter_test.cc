// What holds for every document, over random texts and vocabularies; and a few documents by hand.
#include "engine/prompt/document_splitter.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::prompt {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<text::Tokenizer> MakeTokenizer(const std::string& pre_tokenizer) {
  text::SmallVocabulary vocabulary(pre_tokenizer);
  const std::pair<std::string, std::string> merges[] = {
      {"t", "h"}, {"th", "e"},  {" ", "the"}, {"a", "b"},       {"ab", "ab"},
      {" ", " "}, {"  ", "  "}, {"\n", "\n"}, {"\xC3", "\xA9"}, {"1", "2"}};
  for (const auto& [left, right] : merges) {
    vocabulary.AddMerge(left, right);
  }
  vocabulary.AddNamed("<tool>", text::kGgufUserDefined);
  auto tokenizer = text::Tokenizer::Create(vocabulary.spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string RandomText(std::mt19937& random) {
  static const std::vector<std::vector<std::string>> kStyles = {
      {"the ", "abab ", "cat", " ", ". ", "! ", "\n", "\n\n", "12", ",", "?\" "},  // prose
      {"\xE4\xB8\x96", "\xE7\x95\x8C", "\xE3\x80\x82", "\xF0\x9F\x98\x80", "\n"},  // no spaces
      {"ab", "the", "\xC3\xA9", "x"},                                              // one long word
      {" ", "  ", "\n", "\t", "\r\n"},                                             // nothing but space
      {"the ", "\xF0\x9F\x98\x80 ", "<tool>", "  ", "12.5 ", "\xC3\xA9t\xC3\xA9. ", "\r\n\r\n", "a.b"}};
  const std::vector<std::string>& words = kStyles[random() % kStyles.size()];
  std::string text;
  for (auto count = random() % 600; count > 0; --count) text += words[random() % words.size()];
  return text;
}

bool IsCut(std::string_view text, size_t position) {
  return position == text.size() || (static_cast<unsigned char>(text[position]) & 0xC0) != 0x80;
}

struct DocumentChunks {
  std::vector<DocumentChunk> chunks;
  size_t next_begin = 0;
};

absl::StatusOr<DocumentChunks> SplitWhole(std::string_view text, bool goes_on, const SplitOptions& options,
                                          const text::Tokenizer& tokenizer) {
  DocumentChunks split;
  const absl::StatusOr<size_t> next_begin =
      SplitDocument(text, goes_on, options, tokenizer, [&](const DocumentChunk& chunk) {
        split.chunks.push_back(chunk);
        return absl::OkStatus();
      });
  if (!next_begin.ok()) return next_begin.status();
  split.next_begin = *next_begin;
  return split;
}

/// What a reader of a long file does: pieces, each from where the next chunk begins.
std::vector<DocumentChunk> SplitInPieces(std::string_view text, const SplitOptions& options,
                                         const text::Tokenizer& tokenizer, std::mt19937& random) {
  std::vector<DocumentChunk> chunks;
  size_t begin = 0;
  size_t piece_bytes = 1 + random() % 200;
  while (begin < text.size()) {
    size_t end = std::min(begin + piece_bytes, text.size());
    while (!IsCut(text, end)) ++end;
    const auto piece = SplitWhole(text.substr(begin, end - begin), end < text.size(), options, tokenizer);
    EXPECT_TRUE(piece.ok()) << piece.status();
    for (DocumentChunk chunk : piece->chunks) {
      chunk.begin += begin;
      chunk.end += begin;
      chunks.push_back(std::move(chunk));
    }
    begin += piece->next_begin;
    piece_bytes = piece->chunks.empty() ? piece_bytes * 2 : 1 + random() % 2000;
  }
  return chunks;
}

TEST(DocumentSplitterTest, HoldsForEveryDocument) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<text::Tokenizer>> tokenizers;
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2"})
    tokenizers.push_back(MakeTokenizer(name));
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const text::Tokenizer& tokenizer = *tokenizers[random() % tokenizers.size()];
    const std::string text = RandomText(random);
    SplitOptions options;
    options.chunk_tokens = static_cast<int32_t>(kMinChunkTokens + random() % 100);
    options.overlap_tokens =
        static_cast<int32_t>(random() % static_cast<size_t>(options.chunk_tokens / 2 + 1));
    const auto split = SplitWhole(text, /*goes_on=*/false, options, tokenizer);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(split->next_begin, text.size());
    EXPECT_EQ(split->chunks.empty(), text.empty());

    for (size_t i = 0; i < split->chunks.size(); ++i) {
      SCOPED_TRACE(testing::Message()
                   << "chunk " << i << " of " << split->chunks.size() << ", " << options.chunk_tokens
                   << " tokens, overlap " << options.overlap_tokens);
      const DocumentChunk& chunk = split->chunks[i];
      ASSERT_LT(chunk.begin, chunk.end);
      ASSERT_LE(chunk.end, text.size());
      ASSERT_TRUE(IsCut(text, chunk.begin) && IsCut(text, chunk.end)) << "inside a character";
      const std::string_view own(text.data() + chunk.begin, chunk.end - chunk.begin);
      ASSERT_EQ(chunk.token_ids, tokenizer.Encode(own)) << "the tokens of the text on its own";
      ASSERT_LE(chunk.token_ids.size(), static_cast<size_t>(options.chunk_tokens));
      if (i == 0) {
        EXPECT_EQ(chunk.begin, 0u);
        continue;
      }
      const DocumentChunk& before = split->chunks[i - 1];
      ASSERT_GT(chunk.begin, before.begin);
      ASSERT_GT(chunk.end, before.end);
      ASSERT_LE(chunk.begin, before.end) << "a gap";
      // Cut out of its chunk, the overlap may have other tokens at its edge; how many, a word's length
      // bounds.
      const size_t shared =
          tokenizer.Encode(std::string_view(text).substr(chunk.begin, before.end - chunk.begin)).size();
      const size_t asked = static_cast<size_t>(options.overlap_tokens);
      EXPECT_LE(shared, asked + 4);
      EXPECT_GE(shared + 4, asked / 2) << "too little overlap";
    }
    if (!text.empty()) {
      EXPECT_EQ(split->chunks.back().end, text.size());
    }

    const auto again = SplitInPieces(text, options, tokenizer, random);
    ASSERT_EQ(again.size(), split->chunks.size()) << "other chunks when the text comes in pieces";
    for (size_t i = 0; i < again.size(); ++i) {
      ASSERT_EQ(again[i].begin, split->chunks[i].begin);
      ASSERT_EQ(again[i].end, split->chunks[i].end);
    }
  }
}

class DocumentSplitterExampleTest : public testing::Test {
 protected:
  std::vector<std::string> Split(std::string_view text, int32_t chunk_tokens, int32_t overlap_tokens) {
    const auto split = SplitWhole(text, false, {chunk_tokens, overlap_tokens}, *tokenizer_);
    EXPECT_TRUE(split.ok()) << split.status();
    std::vector<std::string> chunks;
    for (const DocumentChunk& chunk : split->chunks) {
      chunks.emplace_back(text.substr(chunk.begin, chunk.end - chunk.begin));
    }
    return chunks;
  }

  // Without merges every byte is a token: counting is easy.
  const std::unique_ptr<text::Tokenizer> tokenizer_ = *text::Tokenizer::Create(text::SmallVocabulary().spec);
};

TEST_F(DocumentSplitterExampleTest, PrefersParagraphsThenSentencesThenWords) {
  EXPECT_THAT(Split("One two. Three\n\nfour. Five six", 24, 0),
              testing::ElementsAre("One two. Three\n\n", "four. Five six"));
  EXPECT_THAT(Split("One two three. Four five six", 24, 0),
              testing::ElementsAre("One two three. ", "Four five six"));
  EXPECT_THAT(Split("One two three four five six", 24, 0),
              testing::ElementsAre("One two three four five ", "six"));
  EXPECT_THAT(Split("abcdefghijklmnopqrstuvwxyz", 16, 0),
              testing::ElementsAre("abcdefghijklmnop", "qrstuvwxyz"));
}

TEST_F(DocumentSplitterExampleTest, AGoodPlaceTooFarInFrontIsNoGoodPlace) {
  EXPECT_THAT(Split("One.\n\nTwo three four five", 24, 0),
              testing::ElementsAre("One.\n\nTwo three four ", "five"));
}

TEST_F(DocumentSplitterExampleTest, TheOverlapBeginsWhereAWordDoes) {
  EXPECT_THAT(Split("aaaa bbbb cccc dddd eeee ffff", 20, 8),
              testing::ElementsAre("aaaa bbbb cccc dddd ", "dddd eeee ffff"));
  EXPECT_THAT(Split("abcdefghijklmnopqrstuvwxyz", 16, 4),
              testing::ElementsAre("abcdefghijklmnop", "mnopqrstuvwxyz"));
}

TEST_F(DocumentSplitterExampleTest, ShortDocumentsAreOneChunk) {
  EXPECT_THAT(Split("", 16, 4), testing::IsEmpty());
  EXPECT_THAT(Split("short", 16, 4), testing::ElementsAre("short"));
  EXPECT_THAT(Split("exactly sixteen.", 16, 8), testing::ElementsAre("exactly sixteen."));
}

TEST_F(DocumentSplitterExampleTest, WhatIsWrongIsNamed) {
  const auto error = [&](std::string_view text, SplitOptions options) {
    const auto split = SplitWhole(text, false, options, *tokenizer_);
    EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(split.status().message());
  };
  EXPECT_EQ(error("text", {15, 0}), "chunk_tokens is 15; allowed: 16 and up");
  EXPECT_EQ(error("text", {16, 9}), "overlap_tokens is 9; allowed: 0 to half of chunk_tokens, 8");
  EXPECT_EQ(error("text", {16, -1}), "overlap_tokens is -1; allowed: 0 to half of chunk_tokens, 8");
  EXPECT_THAT(error("bad \xFF", {16, 0}), HasSubstr("UTF-8 at byte 4"));
}

TEST_F(DocumentSplitterExampleTest, AnErrorOfTheTakerEndsIt) {
  int taken = 0;
  const auto split = SplitDocument(
      "One two three four five six seven eight", false, {16, 0}, *tokenizer_,
      [&](const DocumentChunk&) { return ++taken < 2 ? absl::OkStatus() : absl::CancelledError("enough"); });
  EXPECT_EQ(split.status(), absl::CancelledError("enough"));
  EXPECT_EQ(taken, 2);
}

// Under NFKC this one is 18 characters, 33 bytes.
TEST(DocumentSplitterTest, ACharacterOfMoreTokensThanAChunkMayHaveIsNamed) {
  text::SmallVocabulary vocabulary;
  vocabulary.spec.normalization = text::Normalization::kNfkc;
  const auto tokenizer = text::Tokenizer::Create(vocabulary.spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "0123456789abcdef\uFDFA0123";
  const auto split = SplitWhole(text, false, {16, 4}, **tokenizer);
  EXPECT_EQ(split.status(),
            absl::InvalidArgumentError("chunk_tokens is 16; allowed: 33 and up, the tokens of "
                                       "the character at byte 16 of the text"));
  const auto enough = SplitWhole(text, false, {33, 0}, **tokenizer);
  ASSERT_TRUE(enough.ok()) << enough.status();
  for (const DocumentChunk& chunk : enough->chunks) EXPECT_LE(chunk.token_ids.size(), 33u);
}

}  // namespace
}  // namespace kvblend::prompt
