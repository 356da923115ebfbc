#include "engine/text/stream_decoder.h"

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/characters.h"
#include "engine/text/utf8.h"
#include "gtest/gtest.h"
#include "tests/unit/text/small_vocabulary.h"

namespace kvblend::text {
namespace {

using Vocabulary = SmallVocabulary;

constexpr const char* kReplacement = "\xEF\xBF\xBD";

std::unique_ptr<Tokenizer> Make(const Vocabulary& vocabulary = Vocabulary()) {
  auto tokenizer = Tokenizer::Create(vocabulary.spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(StreamDecoderTest, HoldsACharacterBackUntilItIsWhole) {
  const auto tokenizer = Make();
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('a')), "a");
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\xF0')), "");
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\x9F')), "");
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\x98')), "");
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\x80')), "\xF0\x9F\x98\x80");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST(StreamDecoderTest, ReplacesWhatCannotBecomeACharacter) {
  const auto tokenizer = Make();
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\x80')), kReplacement);
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\xE4')), "");
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('b')), std::string(kReplacement) + "b");
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\xE4')), "");
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\xB8')), "");
  EXPECT_EQ(decoder.Flush(), kReplacement);
  EXPECT_EQ(decoder.Append(Vocabulary::Byte('\x96')), kReplacement) << "a flushed decoder is as new";
}

TEST(StreamDecoderTest, TellsWhatBelongsToEarlierTokens) {
  const auto tokenizer = Make();
  StreamDecoder decoder(*tokenizer);
  const auto earlier = [&](char byte) {
    decoder.Append(Vocabulary::Byte(byte));
    return decoder.earlier_bytes();
  };
  EXPECT_EQ(earlier('\x80'), 0) << "a replacement of its own";
  EXPECT_EQ(earlier('\xE4'), 0);
  EXPECT_EQ(earlier('\xB8'), 0);
  EXPECT_EQ(earlier('\xE4'), 3) << "and its own is held back";
  EXPECT_EQ(earlier('b'), 3);
  EXPECT_EQ(earlier('b'), 0);
  EXPECT_EQ(earlier('\xC3'), 0);
  EXPECT_EQ(earlier('\xA9'), 0) << "completes it";
}

/// For each byte the number of characters before the one that it belongs to.
std::vector<size_t> CharacterOfBytes(std::string_view bytes) {
  std::vector<size_t> characters;
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); ++count) {
    const uint32_t length = DecodeUtf8At(bytes, at).length;
    characters.insert(characters.end(), length, count);
    at += length;
  }
  return characters;
}

TEST(StreamDecoderTest, ControlTokensAreSkippedUnlessAskedFor) {
  const auto tokenizer = Make();
  StreamDecoder quiet(*tokenizer);
  EXPECT_EQ(quiet.Append(Vocabulary::kTurnEnd), "");
  StreamDecoder verbose(*tokenizer, /*skip_special=*/false);
  EXPECT_EQ(verbose.Append(Vocabulary::kTurnEnd), "<|im_end|>");
}

TEST(StreamDecoderTest, PiecesAreValidAndTogetherEqualDecode) {
  Vocabulary vocabulary;
  vocabulary.AddMerge("\xB8", "\x96");  // ends one character
  vocabulary.AddMerge("\x96", "\xE4");  // ends one and begins the next
  vocabulary.AddMerge("\x9F", "\x98");
  const auto tokenizer = Make(vocabulary);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr uint8_t kBytes[] = {'a', 0xE4, 0xB8, 0x96, 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xFF};
  for (int round = 0; round < 5000; ++round) {
    std::vector<TokenId> tokens;
    for (unsigned count = random() % 16; count > 0; --count) {
      const unsigned kind = random() % 8;
      if (kind == 0) {
        tokens.push_back(static_cast<TokenId>(random() % (tokenizer->vocab_size() + 2)) - 1);
      } else if (kind <= 2) {
        tokens.push_back(Vocabulary::kFirstMerged + static_cast<TokenId>(random() % 3));
      } else {
        tokens.push_back(Vocabulary::Byte(static_cast<char>(kBytes[random() % std::size(kBytes)])));
      }
    }
    for (const bool skip_special : {false, true}) {
      StreamDecoder decoder(*tokenizer, skip_special);
      std::string text, bytes;
      std::vector<std::pair<size_t, int64_t>> begins;  // of tokens: in bytes, and in characters of the text
      for (const TokenId token : tokens) {
        const std::string piece = decoder.Append(token);
        if (!skip_special || !tokenizer->IsSpecial(token)) {
          const size_t before = bytes.size();
          bytes += tokenizer->TokenBytes(token);
          const std::string_view earlier = std::string_view(piece).substr(0, decoder.earlier_bytes());
          if (bytes.size() > before)
            begins.emplace_back(before, NumCharacters(text) + NumCharacters(earlier));
        }
        ASSERT_EQ(FirstInvalidUtf8(piece), std::nullopt);
        text += piece;
      }
      text += decoder.Flush();
      ASSERT_EQ(text, tokenizer->Decode(tokens, skip_special));
      ASSERT_EQ(FirstInvalidUtf8(text), std::nullopt);
      const std::vector<size_t> characters = CharacterOfBytes(bytes);
      for (const auto& [byte, character] : begins) ASSERT_EQ(character, characters[byte]) << byte;
    }
  }
}

}  // namespace
}  // namespace kvblend::text
