// The tokenizer on vocabularies made here: merging against the definition, control tokens, refusals. That ids
// equal the references' on real text is the matter of the fixture tests.
#include "engine/text/tokenizer.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::text {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Optional;

using Vocabulary = SmallVocabulary;

std::unique_ptr<Tokenizer> Make(const Vocabulary& vocabulary) {
  auto tokenizer = Tokenizer::Create(vocabulary.spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<std::string> Words(PreTokenizer pre_tokenizer, std::string_view text) {
  std::vector<std::string> words;
  WordScanner scanner(pre_tokenizer, text);
  for (std::string_view word = scanner.Next(); !word.empty(); word = scanner.Next()) words.emplace_back(word);
  return words;
}

TEST(WordScannerTest, CutsAsThePatternsSay) {
  const std::string text = "I'M it's  a\t12345\n\n x!\n";
  EXPECT_THAT(Words(PreTokenizer::kGpt2, text),
              ElementsAre("I", "'", "M", " it", "'s", " ", " a", "\t", "12345", "\n\n", " x", "!", "\n"));
  EXPECT_THAT(Words(PreTokenizer::kSmolLm, text),
              ElementsAre("I", "'", "M", " it", "'s", " ", " a", "\t", "1", "2", "3", "4", "5", "\n\n", " x",
                          "!", "\n"));
  EXPECT_THAT(Words(PreTokenizer::kLlamaBpe, text),
              ElementsAre("I", "'M", " it", "'s", " ", " a", "\t", "123", "45", "\n\n", " x", "!\n"));
  EXPECT_THAT(Words(PreTokenizer::kQwen2, text), ElementsAre("I", "'M", " it", "'s", " ", " a", "\t", "1",
                                                             "2", "3", "4", "5", "\n\n", " x", "!\n"));
}

// U+017F, the long s, is an s when case is ignored.
TEST(WordScannerTest, LongSMakesAContraction) {
  EXPECT_THAT(Words(PreTokenizer::kLlamaBpe, "x'\u017Fy'Sy"), ElementsAre("x", "'\u017F", "y", "'S", "y"));
  EXPECT_THAT(Words(PreTokenizer::kGpt2, "x'\u017Fy"), ElementsAre("x", "'", "\u017Fy"));
}

// smollm's stretches between numbers are matched each on its own: nothing is seen beyond a number.
TEST(WordScannerTest, SmolLmKeepsSpacesBeforeANumberTogether) {
  EXPECT_THAT(Words(PreTokenizer::kSmolLm, "a   1"), ElementsAre("a", "   ", "1"));
  EXPECT_THAT(Words(PreTokenizer::kGpt2, "a   1"), ElementsAre("a", "  ", " 1"));
}

TEST(TokenizerTest, MergesByRankThenFromTheLeft) {
  Vocabulary vocabulary;
  const TokenId bc = vocabulary.AddMerge("b", "c");
  vocabulary.AddMerge("a", "b");
  const TokenId aa = vocabulary.AddMerge("a", "a");
  const auto tokenizer = Make(vocabulary);
  EXPECT_THAT(tokenizer->Encode("abc"), ElementsAre(Vocabulary::Byte('a'), bc));
  EXPECT_THAT(tokenizer->Encode("aaa"), ElementsAre(aa, Vocabulary::Byte('a')));
}

// The definition: while some neighbours have a merge, apply the one of lowest rank, leftmost first.
std::vector<TokenId> MergeByDefinition(
    const std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>>& merges,
    std::vector<TokenId> tokens) {
  for (;;) {
    int best_rank = -1;
    size_t best = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto merge = merges.find({tokens[i], tokens[i + 1]});
      if (merge != merges.end() && (best_rank < 0 || merge->second.first < best_rank)) {
        best_rank = merge->second.first;
        best = i;
      }
    }
    if (best_rank < 0) return tokens;
    tokens[best] = merges.at({tokens[best], tokens[best + 1]}).second;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(TokenizerTest, EqualsTheDefinitionOfMergingOnRandomVocabularies) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    Vocabulary vocabulary;
    std::vector<std::string> pieces = {"a", "b", "c"};
    std::map<std::string, TokenId> id_of;
    for (const std::string& piece : pieces) id_of[piece] = Vocabulary::Byte(piece[0]);
    std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>> merges;
    BpeMerges rules;
    for (const std::string& piece : pieces) {
      rules.SetByteToken(static_cast<uint8_t>(piece[0]), Vocabulary::Byte(piece[0]));
    }
    std::vector<std::pair<std::string, std::string>> pairs;
    for (int i = 0; i < 25; ++i) {
      const std::string left = pieces[random() % pieces.size()];
      const std::string right = pieces[random() % pieces.size()];
      if (left.size() + right.size() > 12 || std::ranges::count(pairs, std::pair(left, right)) > 0) continue;
      pairs.emplace_back(left, right);
      if (id_of.contains(left + right)) continue;  // a second way to make the same token
      id_of[left + right] = vocabulary.Add(left + right);
      pieces.push_back(left + right);
    }
    // In any order, so that merges also bring up pairs of lower rank than their own.
    std::shuffle(pairs.begin(), pairs.end(), random);
    for (const auto& [left, right] : pairs) {
      merges[{id_of[left], id_of[right]}] = {static_cast<int>(merges.size()), id_of[left + right]};
      rules.AddRule({id_of[left], id_of[right], id_of[left + right]});
      vocabulary.spec.merges.push_back(left + " " + right);
    }
    const auto tokenizer = Make(vocabulary);
    BpeMerger long_word_merger(rules, /*long_word=*/0);
    for (int word = 0; word < 40; ++word) {
      std::string text;
      std::vector<TokenId> bytes;
      for (unsigned length = 1 + random() % 90; length > 0; --length) {
        text.push_back(static_cast<char>('a' + random() % 3));
        bytes.push_back(Vocabulary::Byte(text.back()));
      }
      const std::vector<TokenId> expected = MergeByDefinition(merges, bytes);
      ASSERT_EQ(tokenizer->Encode(text), expected) << "round " << round << ": " << text;
      std::vector<TokenId> by_buckets;
      long_word_merger.AppendTokens(text, &by_buckets);
      ASSERT_EQ(by_buckets, expected) << "round " << round << ": " << text;
      // A word that repeats within one text is encoded from memory.
      std::vector<TokenId> twice = tokenizer->Encode(text);
      const std::vector<TokenId> once = twice;
      twice.push_back(Vocabulary::Byte('\n'));
      twice.insert(twice.end(), once.begin(), once.end());
      ASSERT_EQ(tokenizer->Encode(text + "\n" + text), twice);
    }
  }
}

// Rules without strings behind them: many make the same token, so that a rank's pairs come up in any order.
TEST(BpeMergerTest, HeapAndBucketsEqualTheDefinition) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    constexpr TokenId kNumBytes = 4;
    constexpr TokenId kNumTokens = 9;
    BpeMerges rules;
    std::map<std::pair<TokenId, TokenId>, std::pair<int, TokenId>> merges;
    for (TokenId byte = 0; byte < kNumBytes; ++byte) rules.SetByteToken(static_cast<uint8_t>(byte), byte);
    for (int rank = 0; rank < 14; ++rank) {
      const auto left = static_cast<TokenId>(random() % (kNumTokens - 1));
      const auto right = random() % 3 == 0 ? left : static_cast<TokenId>(random() % (kNumTokens - 1));
      const TokenId first = std::max({left, right, kNumBytes - 1}) + 1;
      const TokenId result = first + static_cast<TokenId>(random() % (kNumTokens - first));
      rules.AddRule({left, right, result});
      merges[{left, right}] = {rank, result};
    }
    BpeMerger by_heap(rules, /*long_word=*/1000);
    BpeMerger by_buckets(rules, /*long_word=*/0);
    for (int word = 0; word < 20; ++word) {
      std::string text;
      for (unsigned length = 1 + random() % 60; length > 0; --length) {
        text.push_back(static_cast<char>(random() % kNumBytes));
      }
      const std::vector<TokenId> expected = MergeByDefinition(merges, {text.begin(), text.end()});
      std::vector<TokenId> tokens;
      by_heap.AppendTokens(text, &tokens);
      ASSERT_EQ(tokens, expected) << "round " << round;
      tokens.clear();
      by_buckets.AppendTokens(text, &tokens);
      ASSERT_EQ(tokens, expected) << "round " << round;
    }
  }
}

