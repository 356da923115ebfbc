#include "engine/store/redis/topology.h"

#include <string>

#include "gtest/gtest.h"

namespace kvblend::store::redis {
namespace {

const Endpoint kAsked{"10.1.1.1", 6379};

Reply Parsed(const std::string& bytes) {
  RespReader reader;
  EXPECT_TRUE(reader.Feed({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}).ok());
  auto reply = reader.Next();
  EXPECT_TRUE(reply.ok() && reply->has_value()) << bytes;
  return *std::move(*reply);
}

/// The polynomial division itself, bit by bit.
uint32_t SlowCrc(const std::string& text) {
  uint32_t remainder = 0;
  for (const char c : text) {
    for (int bit = 7; bit >= 0; --bit) {
      const uint32_t in = (static_cast<unsigned char>(c) >> bit) & 1U;
      const uint32_t out = (remainder >> 15) & 1U;
      remainder = (remainder << 1) & 0xffffU;
      if ((in ^ out) != 0) remainder ^= 0x1021U;
    }
  }
  return remainder;
}

TEST(SlotTest, IsTheCrcOfTheKeyOrItsTag) {
  EXPECT_EQ(SlotOf("123456789"), 0x31C3 % kNumSlots);  // the check value of CRC-16/XMODEM
  EXPECT_EQ(SlotOf("foo"), 12182);                     // CLUSTER KEYSLOT foo
  EXPECT_EQ(SlotOf(""), 0);
  for (const std::string key : {"a", "user:1000", "\xff\x00\x80", "kvb1:content:x"}) {
    EXPECT_EQ(SlotOf(key), static_cast<int32_t>(SlowCrc(key) % kNumSlots));
  }
  EXPECT_EQ(SlotOf("{user1000}.following"), SlotOf("user1000"));
  EXPECT_EQ(SlotOf("foo{bar}{zap}"), SlotOf("bar"));
  EXPECT_EQ(SlotOf("foo{{bar}}zap"), SlotOf("{bar"));
  EXPECT_EQ(SlotOf("foo{}{bar}"), static_cast<int32_t>(SlowCrc("foo{}{bar}") % kNumSlots));
  EXPECT_EQ(SlotOf("foo{bar"), static_cast<int32_t>(SlowCrc("foo{bar") % kNumSlots));
}

TEST(ClusterSlotsTest, TellsTheMastersOfSlots) {
  const Reply reply = Parsed(
      "*3\r\n"
      "*4\r\n:0\r\n:5460\r\n*4\r\n$9\r\n127.0.0.1\r\n:7001\r\n$2\r\nid\r\n*0\r\n*3\r\n$1\r\nr\r\n:7004\r\n$"
      "2\r\nid\r\n"
      "*3\r\n:5461\r\n:10922\r\n*3\r\n$0\r\n\r\n:7002\r\n$2\r\nid\r\n"
      "*3\r\n:10923\r\n:16000\r\n*3\r\n$3\r\n::1\r\n:7003\r\n$2\r\nid\r\n");
  const auto topology = ParseClusterSlots(reply, kAsked);
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_EQ(topology->masters.size(), 3);
  EXPECT_EQ(topology->masters[0].ToString(), "127.0.0.1:7001");
  EXPECT_EQ(topology->masters[1].ToString(), "10.1.1.1:7002");  // no host: the one that was asked
  EXPECT_EQ(topology->masters[2].ToString(), "[::1]:7003");
  EXPECT_EQ(topology->slots[0], 0);
  EXPECT_EQ(topology->slots[5460], 0);
  EXPECT_EQ(topology->slots[5461], 1);
  EXPECT_EQ(topology->slots[16000], 2);
  EXPECT_EQ(topology->slots[16001], Topology::kNone);
}

TEST(ClusterSlotsTest, RefusesWhatIsNone) {
  for (const std::string bytes :
       {"+OK\r\n", "*1\r\n+x\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:-1\r\n:5\r\n*2\r\n$1\r\na\r\n:1\r\n", "*1\r\n*3\r\n:9\r\n:5\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\na\r\n:0\r\n",
        "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\na\r\n:65536\r\n", "*1\r\n*3\r\n:0\r\n:5\r\n*1\r\n$1\r\na\r\n",
        "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n:1\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$3\r\na\nb\r\n:1\r\n"}) {
    EXPECT_EQ(ParseClusterSlots(Parsed(bytes), kAsked).status().code(), absl::StatusCode::kDataLoss) << bytes;
  }
  EXPECT_TRUE(ParseClusterSlots(Parsed("*0\r\n"), kAsked)->masters.empty());
}

TEST(RedirectTest, ReadsMovedAndAsk) {
  auto redirect = ParseRedirect(Parsed("-MOVED 3999 127.0.0.1:6381\r\n"), kAsked);
  ASSERT_TRUE(redirect.has_value());
  EXPECT_FALSE(redirect->ask);
  EXPECT_EQ(redirect->slot, 3999);
  EXPECT_EQ(redirect->endpoint.ToString(), "127.0.0.1:6381");
  redirect = ParseRedirect(Parsed("-ASK 1 ::1:6381\r\n"), kAsked);
  ASSERT_TRUE(redirect.has_value());
  EXPECT_TRUE(redirect->ask);
  EXPECT_EQ(redirect->endpoint.ToString(), "[::1]:6381");
  EXPECT_EQ(ParseRedirect(Parsed("-MOVED 1 :6381\r\n"), kAsked)->endpoint.ToString(), "10.1.1.1:6381");
  for (const std::string bytes :
       {"-MOVED\r\n", "-MOVED 1\r\n", "-MOVED x a:1\r\n", "-MOVED 16384 a:1\r\n", "-MOVED -1 a:1\r\n",
        "-MOVED 1 a\r\n", "-MOVED 1 a:0\r\n", "-MOVED 1 a:99999\r\n", "-MOVED 1 ?:1\r\n",
        "-MOVED 1 a:1 b\r\n", "-MOVEDX 1 a:1\r\n", "-ERR MOVED 1 a:1\r\n", "+MOVED 1 a:1\r\n"}) {
    EXPECT_FALSE(ParseRedirect(Parsed(bytes), kAsked).has_value()) << bytes;
  }
}

TEST(EndpointTest, IsHostAndPort) {
  EXPECT_EQ(ParseEndpoint("redis-0.redis:6379")->host, "redis-0.redis");
  EXPECT_EQ(ParseEndpoint("[::1]:65535")->port, 65535);
  EXPECT_EQ(ParseEndpoint("[::1]:65535")->host, "::1");
  EXPECT_EQ(ParseEndpoints("a:1,b:2")->size(), 2);
  for (const std::string text : {"", "a", ":1", "a:", "a:0", "a:65536", "a:-1", "a:1x", "::1:5", "[]:5",
                                 "[a:5", "a b:5", "a:+5", "a: 5", "a\n:5", "user@a:5"}) {
    EXPECT_EQ(ParseEndpoint(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_FALSE(ParseEndpoints("a:1,").ok());
}

TEST(EndpointTest, WhatUrlsHaveBeforeTheHostIsInNoMessage) {
  for (const std::string text :
       {"redis://user:s3cret@host:1", "s3cret@host:1", "a:1,redis://:s3c,s3cret@host:1", "x:s3cret@host:1",
        "redis://user:s3cret@host:1,b:2", "redis://user:s3cret@more@host:1"}) {
    const std::string message(ParseEndpoints(text).status().message());
    EXPECT_NE(message.find("'...@"), std::string::npos) << message;
    EXPECT_EQ(message.find("s3c"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace kvblend::store::redis
