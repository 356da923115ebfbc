#include "engine/store/redis/resp.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kvblend::store::redis {
namespace {

TEST(FormatCommandTest, IsAnArrayOfBulkStrings) {
  EXPECT_EQ(FormatCommand({"SET", "k\r\n", ""}).head, "*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$0\r\n\r\n");
  const std::string value = "value";
  const Wire wire = FormatCommand({"SET", "k"}, AsBytes(value), {"EX", "10"});
  EXPECT_EQ(wire.head, "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\n");
  EXPECT_EQ(wire.payload.data(), AsBytes(value).data());
  EXPECT_EQ(wire.tail, "\r\n$2\r\nEX\r\n$2\r\n10\r\n");
}

TEST(RespReaderTest, RepliesArriveInAnyPieces) {
  const std::string big(100'000, 'x');
  const std::string stream =
      absl::StrCat("+OK\r\n-ERR no\r\n:-7\r\n$-1\r\n*-1\r\n*3\r\n:1\r\n*1\r\n$1\r\na\r\n$-1\r\n$", big.size(),
                   "\r\n", big, "\r\n$0\r\n\r\n");
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    RespReader reader;
    std::vector<Reply> replies;
    for (size_t at = 0; at < stream.size();) {
      const size_t size = std::min<size_t>(stream.size() - at, 1 + random() % (round < 25 ? 7000 : 60000));
      reader.ExpectNext({}, 200'000);
      ASSERT_TRUE(reader.Feed(AsBytes(stream).subspan(at, size)).ok());
      at += size;
      while (true) {
        auto reply = reader.Next();
        ASSERT_TRUE(reply.ok()) << reply.status();
        if (!reply->has_value()) break;
        replies.push_back(*std::move(*reply));
      }
    }
    ASSERT_EQ(replies.size(), 8);
    EXPECT_TRUE(replies[0].is_ok());
    EXPECT_TRUE(replies[1].is_error("ERR"));
    EXPECT_FALSE(replies[1].is_error("ER"));
    EXPECT_EQ(replies[2].integer, -7);
    EXPECT_EQ(replies[3].type, Reply::Type::kNil);
    EXPECT_EQ(replies[4].type, Reply::Type::kNil);
    ASSERT_EQ(replies[5].elements.size(), 3);
    EXPECT_EQ(replies[5].elements[1].elements[0].text, "a");
    EXPECT_EQ(replies[5].elements[2].type, Reply::Type::kNil);
    EXPECT_EQ(replies[6].text, big);
    EXPECT_EQ(replies[7].type, Reply::Type::kString);
  }
}

TEST(RespReaderTest, StringsOfTheRightSizeGoWhereTheyBelong) {
  std::vector<std::byte> first(3);
  std::vector<std::byte> second(4);
  const std::vector<absl::Span<std::byte>> destinations = {absl::MakeSpan(first), absl::MakeSpan(second)};
  RespReader reader;
  reader.ExpectNext(destinations, 1000);
  ASSERT_TRUE(reader.Feed(AsBytes("*2\r\n$3\r\nabc\r\n$5\r\nabcde\r\n$3\r\nxyz\r\n")).ok());
  Reply reply = **reader.Next();
  EXPECT_TRUE(reply.elements[0].at_destination);
  EXPECT_EQ(static_cast<char>(first[2]), 'c');
  EXPECT_FALSE(reply.elements[1].at_destination);  // of another size
  EXPECT_EQ(reply.elements[1].text, "abcde");
  reader.ExpectNext({}, 1000);
  reply = **reader.Next();
  EXPECT_EQ(reply.text, "xyz");
  EXPECT_EQ(static_cast<char>(first[2]), 'c');
}

TEST(RespReaderTest, RefusesGarbageAndMoreThanIsAllowed) {
  const auto fails = [](const std::string& bytes) {
    RespReader reader;
    reader.ExpectNext({}, 1000);
    if (!reader.Feed(AsBytes(bytes)).ok()) return true;
    while (true) {
      const auto reply = reader.Next();
      if (!reply.ok()) return reply.status().code() == absl::StatusCode::kDataLoss;
      if (!reply->has_value()) return false;
    }
  };
  EXPECT_TRUE(fails("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_TRUE(fails("$abc\r\n"));
  EXPECT_TRUE(fails("$-5\r\n"));
  EXPECT_TRUE(fails("*100000\r\n"));
  EXPECT_TRUE(fails("*4294967297\r\n:1\r\n*4294967298\r\n"));
  EXPECT_TRUE(fails("*2\r\n*40000\r\n*40000\r\n"));
  const auto nested = [](int32_t depth) {
    std::string bytes;
    while (depth-- > 0) bytes += "*1\r\n";
    return bytes + ":1\r\n";
  };
  EXPECT_FALSE(fails(nested(RespReader::kMaxDepth)));
  EXPECT_TRUE(fails(nested(RespReader::kMaxDepth + 1)));
  EXPECT_TRUE(fails(nested(10'000)));
  EXPECT_TRUE(fails("$5000\r\n" + std::string(1001, 'x')));
  EXPECT_TRUE(fails("+" + std::string(1001, 'x')));
  EXPECT_FALSE(fails("$5000\r\n" + std::string(500, 'x')));  // more may come
  EXPECT_FALSE(fails("*2\r\n:1\r\n"));

  RespReader reader;
  ASSERT_TRUE(reader.Feed(AsBytes("*100000000\r\n")).ok());
  EXPECT_EQ(reader.Next().status().message(), "bad reply: too many elements; allowed: 65536");
}

}  // namespace
}  // namespace kvblend::store::redis