// One word of a quarter of a million bytes: quadratic merging would take minutes.
TEST(TokenizerTest, EncodesAVeryLongWord) {
  constexpr size_t kLength = 1 << 18;
  Vocabulary vocabulary;
  std::string piece = "a";
  for (int i = 0; i < 6; ++i, piece += piece) vocabulary.AddMerge(piece, piece);
  for (const char* pre_tokenizer : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    vocabulary.spec.pre_tokenizer = pre_tokenizer;
    const auto tokenizer = Make(vocabulary);
    const std::vector<TokenId> tokens = tokenizer->Encode(std::string(kLength, 'a'));
    EXPECT_EQ(tokens, std::vector<TokenId>(kLength / 64, Vocabulary::kFirstMerged + 5)) << pre_tokenizer;
    for (const std::string& run :
         {std::string(kLength, ' '), std::string(kLength, '\n'), std::string(kLength, '7'),
          std::string(kLength, '!'), std::string(kLength, '\'')}) {
      EXPECT_EQ(tokenizer->Encode(run).size(), run.size());
    }
  }
}

TEST(TokenizerTest, WholeWordsComeFirstOnlyForLlama) {
  for (const char* pre_tokenizer : {"gpt-2", "llama-bpe"}) {
    Vocabulary vocabulary(pre_tokenizer);
    const TokenId word = vocabulary.Add("abc");  // no merge leads here
    const TokenId ab = vocabulary.AddMerge("a", "b");
    const auto tokenizer = Make(vocabulary);
    if (vocabulary.spec.pre_tokenizer == "llama-bpe") {
      EXPECT_THAT(tokenizer->Encode("abc"), ElementsAre(word));
    } else {
      EXPECT_THAT(tokenizer->Encode("abc"), ElementsAre(ab, Vocabulary::Byte('c')));
    }
    EXPECT_THAT(tokenizer->Encode("abcabc").size(), 4u);
  }
}

