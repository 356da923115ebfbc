// SentencePiece's BPE against SentencePiece: tests/fixtures/tokenizers, written by
// tests/fixtures/make_sentencepiece_fixtures.py (or in the folder KVBLEND_TOKENIZER_CASES).
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

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceFixtureTest, testing::Values("llama", "gemma", "crossing"),
                         [](const auto& info) { return std::string(info.param); });

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
  const auto tokenizer = Tokenizer::Create(ReadSpec("llama"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = std::string(1 << 20, 'e') + std::string(1 << 18, ' ');
  EXPECT_EQ((*tokenizer)->Decode((*tokenizer)->Encode(text), true), text);
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

}  // namespace
}  // namespace kvblend::text
