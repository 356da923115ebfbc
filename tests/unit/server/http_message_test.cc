#include "server/http/http_message.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/host_port.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

TEST(ResponseHeadTest, HasTheTimeAsHttpWritesIt) {
  HttpResponse response{.content_type = "text/plain", .body = "abc", .headers = {{"X-Odd", "a\r\nb"}}};
  // The example of RFC 9110, 5.6.7.
  EXPECT_EQ(ResponseHead(response, BodyFraming::kLength, /*close=*/true, absl::FromUnixSeconds(784111777)),
            "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Type: text/plain\r\n"
            "Content-Length: 3\r\nConnection: close\r\nX-Odd: ab\r\n\r\n");
}

TEST(QueryValueTest, ReadsWhatFormsWrite) {
  // Written by Python's urllib.parse.urlencode({"namespace": "a b+c&d=é", "page size": "%2B"}).
  const std::string query = "namespace=a+b%2Bc%26d%3D%C3%A9&page+size=%252B";
  EXPECT_EQ(QueryValue(query, "namespace"), "a b+c&d=\xC3\xA9");
  EXPECT_EQ(QueryValue(query, "page size"), "%2B");
  EXPECT_EQ(QueryValue("a%62=1", "ab"), "1");
  EXPECT_EQ(QueryValue("n=%20a%20", "n"), " a ");
}

TEST(QueryValueTest, IsEmptyWhereThereIsNone) {
  EXPECT_EQ(QueryValue("", "n"), "");
  EXPECT_EQ(QueryValue("n", "n"), "");
  EXPECT_EQ(QueryValue("m=1", "n"), "");
  EXPECT_EQ(QueryValue("n=%2", "n"), "");
  EXPECT_EQ(QueryValue("n=%zz&m=1", "m"), "1");
}

TEST(QueryProblemTest, NamesWhatIsNotAllowed) {
  const auto problem = [](const char* query) { return QueryProblem(query, {"namespace", "page_size"}); };
  EXPECT_EQ(problem(""), "");
  EXPECT_EQ(problem("namespace=a%20b&page_size=2"), "");
  EXPECT_EQ(problem("namespace"), "");
  EXPECT_EQ(problem("namspace=a"), "namspace is not known in a query here; allowed: namespace, page_size");
  EXPECT_EQ(problem("page_size=1&page%5Fsize=2"), "page_size comes twice; allowed: once");
  for (const char* query : {"namespace=%zz", "%=1"}) {
    EXPECT_EQ(problem(query), "the query can't be decoded; allowed: %XX for any of its bytes") << query;
  }
}

TEST(QueryValueTest, TheFirstOfANameCounts) { EXPECT_EQ(QueryValue("n=1&n=2", "n"), "1"); }

// A path is no form: there '+' is itself.
TEST(PercentDecodeTest, LeavesPlusAsItIs) {
  std::string decoded;
  EXPECT_TRUE(PercentDecode("/a+b%2B", &decoded));
  EXPECT_EQ(decoded, "/a+b+");
}

TEST(ParseHostPortTest, TakesHostsAndPortsOnly) {
  const auto v4 = ParseHostPort("--http-address", "127.0.0.1:80");
  ASSERT_TRUE(v4.ok());
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, 80);
  const auto v6 = ParseHostPort("--http-address", "[::1]:0");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, 0);
  EXPECT_TRUE(ParseHostPort("--http-address", "localhost:65535").ok());
  for (const char* bad : {"", "80", ":80", "localhost", "localhost:", "localhost:x", "localhost:-1",
                          "localhost:65536", "::1:80", "[]:80"}) {
    const auto parsed = ParseHostPort("--http-address", bad);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--http-address is '")) << bad;
  }
}

}  // namespace
}  // namespace kvblend::server