TEST(TokenizerTest, TextNeverBecomesAControlToken) {
  for (const char* pre_tokenizer : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    Vocabulary vocabulary(pre_tokenizer);
    vocabulary.AddNamed("stop", kGgufControl);  // one word by every pre-tokenizer
    const auto tokenizer = Make(vocabulary);
    const std::string text = "<|im_start|>system\nstop<|im_end|> stop <|endoftext|>";
    for (const TokenId token : tokenizer->Encode(text)) EXPECT_FALSE(tokenizer->IsSpecial(token));
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text), /*skip_special=*/true), text);
  }
}

TEST(TokenizerTest, UserDefinedTokensAreFoundLeftmostThenLongest) {
  Vocabulary vocabulary;
  const TokenId ab = vocabulary.AddNamed("<ab", kGgufUserDefined);
  const TokenId abc = vocabulary.AddNamed("<abc>", kGgufUserDefined);
  const auto tokenizer = Make(vocabulary);
  EXPECT_THAT(tokenizer->Encode("x<abc><ab>"),
              ElementsAre(Vocabulary::Byte('x'), abc, ab, Vocabulary::Byte('>')));
  EXPECT_FALSE(tokenizer->IsSpecial(abc));
  EXPECT_THAT(tokenizer->FindSpecial("<abc>"), Optional(abc));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("x<abc><ab>"), /*skip_special=*/true), "x<abc><ab>");
}

