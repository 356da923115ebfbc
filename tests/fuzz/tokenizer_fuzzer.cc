// Encoding any bytes with any pre-tokenizer: decoding gives the text back (ill-formed UTF-8 as U+FFFD), words
// cover the text, no control token comes out.
// Input: one byte that chooses the pre-tokenizer, or, 255, SentencePiece's BPE, or, 254, its unigram model;
// then the text.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/plain_form.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "engine/text/words/pre_tokenizer.h"
#include "tests/fuzz/check.h"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::text {
namespace {

using test_support::Check;

std::unique_ptr<Tokenizer> MakeTokenizer(const char* pre_tokenizer) {
  SmallVocabulary vocabulary(pre_tokenizer);
  const std::pair<std::string, std::string> merges[] = {
      {"a", "b"},   {"b", "a"}, {"ab", "a"}, {"a", "ba"}, {" ", " "},       {"  ", "  "},         {" ", "a"},
      {"\n", "\n"}, {"1", "2"}, {"12", "3"}, {"'", "s"},  {"\xC3", "\xA9"}, {"\xE4\xB8", "\x96"}, {"!", "!"}};
  for (const auto& [left, right] : merges) {
    const std::string result = left + right;
    if (left.size() > 1 && left[0] == '\xE4') vocabulary.AddMerge("\xE4", "\xB8");
    if (result == "aba" && left == "a") {
      vocabulary.spec.merges.push_back("a ba");  // a second way to the same token
      continue;
    }
    vocabulary.AddMerge(left, right);
  }
  vocabulary.AddNamed("<tool>", kGgufUserDefined);
  auto tokenizer = Tokenizer::Create(vocabulary.spec);
  Check(tokenizer.ok(), "the vocabulary is accepted");
  return *std::move(tokenizer);
}

/// SentencePiece's: bytes, a few pieces with scores, one of them unused and one user-defined.
std::unique_ptr<Tokenizer> MakeSentencePiece(TokenizerModel model) {
  TokenizerSpec spec;
  spec.model = model;
  const auto add = [&](std::string token, GgufTokenType type, float score) {
    spec.tokens.push_back(std::move(token));
    spec.token_types.push_back(type);
    spec.scores.push_back(score);
  };
  add("<unk>", kGgufUnknown, 0);
  add("<s>", kGgufControl, 0);
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    add(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">", kGgufByte, 0);
  }
  float score = 0;
  for (const char* piece :
       {"ab", "aba", "\u2581a", "\u2581\u2581", "ba", "\u4e16", "\u2581\u4e16", "12", "a", "b", "\u2581"}) {
    add(piece, kGgufNormal, score -= 1);
  }
  add("bab", kGgufUnused, -1.5f);
  add("<tool>", kGgufUserDefined, 0);
  spec.unknown = 0;
  spec.unigram_scores.assign(spec.scores.begin(), spec.scores.end());
  spec.unigram_unknown_score = score - 10;
  auto tokenizer = Tokenizer::Create(spec);
  Check(tokenizer.ok(), "the vocabulary is accepted");
  return *std::move(tokenizer);
}

/// Spaces and U+2581 are the same to it.
void CheckSentencePiece(const Tokenizer& tokenizer, std::string_view text) {
  std::string valid;
  AppendReplacingInvalidUtf8(text, /*keep_incomplete=*/false, &valid);
  const std::vector<TokenId> tokens = tokenizer.Encode(text);
  for (const TokenId token : tokens) Check(!tokenizer.IsSpecial(token), "text gives no control token");
  Check(tokenizer.Decode(tokens, /*skip_special=*/false) == WithPlainSpaces(valid),
        "decoding gives the text back");
}

void CheckText(const Tokenizer& tokenizer, PreTokenizer pre_tokenizer, std::string_view text) {
  std::string valid;
  AppendReplacingInvalidUtf8(text, /*keep_incomplete=*/false, &valid);
  Check(!FirstInvalidUtf8(valid).has_value(), "replaced text is valid");

  std::string covered;
  WordScanner scanner(pre_tokenizer, valid);
  for (std::string_view word = scanner.Next(); !word.empty(); word = scanner.Next()) covered += word;
  Check(covered == valid, "words cover the text");

  const std::vector<TokenId> tokens = tokenizer.Encode(text);
  for (const TokenId token : tokens) Check(!tokenizer.IsSpecial(token), "text gives no control token");
  Check(tokenizer.Decode(tokens, /*skip_special=*/false) == valid, "decoding gives the text back");
}

}  // namespace
}  // namespace kvblend::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const char* const kNames[] = {"gpt-2",          "smollm",      "llama-bpe", "qwen2",
                                       "qwen35",         "gpt-4o",      "tekken",    "deepseek-llm",
                                       "deepseek-coder", "deepseek-v3", "default"};
  static const auto* const tokenizers = [] {
    auto* made = new std::vector<std::unique_ptr<kvblend::text::Tokenizer>>;
    for (const char* name : kNames) made->push_back(kvblend::text::MakeTokenizer(name));
    return made;
  }();
  using kvblend::text::TokenizerModel;
  static const auto* const bpe =
      kvblend::text::MakeSentencePiece(TokenizerModel::kSentencePieceBpe).release();
  static const auto* const unigram = kvblend::text::MakeSentencePiece(TokenizerModel::kUnigram).release();
  if (size == 0) return 0;
  if (data[0] >= 254) {
    kvblend::text::CheckSentencePiece(data[0] == 255 ? *bpe : *unigram,
                                      {reinterpret_cast<const char*>(data) + 1, size - 1});
    return 0;
  }
  const size_t choice = data[0] % std::size(kNames);
  kvblend::text::CheckText(*(*tokenizers)[choice], kvblend::text::FindPreTokenizer(kNames[choice])->pattern,
                           {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
