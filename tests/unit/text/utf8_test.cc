#include "engine/text/utf8.h"

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::text {
namespace {

using testing::Optional;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The bit patterns of RFC 3629, also for surrogates and other numbers that are no characters.
std::string Spell(uint32_t value) {
  const auto byte = [](uint32_t bits) { return static_cast<char>(bits); };
  if (value < 0x80) return {byte(value)};
  if (value < 0x800) return {byte(0xC0 | value >> 6), byte(0x80 | (value & 0x3F))};
  if (value < 0x10000) {
    return {byte(0xE0 | value >> 12), byte(0x80 | (value >> 6 & 0x3F)), byte(0x80 | (value & 0x3F))};
  }
  return {byte(0xF0 | value >> 18), byte(0x80 | (value >> 12 & 0x3F)), byte(0x80 | (value >> 6 & 0x3F)),
          byte(0x80 | (value & 0x3F))};
}

std::string Replaced(std::string_view text) {
  std::string output;
  EXPECT_EQ(AppendReplacingInvalidUtf8(text, /*keep_incomplete=*/false, &output), text.size());
  return output;
}

TEST(Utf8Test, DecodesEveryCharacterAndRefusesEverySurrogate) {
  for (uint32_t value = 0; value < 0x110000; ++value) {
    const std::string text = Spell(value);
    if (value >= 0xD800 && value <= 0xDFFF) {
      ASSERT_THAT(FirstInvalidUtf8(text), Optional(0u)) << std::hex << value;
      continue;
    }
    const Utf8Step step = DecodeUtf8At(text, 0);
    ASSERT_EQ(step.kind, Utf8Step::Kind::kValid) << std::hex << value;
    ASSERT_EQ(step.code_point, value);
    ASSERT_EQ(step.length, text.size());
  }
  EXPECT_THAT(FirstInvalidUtf8(Spell(0x110000)), Optional(0u));
}

TEST(Utf8Test, AcceptsExactlyAsManyThreeByteSequencesAsThereAreCharacters) {
  int valid = 0;
  for (int second = 0; second < 256; ++second) {
    for (int lead = 0; lead < 256; ++lead) {
      for (const int third : {0x00, 0x7F, 0x80, 0xBF, 0xC0}) {
        const char bytes[] = {static_cast<char>(lead), static_cast<char>(second), static_cast<char>(third)};
        const Utf8Step step = DecodeUtf8At({bytes, 3}, 0);
        if (step.kind == Utf8Step::Kind::kValid && step.length == 3) ++valid;
      }
    }
  }
  // Two of the five third bytes continue a character; each stands for 1/64 of U+0800..U+FFFF less surrogates.
  EXPECT_EQ(valid, 2 * (0x10000 - 0x800 - 0x800) / 64);
}

TEST(Utf8Test, RefusesOverlongFormsSurrogatesAndWhatIsCutOff) {
  for (const std::string bad :
       {"\x80", "\xC3", "\xC3(", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\xFF"}) {
    EXPECT_THAT(FirstInvalidUtf8(bad), Optional(0u));
  }
}

TEST(Utf8Test, NamesTheFirstInvalidByteWhereverItStands) {
  for (size_t offset = 0; offset < 40; ++offset) {
    std::string text(40, 'a');
    EXPECT_EQ(FirstInvalidUtf8(text), std::nullopt);
    text[offset] = '\xFF';
    EXPECT_THAT(FirstInvalidUtf8(text), Optional(offset));
  }
  EXPECT_THAT(FirstInvalidUtf8("gr\xC3\xBC\xC3"), Optional(4u));
  EXPECT_EQ(FirstInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8(std::string_view("\0", 1)), std::nullopt);
}

// The examples of Unicode 16.0, section 3.9, tables 3-8 to 3-11.
TEST(Utf8Test, ReplacesMaximalSubparts) {
  const auto expected = [](std::string_view pattern) {  // R: one U+FFFD
    std::string text;
    for (const char c : pattern) c == 'R' ? text.append(kReplacement) : text.append(1, c);
    return text;
  };
  EXPECT_EQ(Replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), expected("RRRRRRRRA"));
  EXPECT_EQ(Replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), expected("RRRRRRRRA"));
  EXPECT_EQ(Replaced("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), expected("RRRRRARRB"));
  EXPECT_EQ(Replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), expected("RRRRA"));
}

TEST(Utf8Test, KeepsAnIncompleteCharacterOnlyWhenAsked) {
  for (const std::string character : {"\xC3\xA9", "\xE4\xB8\x96", "\xF0\x9F\x98\x80"}) {
    for (size_t size = 1; size < character.size(); ++size) {
      const std::string text = "ab" + character.substr(0, size);
      std::string output;
      EXPECT_EQ(AppendReplacingInvalidUtf8(text, /*keep_incomplete=*/true, &output), 2u);
      EXPECT_EQ(output, "ab");
      EXPECT_EQ(Replaced(text), "ab" + std::string(kReplacement));
    }
  }
}

TEST(Utf8Test, ReplacedTextIsValidAndValidTextStays) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string text;
    for (unsigned length = random() % 24; length > 0; --length) {
      // Mostly bytes from around the borders of what may begin and continue a character.
      constexpr uint8_t kBorders[] = {0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1,
                                      0xC2, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5};
      text.push_back(static_cast<char>(random() % 4 == 0 ? random() % 256 : kBorders[random() % 18]));
    }
    const std::string replaced = Replaced(text);
    ASSERT_EQ(FirstInvalidUtf8(replaced), std::nullopt);
    ASSERT_EQ(Replaced(replaced), replaced);
    ASSERT_EQ(replaced == text, !FirstInvalidUtf8(text).has_value());
  }
}

}  // namespace
}  // namespace kvblend::text
