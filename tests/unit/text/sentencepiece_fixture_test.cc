// SentencePiece's models against SentencePiece: tests/fixtures/tokenizers, written by
// tests/fixtures/make_sentencepiece_fixtures.py (or in the folder KVBLEND_TOKENIZER_CASES).
#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "engine/text/stream_decoder.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/text/fixture_cases.h"

namespace kvblend::text {
namespace {

TokenizerSpec ReadSpec(const std::string& name) {
  TokenizerSpec spec;
  std::ifstream file(FixtureFolder() + name + ".json");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << name;
  if (!json.is_object()) return spec;
  spec.model = TokenizerModel::kSentencePieceBpe;
  spec.tokens = json.at("tokens").get<std::vector<std::string>>();
  spec.scores = json.at("scores").get<std::vector<float>>();
  spec.token_types = json.at("token_type").get<std::vector<int32_t>>();
  spec.add_space_prefix = json.at("add_space_prefix");
  spec.remove_extra_whitespaces = json.at("remove_extra_whitespaces");
  spec.unknown = json.at("unknown_token_id");
  if (name.starts_with("unigram")) {
    spec.model = TokenizerModel::kUnigram;
    spec.unigram_precision = UnigramModel::Precision::kSingle;
    spec.unigram_scores.assign(spec.scores.begin(), spec.scores.end());
    float lowest = 0;
    for (size_t i = 0; i < spec.tokens.size(); ++i) {
      if (spec.token_types[i] == kGgufNormal) lowest = std::min(lowest, spec.scores[i]);
    }
    spec.unigram_unknown_score = lowest - 10.0f;
  }
  return spec;
}

class SentencePieceFixtureTest : public testing::TestWithParam<const char*> {};

TEST_P(SentencePieceFixtureTest, GivesTheSameIds) {
  const auto tokenizer = Tokenizer::Create(ReadSpec(GetParam()));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectSameIds(**tokenizer, GetParam());
}

// U+2581 and extra spaces do not come back; all else does, from a stream as well.
TEST_P(SentencePieceFixtureTest, DecodesToTheText) {
  const TokenizerSpec spec = ReadSpec(GetParam());
  const auto tokenizer = Tokenizer::Create(spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  int compared = 0;
  for (const FixtureCase& fixture_case : ReadCases(GetParam())) {
    const std::vector<TokenId> tokens = (*tokenizer)->Encode(fixture_case.text);
    const std::string decoded = (*tokenizer)->Decode(tokens, /*skip_special=*/false);
    StreamDecoder decoder(**tokenizer, /*skip_special=*/false);
    std::string streamed;
    for (const TokenId token : tokens) streamed += decoder.Append(token);
    ASSERT_EQ(streamed + decoder.Flush(), decoded);
    std::string text;
    AppendReplacingInvalidUtf8(fixture_case.text, /*keep_incomplete=*/false, &text);
    if (spec.remove_extra_whitespaces || text.find("\u2581") != std::string::npos) continue;
    ASSERT_EQ(decoded, text);
    ++compared;
  }
  EXPECT_GE(compared, spec.remove_extra_whitespaces ? 0 : 150);
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceFixtureTest,
                         testing::Values("llama", "gemma", "crossing", "unigram/plain", "unigram/crossing"),
                         [](const auto& info) { return NameOfTest(info.param); });

// What goes on behind other text gets no space in front.
TEST(SentencePieceTest, OnlyTheStartGetsASpace) {
  const auto tokenizer = Tokenizer::Create(ReadSpec("llama"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<TokenId> tokens = (*tokenizer)->Encode("one\n");
  const std::vector<TokenId> rest = (*tokenizer)->Encode("two", TextPosition::kWithin);
  EXPECT_NE(rest, (*tokenizer)->Encode("two"));
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  EXPECT_EQ(tokens, (*tokenizer)->Encode("one\ntwo"));
  EXPECT_EQ((*tokenizer)->Decode(tokens, true), "one\ntwo");
  EXPECT_TRUE((*tokenizer)->Encode("").empty());
}

// One word of a million letters, for which no word boundary helps.
TEST(SentencePieceTest, EncodesAVeryLongWord) {
  const std::string text = std::string(1 << 20, 'e') + std::string(1 << 18, ' ');
  for (const char* model : {"llama", "unigram/plain"}) {
    const auto tokenizer = Tokenizer::Create(ReadSpec(model));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode(text), true), text) << model;
  }
}

TEST(SentencePieceTest, RefusesContradictions) {
  const TokenizerSpec sound = ReadSpec("llama");
  const auto refusal = [&](auto spoil) {
    TokenizerSpec spec = sound;
    spoil(spec);
    const absl::Status status = Tokenizer::Create(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](auto& spec) { spec.scores.pop_back(); }),
            "tokenizer.ggml.scores has 899 entries; tokenizer.ggml.tokens has 900");
  EXPECT_EQ(refusal([](auto& spec) { spec.scores[7] = std::numeric_limits<float>::quiet_NaN(); }),
            "tokenizer.ggml.scores[7] is nan; allowed: finite numbers");
  EXPECT_EQ(refusal([](auto& spec) { spec.tokens[3] = "<0xG0>"; }),
            "tokenizer.ggml.tokens[3] is '<0xG0>' and of type byte; allowed: <0x00> to <0xFF>");
  EXPECT_EQ(refusal([](auto& spec) { spec.unknown = 900; }),
            "tokenizer.ggml.unknown_token_id is 900; allowed: 0 to 899 (the vocabulary)");
}

TEST(SentencePieceTest, RefusesUnigramScoresThatAreNone) {
  const TokenizerSpec sound = ReadSpec("unigram/plain");
  const auto refusal = [&](auto spoil) {
    TokenizerSpec spec = sound;
    spoil(spec.unigram_scores);
    return std::string(Tokenizer::Create(spec).status().message());
  };
  EXPECT_EQ(refusal([](auto& scores) { scores.pop_back(); }),
            "tokenizer.ggml.scores has 899 entries; tokenizer.ggml.tokens has 900");
  EXPECT_EQ(refusal([](auto& scores) { scores[7] = std::numeric_limits<double>::infinity(); }),
            "tokenizer.ggml.scores[7] is inf; allowed: finite numbers");
}

// For short texts, compares with a search through all segmentations.
TEST(UnigramTest, FindsTheMostProbableOfAllSegmentations) {
  struct Scored {
    std::string text;
    double score;
  };
  const std::vector<Scored> pieces = {{"a", -1.5},  {"b", -2.25},  {"ab", -3.0},   {"ba", -3.5},
                                      {"aa", -2.0}, {"aab", -4.5}, {"abab", -5.0}, {"\u00e9", -4.0}};
  constexpr double kUnknown = -16;
  UnigramModel model;
  Pieces fallback;
  for (size_t i = 0; i < pieces.size(); ++i) {
    model.Add(pieces[i].text, static_cast<TokenId>(i), pieces[i].score);
  }
  fallback.SetUnknown(99);
  model.Finish(kUnknown, UnigramModel::Precision::kDouble);
  const auto score_of = [&](const std::vector<TokenId>& tokens) {
    double sum = 0;
    for (const TokenId token : tokens) sum += pieces.at(static_cast<size_t>(token)).score;
    return sum;
  };
  // 3 letters, up to 7 of them: every text.
  const std::vector<std::string> letters = {"a", "b", "\u00e9"};
  for (int number = 0; number < 3 * 3 * 3 * 3 * 3 * 3 * 3; ++number) {
    std::string text;
    for (int rest = number, i = 0; i < 7; ++i, rest /= 3) text += letters[static_cast<size_t>(rest % 3)];
    std::vector<double> best(text.size() + 1, -std::numeric_limits<double>::infinity());
    best[0] = 0;
    for (size_t begin = 0; begin < text.size(); ++begin) {
      for (const Scored& piece : pieces) {
        if (text.compare(begin, piece.text.size(), piece.text) != 0) continue;
        double& target = best[begin + piece.text.size()];
        target = std::max(target, best[begin] + piece.score);
      }
    }
    std::vector<TokenId> tokens;
    model.AppendTokens(text, fallback, &tokens);
    ASSERT_EQ(score_of(tokens), best[text.size()]) << text;
    std::string joined;
    for (const TokenId token : tokens) joined += pieces[static_cast<size_t>(token)].text;
    ASSERT_EQ(joined, text);
  }
  std::vector<TokenId> tokens;
  model.AppendTokens("xyab z", fallback, &tokens);
  EXPECT_EQ(tokens, (std::vector<TokenId>{99, 2, 99}));  // neighbours that are unknown are one
}

}  // namespace
}  // namespace kvblend::text
