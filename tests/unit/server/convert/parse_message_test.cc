#include "server/convert/parse_message.h"

#include <cstdint>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "kvblend/v1/chunks.pb.h"
#include "kvblend/v1/inference.pb.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;
using Quiet = google::protobuf::LogSilencer;  // of what Protobuf itself says about each refusal

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
  const Quiet quiet;
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
  const Quiet quiet;
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

}  // namespace
}  // namespace kvblend::server
