#include "server/convert/parse_message.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

// A message, as bytes, with every occurrence of `from` replaced by `to` of equal length: so that strings can
// hold what Protobuf's setters should not be given.
std::string Bytes(const google::protobuf::Message& message, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  std::string bytes = message.SerializeAsString();
  size_t found = 0;
  for (size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1), ++found) {
    bytes.replace(at, to.size(), to);
  }
  EXPECT_EQ(found, 1u);
  return bytes;
}

TEST(ParseMessageTest, ParsesWhatIsWellFormed) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_question("où ça ? \xF0\x9F\x98\x80");
  v1::GenerateRequest parsed;
  ASSERT_TRUE(ParseMessage(request.SerializeAsString(), &parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), request.SerializeAsString());
  EXPECT_TRUE(ParseMessage("", &parsed).ok());  // every field's default
}

TEST(ParseMessageTest, NamesTheFieldThatIsNotUtf8) {
  v1::GenerateRequest request;
  request.set_namespace_("good");
  v1::Prompt* prompt = request.mutable_prompt();
  prompt->add_chunks("zero");
  prompt->add_chunks("one");
  prompt->add_chunks("two @@");
  prompt->set_question("why?");
  v1::GenerateRequest parsed;
  const absl::Status chunk = ParseMessage(Bytes(request, "@@", "\xC3("), &parsed);
  EXPECT_EQ(chunk.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(chunk.message(), "prompt.chunks[2] is not valid UTF-8 at byte 4 of 6; allowed: UTF-8 text");

  EXPECT_THAT(std::string(ParseMessage(Bytes(request, "good", "goo\xFF"), &parsed).message()),
              HasSubstr("namespace is not valid UTF-8 at byte 3"));

  v1::GenerateRequest history;
  history.mutable_prompt()->add_history()->set_text("fine");
  history.mutable_prompt()->add_history()->set_text("@");
  history.mutable_sampling()->add_stop("x");
  EXPECT_THAT(std::string(ParseMessage(Bytes(history, "@", "\x80"), &parsed).message()),
              HasSubstr("prompt.history[1].text is not valid UTF-8 at byte 0"));
  EXPECT_THAT(std::string(ParseMessage(Bytes(history, "x", "\xF5"), &parsed).message()),
              HasSubstr("sampling.stop[0] is not valid UTF-8 at byte 0"));

  v1::ScoreRequest score;
  score.set_continuation_text("@");
  EXPECT_THAT(std::string(ParseMessage(Bytes(score, "@", "\xC0"), &score).message()),
              HasSubstr("continuation_text is not valid UTF-8 at byte 0"));
  v1::PutChunksRequest put;
  put.set_label("@");
  EXPECT_THAT(std::string(ParseMessage(Bytes(put, "@", "\xED"), &put).message()),
              HasSubstr("label is not valid UTF-8 at byte 0"));
}

TEST(ParseMessageTest, SaysWhenTheBytesAreNoMessage) {
  v1::GenerateRequest parsed;
  for (const std::string& bytes :
       {std::string("\xFF\xFF\xFF"), std::string("\x0A\x7F", 2), std::string(1, '\0')}) {
    const absl::Status status = ParseMessage(bytes, &parsed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("not a well-formed kvblend.v1.GenerateRequest"));
  }
}

TEST(ParseMessageTest, CutOrFlippedMessagesGetAnAnswer) {
  v1::GenerateRequest request;
  request.set_namespace_("tenant");
  request.mutable_prompt()->set_question("why \xC3\xBC?");
  request.mutable_prompt()->add_chunks("chunk");
  request.mutable_blend()->set_ratio(0.5);
  request.mutable_sampling()->add_stop("stop");
  const std::string bytes = request.SerializeAsString();
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string broken = bytes.substr(0, random() % (bytes.size() + 1));
    for (uint32_t flips = random() % 4; flips > 0 && !broken.empty(); --flips) {
      broken[random() % broken.size()] ^= static_cast<char>(1u << (random() % 8));
    }
    v1::GenerateRequest parsed;
    const absl::Status status = ParseMessage(broken, &parsed);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  }
}

// The definition of UTF-8: the encoder.
std::string Encode(uint32_t code_point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | (code_point >> 6)), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | (code_point >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (code_point >> 18)), tail(12), tail(6), tail(0)};
}

TEST(FindInvalidUtf8Test, EveryCodePointIsValidAndNothingElseOfItsLength) {
  std::vector<bool> three_bytes(1 << 24), two_bytes(1 << 16);
  for (uint32_t code_point = 0; code_point <= 0x10FFFF; ++code_point) {
    if (code_point >= 0xD800 && code_point <= 0xDFFF) continue;
    const std::string text = Encode(code_point);
    ASSERT_EQ(FindInvalidUtf8(text), std::nullopt) << code_point;
    uint32_t bytes = 0;
    for (char c : text) bytes = bytes << 8 | static_cast<uint8_t>(c);
    if (text.size() == 2) two_bytes[bytes] = true;
    if (text.size() == 3) three_bytes[bytes] = true;
  }
  for (uint32_t bytes = 0x8000; bytes < 1 << 16; ++bytes) {
    const std::string text = {static_cast<char>(bytes >> 8), static_cast<char>(bytes)};
    const auto found = FindInvalidUtf8(text);
    ASSERT_EQ(!found.has_value(), two_bytes[bytes]) << bytes;
    ASSERT_EQ(found.value_or(0), 0u);
  }
  for (uint32_t bytes = 0xE00000; bytes < 1 << 24; ++bytes) {
    const std::string text = {static_cast<char>(bytes >> 16), static_cast<char>(bytes >> 8),
                              static_cast<char>(bytes)};
    ASSERT_EQ(!FindInvalidUtf8(text).has_value(), three_bytes[bytes]) << bytes;
  }
}

TEST(FindInvalidUtf8Test, FindsTheFirstBadByteAmongGoodText) {
  EXPECT_EQ(FindInvalidUtf8(""), std::nullopt);
  const std::string good = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  EXPECT_EQ(FindInvalidUtf8(good), std::nullopt);
  for (const char* bad : {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x82", "\xF0\x9F\x98"}) {
    EXPECT_EQ(FindInvalidUtf8(good + bad), good.size());
    EXPECT_EQ(FindInvalidUtf8(good + bad + good), good.size());
  }
}

}  // namespace
}  // namespace kvblend::server