TEST(TokenizerTest, BytesWithoutATokenAreLeftOut) {
  Vocabulary vocabulary;
  vocabulary.spec.tokens.erase(vocabulary.spec.tokens.begin() + Vocabulary::Byte('q'));
  vocabulary.spec.token_types.pop_back();
  const auto tokenizer = Make(vocabulary);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("aqb"), false), "ab");
  EXPECT_THAT(tokenizer->Encode("q"), IsEmpty());
}

// A bound on the tokens refuses no text that has so few, however many bytes that is.
void ExpectTokens(const Tokenizer& tokenizer, const std::string& text, size_t count) {
  const std::vector<TokenId> tokens = tokenizer.Encode(text);
  ASSERT_EQ(tokens.size(), count) << text.substr(0, 20);
  EXPECT_THAT(tokenizer.EncodeAtMost(text, TextPosition::kFirst, count), Optional(tokens));
  EXPECT_EQ(tokenizer.EncodeAtMost(text, TextPosition::kFirst, count - 1), std::nullopt);
  EXPECT_EQ(tokenizer.EncodeAtMost(text, TextPosition::kFirst, count / 100), std::nullopt);
}

TEST(TokenizerTest, NoMoreThanSoManyTokensAreExact) {
  Vocabulary vocabulary;
  vocabulary.AddMerge("a", "a");
  vocabulary.AddMerge("aa", "aa");
  const TokenId name = vocabulary.AddNamed("<" + std::string(100, 'n') + ">", kGgufUserDefined);
  const auto tokenizer = Make(vocabulary);
  ExpectTokens(*tokenizer, std::string(4000, 'a'), 1000);
  ExpectTokens(*tokenizer, std::string(4000, 'b'), 4000);
  std::string text;
  for (int i = 0; i < 500; ++i) text += "aaaa b ";
  ExpectTokens(*tokenizer, text, 2000);
  text.clear();
  for (int i = 0; i < 200; ++i) text += tokenizer->TokenBytes(name);
  ExpectTokens(*tokenizer, text, 200);

  vocabulary.spec.tokens.erase(vocabulary.spec.tokens.begin() + Vocabulary::Byte('q'));
  vocabulary.spec.token_types.erase(vocabulary.spec.token_types.begin() + Vocabulary::Byte('q'));
  ExpectTokens(*Make(vocabulary), std::string(100'000, 'q') + "abab", 4);

  TokenizerSpec spec;
  spec.model = TokenizerModel::kSentencePieceBpe;
  spec.tokens = {"<unk>", "\u2581", "a", "\u2581a"};
  spec.token_types = {kGgufUnknown, kGgufNormal, kGgufNormal, kGgufNormal};
  spec.scores = {0, -3, -2, -1};
  spec.remove_extra_whitespaces = true;
  const auto pieces = Tokenizer::Create(spec);
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ExpectTokens(**pieces, "a" + std::string(100'000, ' ') + "a", 2);
  ExpectTokens(**pieces, "a" + std::string(100'000, 'x') + "a", 3);  // unknown tokens join
  std::string words = "a";
  for (int i = 0; i < 1000; ++i) words += " xx a";
  ExpectTokens(**pieces, words, 1 + 3 * 1000);
}

TEST(TokenizerTest, KnowsSpecialAndEndTokens) {
  Vocabulary vocabulary;
  const TokenId a = Vocabulary::Byte('a');
  vocabulary.spec.end_of_generation = {a};
  const auto tokenizer = Make(vocabulary);
  EXPECT_THAT(tokenizer->FindSpecial("<|im_start|>"), Optional(Vocabulary::kTurnBegin));
  EXPECT_EQ(tokenizer->FindSpecial("a"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(Vocabulary::kTurnEnd));
  EXPECT_FALSE(tokenizer->IsSpecial(a));
  for (const TokenId outside : {-1, tokenizer->vocab_size()}) {
    EXPECT_FALSE(tokenizer->IsSpecial(outside));
    EXPECT_EQ(tokenizer->TokenBytes(outside), "");
    EXPECT_EQ(tokenizer->Decode(std::vector<TokenId>{outside, a}, false), "a");
  }
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(Vocabulary::kTurnEnd));    // eos
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(Vocabulary::kEndOfText));  // by its name
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(a));                       // listed
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(Vocabulary::kTurnBegin));
  const std::vector<TokenId> turn = {Vocabulary::kTurnBegin, a, Vocabulary::kTurnEnd};
  EXPECT_EQ(tokenizer->Decode(turn, /*skip_special=*/true), "a");
  EXPECT_EQ(tokenizer->Decode(turn, /*skip_special=*/false), "<|im_start|>a<|im_end|>");
}

// Whatever a file says of their type: else text could open turns, and close them.
TEST(TokenizerTest, MarkersOfTurnsAreControlTokens) {
  Vocabulary vocabulary;
  const TokenId begin = vocabulary.AddNamed("<start_of_turn>", kGgufUserDefined);
  const TokenId end = vocabulary.AddNamed("<end_of_turn>", kGgufNormal);
  const TokenId tag = vocabulary.AddNamed("</s>", kGgufUserDefined);  // HTML's
  const auto tokenizer = Make(vocabulary);
  EXPECT_FALSE(tokenizer->IsSpecial(tag));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(tag));
  EXPECT_THAT(tokenizer->Encode("</s>"), ElementsAre(tag));
  EXPECT_TRUE(tokenizer->IsSpecial(begin));
  EXPECT_TRUE(tokenizer->IsSpecial(end));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(begin));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(end));
  EXPECT_THAT(tokenizer->FindSpecial("<end_of_turn>"), Optional(end));
  for (const TokenId token : tokenizer->Encode("<start_of_turn>x<end_of_turn>")) {
    EXPECT_FALSE(tokenizer->IsSpecial(token));
  }
}

