// tokenizer.json files: those of tests/fixtures/tokenizers, written by
// tests/fixtures/make_tokenizer_json_fixtures.py (or in the folder KVBLEND_TOKENIZER_CASES), give the ids of
// Hugging Face `tokenizers`; what cannot be done is refused.
#include "engine/text/hugging_face/tokenizer_json.h"

#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/text/fixture_cases.h"

namespace kvblend::text {
namespace {

using testing::HasSubstr;

std::string ReadJson(const std::string& name) {
  std::ifstream file(FixtureFolder() + name + ".json");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class TokenizerJsonFixtureTest : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerJsonFixtureTest, GivesTheSameIds) {
  const std::string name = GetParam();
  const auto spec = ReadTokenizerJson(ReadJson(name), name);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto tokenizer = Tokenizer::Create(*spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectSameIds(**tokenizer, name);
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerJsonFixtureTest,
                         testing::Values("hf_gpt2", "hf_smollm", "hf_llama3", "hf_qwen2", "hf_gpt_oss",
                                         "hf_tekken", "hf_deepseek_v3", "hf_llama2", "hf_mistral_v3",
                                         "hf_gemma", "phi/hf_phi2", "phi/hf_phi3", "phi/hf_phi4",
                                         "unigram/hf_plain", "unigram/hf_words"),
                         [](const auto& info) { return NameOfTest(info.param); });

// As tokenizers 0.23.3 has it, whose tables are those of Unicode 9.0.
TEST(NormalizationTest, LeavesLaterCharactersAlone) {
  using enum Normalization;
  EXPECT_EQ(Normalize("a\u0315\u0301", kNfc), "\u00E1\u0315");
  EXPECT_EQ(Normalize("a\u1DF6\u0301", kNfc), "a\u1DF6\u0301");                // a mark of 10.0
  EXPECT_EQ(Normalize("\U00011935\U00011930", kNfc), "\U00011935\U00011930");  // a pair of 13.0
  EXPECT_EQ(Normalize("\u32FE\u32FF", kNfkc), "\u30F2\u32FF");                 // 1.1 and 12.1
  EXPECT_EQ(Normalize("\uA7F4e\u0301\uFB01", kNfkc), "\uA7F4\u00E9fi");        // 14.0, others behind it
  EXPECT_EQ(Normalize("\u0301\u1112\u1161\u11AB", kNfc), "\u0301\uD55C");
  EXPECT_EQ(Normalize("\uFB01", kNone), "\uFB01");
}

// Were reading it the square of the number of objects in a list, as it was, this would take minutes.
TEST(TokenizerJsonTest, AListOfManyObjectsIsReadInItsLength) {
  std::string json = R"({"version": "1.0", "added_tokens": [{})";
  for (int i = 0; i < 400'000; ++i) json += ",{}";
  EXPECT_THAT(ReadTokenizerJson(json + "]}", "many").status().message(), HasSubstr("many"));
}

// What a text of nothing but marks costs: were it the square of its length, this would take hours.
TEST(NormalizationTest, OrdersManyMarks) {
  constexpr size_t kMarks = 1 << 20;
  std::string text = "a", below, above;
  for (size_t i = 0; i < kMarks; ++i) {
    text += i % 2 == 0 ? "\u0301" : "\u0316";
    (i % 2 == 0 ? above : below) += i % 2 == 0 ? "\u0301" : "\u0316";
  }
  EXPECT_EQ(Normalize(text, Normalization::kNfc), "\u00E1" + below + above.substr(2));
}

TEST(TokenizerJsonTest, KnowsWhatPromptsBeginAndAnswersEndWith) {
  const auto llama = ReadTokenizerJson(ReadJson("hf_llama3"), "llama");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_TRUE(llama->add_bos);
  EXPECT_EQ(llama->tokens.at(llama->bos.value()), "<|begin_of_text|>");
  const auto oss = ReadTokenizerJson(ReadJson("hf_gpt_oss"), "gpt_oss");
  ASSERT_TRUE(oss.ok()) << oss.status();
  EXPECT_FALSE(oss->add_bos);
  const auto tokenizer = Tokenizer::Create(*oss);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ends = [&](const char* name) {
    return (*tokenizer)->IsEndOfGeneration((*tokenizer)->FindSpecial(name).value());
  };
  EXPECT_TRUE(ends("<|return|>"));
  EXPECT_TRUE(ends("<|call|>"));
  EXPECT_FALSE(ends("<|end|>"));  // of a message, behind which the answer goes on
  EXPECT_FALSE(ends("<|start|>"));
}

TEST(TokenizerJsonTest, KnowsWhichControlTokensTakeWhitespace) {
  nlohmann::json json = nlohmann::json::parse(ReadJson("hf_llama3"));
  json["added_tokens"][0]["rstrip"] = true;
  json["added_tokens"][1]["lstrip"] = true;
  const auto spec = ReadTokenizerJson(json.dump(), "t.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->strips_behind, std::vector<TokenId>{json["added_tokens"][0]["id"].get<TokenId>()});
  EXPECT_EQ(spec->strips_before, std::vector<TokenId>{json["added_tokens"][1]["id"].get<TokenId>()});
}

using Spoil = std::function<void(nlohmann::json&)>;

void ExpectRefusal(const std::string& fixture, absl::StatusCode code,
                   const std::vector<std::pair<Spoil, std::string>>& cases) {
  const nlohmann::json sound = nlohmann::json::parse(ReadJson(fixture));
  for (const auto& [spoil, part] : cases) {
    nlohmann::json spoiled = sound;
    spoil(spoiled);
    const absl::Status status = ReadTokenizerJson(spoiled.dump(), "t.json").status();
    EXPECT_EQ(status.code(), code) << part << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(TokenizerJsonTest, RefusesWhatItDoesNotDo) {
  using Json = nlohmann::json;
  ExpectRefusal(
      "hf_gpt2", absl::StatusCode::kUnimplemented,
      {{[](Json& j) { j["model"]["type"] = "WordPiece"; }, "t.json: model is of type WordPiece"},
       {[](Json& j) { j["model"]["dropout"] = 0.5; }, "t.json: model.dropout is set"},
       {[](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix is set"},
       {[](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; },
        "pre_tokenizer adds a space in front"},
       {[](Json& j) { j["pre_tokenizer"]["type"] = "BertPreTokenizer"; },
        "pre_tokenizer is of type BertPreTokenizer; implemented: ByteLevel, Digits, Metaspace, Sequence, Split"},
       {[](Json& j) { j["pre_tokenizer"] = nullptr; }, "pre_tokenizer has neither ByteLevel nor Metaspace"},
       {[](Json& j) {
          j["normalizer"] = {{"type", "Lowercase"}};
        },
        "normalizer is of type Lowercase"},
       {[](Json& j) {
          j["post_processor"] = {{"type", "BertProcessing"}};
        },
        "post_processor is of type BertPro"},
       {[](Json& j) { j["model"]["vocab"]["far"] = 100000; },
        "model.vocab has the id 100000, but there are only"},
       {[](Json& j) { j["added_tokens"][0]["special"] = false, j["added_tokens"][0]["single_word"] = true; },
        "added_tokens[0] has 'single_word', and is not special"}});
  ExpectRefusal("hf_llama3", absl::StatusCode::kUnimplemented,
                {{[](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; },
                  "pre_tokenizer splits by the pattern '\\w+', which is none of gpt-2, smollm"},
                 {[](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; },
                  "pre_tokenizer.pretokenizers[0] has the behavior MergedWithNext"}});
  ExpectRefusal("hf_mistral_v3", absl::StatusCode::kUnimplemented,
                {{[](Json& j) { j["pre_tokenizer"]["split"] = true; }, "pre_tokenizer splits at spaces"},
                 {[](Json& j) { j["model"]["ignore_merges"] = true; }, "model.ignore_merges is true"}});
}

TEST(TokenizerJsonTest, RefusesUnigramModelsThatItDoesNotKnow) {
  using Json = nlohmann::json;
  ExpectRefusal("unigram/hf_plain", absl::StatusCode::kUnimplemented,
                {{[](Json& j) { j["model"]["type"] = "WordPiece"; },
                  "model is of type WordPiece; implemented: BPE, Unigram"},
                 {[](Json& j) { j["model"]["unk_id"] = nullptr; }, "model.unk_id is null"},
                 {[](Json& j) { j["model"]["vocab"][20][0] = "0x11"; }, "some bytes are no tokens"},
                 {[](Json& j) {
                    j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
                  },
                  "has ByteLevel for a model of characters"}});
  ExpectRefusal("unigram/hf_plain", absl::StatusCode::kInvalidArgument,
                {{[](Json& j) { j["model"]["vocab"] = Json::object(); }, "model.vocab is no array"},
                 {[](Json& j) { j["model"]["vocab"][3] = Json::array({"x"}); }, "is no text with a number"},
                 {[](Json& j) { j["model"]["vocab"][3] = j["model"]["vocab"][300]; }, "is there twice"},
                 {[](Json& j) { j["model"]["unk_id"] = 5000; }, "model.unk_id is not in the vocabulary"}});
}

TEST(TokenizerJsonTest, RefusesWhatIsMalformed) {
  using Json = nlohmann::json;
  ExpectRefusal(
      "hf_gpt2", absl::StatusCode::kInvalidArgument,
      {{[](Json& j) { j = Json::array(); }, "t.json is no JSON object"},
       {[](Json& j) { j.erase("model"); }, "t.json: model is no object"},
       {[](Json& j) { j["model"]["vocab"] = 1; }, "model.vocab is no object"},
       {[](Json& j) { j["model"]["vocab"]["a"] = -1; }, "model.vocab.a is no token id"},
       {[](Json& j) { j["model"]["vocab"]["new"] = 5; }, "has two tokens with the id 5"},
       {[](Json& j) { j["model"]["merges"][0] = {"a"}; }, "model.merges[0] is no pair"},
       {[](Json& j) { j["added_tokens"][0]["content"] = 7; }, "added_tokens[0].content is no string"},
       {[](Json& j) { j["model"]["type"] = 3; }, "model.type is no string"}});
  const auto message = [](const std::string& text) {
    const absl::Status status = ReadTokenizerJson(text, "t.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message("{\"model\":"), "t.json is no JSON object");
  EXPECT_EQ(message(std::string(1 << 20, '[')), "t.json is nested too deeply; allowed: 32 levels");
  std::string nested = "{\"a\":";
  nested += std::string(40, '[') + std::string(40, ']') + "}";
  EXPECT_EQ(message(nested), "t.json is nested too deeply; allowed: 32 levels");
  // What merges with what is for Tokenizer::Create to judge.
  Json json = Json::parse(ReadJson("hf_gpt2"));
  json["model"]["merges"].push_back("no such");
  const auto spec = ReadTokenizerJson(json.dump(), "t.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(Tokenizer::Create(*spec).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvblend::text