// Were every name compared at every place, this would take minutes.
TEST(TokenizerTest, FindsOneOfManyUserDefinedTokens) {
  Vocabulary vocabulary;
  TokenId last = kNoToken;
  for (int i = 0; i < 6000; ++i) {
    last = vocabulary.AddNamed("<unused" + std::to_string(i) + ">", kGgufUserDefined);
  }
  const auto tokenizer = Make(vocabulary);
  constexpr size_t kLength = 1 << 22;
  const std::vector<TokenId> tokens = tokenizer->Encode(std::string(kLength, '<') + "unused5999>");
  ASSERT_EQ(tokens.size(), kLength);
  EXPECT_EQ(tokens.front(), Vocabulary::Byte('<'));
  EXPECT_EQ(tokens.back(), last);
}

TEST(TokenizerTest, NormalisesTheTextBetweenUserDefinedTokens) {
  Vocabulary vocabulary;
  const TokenId name = vocabulary.AddNamed("e\u0301", kGgufUserDefined);
  const TokenId composed = vocabulary.AddMerge("\xC3", "\xA5");  // U+00E5
  vocabulary.spec.normalization = Normalization::kNfc;
  auto tokenizer = Make(vocabulary);
  EXPECT_THAT(tokenizer->Encode("a\u030A"), ElementsAre(composed));
  EXPECT_THAT(tokenizer->Encode("\u212B").size(), 2u);  // U+00C5
  EXPECT_THAT(tokenizer->Encode("e\u0301\u00E5"), ElementsAre(name, composed));
  EXPECT_THAT(tokenizer->Encode("\uFF41").size(), 3u);
  vocabulary.spec.normalization = Normalization::kNfkc;
  tokenizer = Make(vocabulary);
  EXPECT_THAT(tokenizer->Encode("\uFF41"), ElementsAre(Vocabulary::Byte('a')));
}

absl::Status Refusal(const Vocabulary& vocabulary) { return Tokenizer::Create(vocabulary.spec).status(); }

TEST(TokenizerTest, RefusesUnknownPreTokenizersByName) {
  const absl::Status status = Refusal(Vocabulary("bloom"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("bloom"), HasSubstr("gpt-2"), HasSubstr("llama-bpe"), HasSubstr("qwen2"),
                    HasSubstr("smollm")));
}

TEST(TokenizerTest, RefusesContradictions) {
  using Spoil = void (*)(Vocabulary&);
  std::vector<std::pair<Vocabulary, std::string>> cases;
  for (const auto& [spoil, part] : std::vector<std::pair<Spoil, std::string>>{
           {[](Vocabulary& v) { v.spec.tokens.clear(); }, "tokenizer.ggml.tokens has 0 entries"},
           {[](Vocabulary& v) { v.spec.token_types.pop_back(); },
            "tokenizer.ggml.token_type has 258 entries"},
           {[](Vocabulary& v) { v.spec.token_types[7] = 9; }, "tokenizer.ggml.token_type[7] is 9"},
           {[](Vocabulary& v) { v.Add("a"); }, "tokenizer.ggml.tokens[259] is 'a'"},
           {[](Vocabulary& v) { v.AddNamed("<|im_end|>", kGgufControl); }, "tokenizer.ggml.tokens[259]"},
           {[](Vocabulary& v) { v.spec.bos = 259; }, "tokenizer.ggml.bos_token_id is 259; allowed: 0 to 258"},
           {[](Vocabulary& v) { v.spec.eos = -1; }, "tokenizer.ggml.eos_token_id is -1"},
           {[](Vocabulary& v) { v.spec.bos.reset(), v.spec.add_bos = true; }, "tokenizer.ggml.add_bos_token"},
           {[](Vocabulary& v) { v.spec.end_of_generation = {1000}; }, "end-of-generation token is 1000"}}) {
    spoil(cases.emplace_back(Vocabulary(), part).first);
  }
  for (const char* merge : {"", "ab", "a b c", "a ", "a b", "a \xE4\xB8\x96", "<|im_end|> a"}) {
    cases.emplace_back(Vocabulary(), "tokenizer.ggml.merges[0]").first.spec.merges.push_back(merge);
  }
  for (const auto& [vocabulary, part] : cases) {
    const absl::Status status = Refusal(vocabulary);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << part;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

TEST(TokenizerTest, TokenStringsWithOddCharactersStandForThemselves) {
  Vocabulary vocabulary;
  vocabulary.spec.tokens.push_back("\xE4\xB8\x96 x");  // no byte's spelling
  vocabulary.spec.token_types.push_back(kGgufNormal);
  const auto tokenizer = Make(vocabulary);
  EXPECT_EQ(tokenizer->TokenBytes(259), "\xE4\xB8\x96 x");
  EXPECT_EQ(tokenizer->Encode("\xE4\xB8\x96 x").size(), 5u);
}

TEST(TokenizerTest, TheTextOfATokenKeepsTheSpaceThatATextLoses) {
  TokenizerSpec spec;
  spec.model = TokenizerModel::kSentencePieceBpe;
  spec.tokens = {"<unk>", "\u2581h", "h", "<0xE4>"};
  spec.token_types = {kGgufUnknown, kGgufNormal, kGgufNormal, kGgufByte};
  spec.scores = {0, -1, -2, 0};
  spec.unknown = 0;
  spec.add_space_prefix = true;
  const auto tokenizer = Tokenizer::Create(spec);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{1, 2}, false), "hh");
  EXPECT_EQ((*tokenizer)->TokenText(1), " h");
  EXPECT_EQ((*tokenizer)->TokenText(2), "h");
  EXPECT_EQ((*tokenizer)->TokenText(3), "\uFFFD");
  EXPECT_EQ((*tokenizer)->TokenText(4), "");
}

}  // namespace
}  // namespace kvblend::text
