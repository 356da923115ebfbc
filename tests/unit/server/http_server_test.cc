// The server, byte by byte: what it makes of requests of every form.
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/unit/server/few_files.h"
#include "tests/unit/server/http_server_fixture.h"

namespace kvblend::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(HttpServerTest, AnswersWithLengthsAndDecodedPaths) {
  Start();
  EXPECT_THAT(Exchange(Get("/things/a%2Fb/c?x=%20y")),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\nDate: "),
                    HasSubstr(" GMT\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 12\r\n"
                              "Connection: close\r\nX-Odd: ab\r\nx-request-id: req-"),
                    EndsWith("\r\n\r\na/b/c?x=%20y")));
  EXPECT_THAT(Exchange(Get("http://here/things/1")), EndsWith("\r\n\r\n1?"));
  EXPECT_THAT(Exchange(Get("HTTPS://here/things/1")), EndsWith("\r\n\r\n1?"));
  EXPECT_THAT(Exchange(Get("/%74hings/1")), EndsWith("\r\n\r\n1?"));
  EXPECT_THAT(Exchange(Get("http://here?x=/things/1")), EndsWith("\r\n\r\nroot?x=/things/1"));
  EXPECT_THAT(Exchange(Get("http://here")), EndsWith("\r\n\r\nroot?"));
  EXPECT_THAT(Exchange(Post("{}")), EndsWith("\r\n\r\n{}"));
}

TEST_F(HttpServerTest, PeersHaveTheNamesThatGrpcGivesThem) {
  const auto peer_of = [this](bool v6) {
    RawClient client(server_->port(), /*receive_buffer=*/0, v6);
    client.Send(Get("/peer"));
    return client.ReadToEnd();
  };
  Start();
  EXPECT_THAT(peer_of(false), HasSubstr("\r\n\r\nipv4:127.0.0.1 ipv4:127.0.0.1:"));
  server_ = nullptr;
  options_.address = {"::1", 0};
  if (!HttpServer::Start(options_, Router(), ErrorPageForTests).ok()) GTEST_SKIP() << "there is no IPv6";
  options_.address = {"::", 0};
  Start();
  EXPECT_THAT(peer_of(false), HasSubstr("\r\n\r\nipv4:127.0.0.1 ipv4:127.0.0.1:"));
  EXPECT_THAT(peer_of(true), HasSubstr("\r\n\r\nipv6:%5B::1%5D ipv6:%5B::1%5D:"));
}

TEST_F(HttpServerTest, TheClientOfATrustedProxyIsWhomItForwards) {
  const auto client_of = [this](const std::string& headers) {
    const std::string answer = Exchange(Get("/peer", headers + "Connection: close\r\n"));
    return answer.substr(answer.find("\r\n\r\n") + 4);
  };
  Start();
  EXPECT_THAT(client_of("X-Forwarded-For: 203.0.113.9\r\n"), StartsWith("ipv4:127.0.0.1 ipv4:127.0.0.1:"))
      << "none is trusted";
  server_ = nullptr;
  options_.trusted_proxies = TrustedProxies::Parse("", {"127.0.0.0/8", "10.0.0.0/8"}).value();
  Start();
  EXPECT_EQ(client_of("X-Forwarded-For: 203.0.113.9, 10.0.0.1\r\n"), "ipv4:203.0.113.9 ipv4:203.0.113.9");
  EXPECT_EQ(client_of("X-Forwarded-For: 198.51.100.1\r\nx-forwarded-for: 2001:db8::1\r\n"),
            "ipv6:%5B2001:db8::1%5D ipv6:%5B2001:db8::1%5D");
  for (const char* headers : {"", "X-Forwarded-For: somebody\r\n", "X-Forwarded-For: 10.0.0.1\r\n"}) {
    EXPECT_THAT(client_of(headers), StartsWith("ipv4:127.0.0.1 ipv4:127.0.0.1:")) << headers;
  }
}

TEST_F(HttpServerTest, BodiesInChunksArriveWhole) {
  Start();
  EXPECT_THAT(
      Exchange("POST /echo HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\n"
               "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"),
      EndsWith("\r\n\r\nabcdefg"));
}

TEST_F(HttpServerTest, TrailersAreNoHeaders) {
  Start();
  const std::string answer = Exchange(
      "POST /headers HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer key\r\nHost: there\r\n\r\n");
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("host=here;"),
                            Not(HasSubstr("authorization")), Not(HasSubstr("there"))));
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInTheirOrder) {
  Start();
  const std::string keep;
  EXPECT_THAT(Exchange(Post("first", keep) + Get("/stream", keep) + "\r\n" + Get("/things/3")),
              ::testing::ContainsRegex("first(.|\n)*three(.|\n)*\n3\\?$"));
}

TEST_F(HttpServerTest, StreamsAreChunkedAndEndWithTheConnectionBefore11) {
  Start();
  EXPECT_THAT(Exchange(Get("/stream")),
              AllOf(HasSubstr("Connection: close\r\n"),
                    EndsWith("\r\n\r\n4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n")));
  EXPECT_THAT(Exchange("GET /stream HTTP/1.0\r\n\r\n"),
              AllOf(EndsWith("\r\n\r\none two three"), Not(HasSubstr("Transfer-Encoding"))));
}

TEST_F(HttpServerTest, HeadIsGetWithoutTheBody) {
  Start();
  EXPECT_THAT(Exchange("HEAD /things/1 HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 2\r\n"), EndsWith("\r\n\r\n")));
  EXPECT_THAT(Exchange("HEAD /stream HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"),
              EndsWith("\r\n\r\n"));
}

TEST_F(HttpServerTest, ExpectedContinueComesBeforeTheBody) {
  Start();
  RawClient client(server_->port());
  const std::string request = Post("12345", "Connection: close\r\nExpect: 100-continue\r\n");
  client.Send(request.substr(0, request.size() - 5));
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("12345");
  EXPECT_THAT(client.ReadToEnd(), EndsWith("\r\n\r\n12345"));
  // And what would be refused is refused before the body.
  RawClient large(server_->port());
  large.Send(
      "POST /echo HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: 10001\r\n\r\n");
  EXPECT_THAT(large.ReadToEnd(), StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, AnswersToTheNamesThatItIsGiven) {
  options_.allowed_hosts = AllowedHosts("--hosts", {"Proxy.example", "other.example:80"});
  Start();
  const auto answer_to = [this](const std::string& host) {
    return Exchange(absl::StrCat("HEAD /things/1 HTTP/1.1\r\nHost: ", host, "\r\nConnection: close\r\n\r\n"));
  };
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "localhost.", "app.localhost:80", "127.0.0.1", "10.0.0.7:1", "[::1]",
        "[2001:db8::1]:8000", "proxy.example:443", "PROXY.example.", "other.example", "", ":"}) {
    EXPECT_THAT(answer_to(host), StartsWith("HTTP/1.1 200 ")) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example", "evillocalhost",
                           "127.0.0.1.evil.example", "1.2.3", "[evil.example]", "[::1].evil.example",
                           "a.proxy.example", "::1", "*"}) {
    EXPECT_THAT(answer_to(host), StartsWith("HTTP/1.1 421 Misdirected Request\r\n")) << host;
  }
  EXPECT_THAT(
      Exchange("GET /things/1 HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
      HasSubstr(
          "Host is 'evil.example'; allowed, as this server has no keys: localhost, IP addresses, and the names of "
          "--hosts (proxy.example, other.example)"));
  EXPECT_THAT(Exchange("HEAD /things/1 HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, AnswersToAnyNameWhereItIsGivenNoneOrAny) {
  for (const auto& allowed : {AllowedHosts(), AllowedHosts("--hosts", {"a", "*"})}) {
    EXPECT_EQ(allowed.Problem("evil.example"), "");
  }
}

TEST_F(HttpServerTest, RefusesWhatItCannotServe) {
  Start();
  const std::string host = "Host: here\r\n";
  const std::pair<std::string, std::string> cases[] = {
      {Get("/nothing"), "404"},
      {Get("/things/"), "404"},
      {Get("/things%2F1"), "404"},
      {Get("/echo"), "405"},
      {"DELETE /things/1 HTTP/1.1\r\n" + host + "\r\n", "405"},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Type: application/json\r\n\r\n", "411"},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Length: 2\r\n\r\n{}", "415"},
      {"POST /echo HTTP/1.1\r\n" + host + "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", "415"},
      {Post("{}", "Content-Encoding: gzip\r\n"), "415"},
      {Post("{}", "Expect: everything\r\n"), "417"},
      {Post("{}", "Expect: 100-continue\r\nExpect: everything\r\n"), "417"},
      {Post(std::string(10001, 'x')), "413"},
      {"GET /stream HTTP/1.1\r\n" + host + "Content-Length: 1\r\n\r\nx", "400"},
      {Get("/stream", absl::StrCat("A: ", std::string(3000, 'x'), "\r\n")), "431"},
      {"GET /stream HTTP/1.1\r\n\r\n", "400"},
      {"GET /stream HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
      {"GET /stream HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
       "400"},
      {"GET nowhere HTTP/1.1\r\n" + host + "\r\n", "400"},
      {Get("/%zz"), "400"},
      {Get("?x=/things/1"), "400"},
      {"nonsense\r\n\r\n", "400"},
      {"GET /stream HTTP/3.0\r\n" + host + "\r\n", "505"},
      {"GET /stream HTTP/1.1\nHost: here\n\n", "400"},
      {"GET /stream HTTP/1.x\r\n" + host + "\r\n", "400"},
      {"GET /stream\r\n" + host + "\r\n", "400"},
      {Get("/stream", "Content-Length: 1\r\nContent-Length: 2\r\n"), "400"},
      {Post("{}", "Transfer-Encoding: chunked\r\n"), "400"},
      {"POST /echo HTTP/1.1\r\n" + host +
           "Content-Type: application/json\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
       "501"},
      {"POST /echo HTTP/1.1\r\n" + host +
           "Content-Type: application/json\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: "
           "chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
       "501"},
      {Get("/stream", "Transfer-Encoding: identity\r\n"), "501"},
      {"POST /echo HTTP/1.0\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
       "2\r\n{}\r\n0\r\n\r\n",
       "400"},
      {"POST /echo HTTP/1.1\r\n" + host +
           "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
       "400"},
      {"POST /echo HTTP/1.1\r\n" + host +
           "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(20000, 'x'),
       "400"},
      {"POST /echo HTTP/1.1\r\n" + host +
           "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + "2711\r\n" +
           std::string(10001, 'x'),
       "413"},
  };
  for (const auto& [request, status] : cases) {
    const std::string answer = Exchange(request);
    EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", status, " "))) << request.substr(0, 200);
    EXPECT_THAT(answer, HasSubstr("Connection: close\r\n")) << request.substr(0, 200);
    EXPECT_THAT(answer, HasSubstr("\r\nx-request-id: req-")) << request.substr(0, 200);
  }
  EXPECT_THAT(Exchange(Get("/echo")), HasSubstr("Allow: POST\r\n"));
  EXPECT_THAT(Exchange(Get("/things/all")), AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: POST\r\n")));
}

TEST_F(HttpServerTest, RefusalsAreCountedAndToldOnceForEachStatus) {
  const HeardLog log;
  std::map<int, int> refused;
  options_.on_refused = [&](int status) {
    absl::MutexLock lock(&mutex_);
    ++refused[status];
  };
  options_.limit_names = {{431, "--max-header"}, {503, "--max-connections"}};
  options_.max_connections = 1;
  Start();
  const std::string bad = Get("/there-is-no/SECRET"),
                    large = Get("/", "X: " + std::string(3000, 'x') + "\r\n");
  for (const std::string& request : {bad, bad, bad, large, large}) {
    Exchange(request);
    while (server_->num_connections() > 0) {  // there is room for one alone
    }
  }
  RawClient first(server_->port());
  first.Send(Get("/wait"));
  const auto responder = NextWaiting();
  Exchange("");
  first.Close();
  server_ = nullptr;
  EXPECT_EQ(refused, (std::map<int, int>{{404, 3}, {431, 2}, {503, 1}}));
  EXPECT_EQ(log.Count("refused with status"), 3);
  EXPECT_EQ(log.Count("refused with status 404 (Not Found)"), 1);
  EXPECT_EQ(log.Count("SECRET"), 0);
  EXPECT_EQ(log.Count("refused with status 431 (Request Header Fields Too Large): "), 1);
  EXPECT_EQ(log.Count("; limit: --max-header"), 1);
  EXPECT_EQ(
      log.Count("refused with status 503 (Service Unavailable): there are 1 connections already; limit: "
                "--max-connections"),
      1);
}

TEST_F(HttpServerTest, AnswersThatAreDroppedEnd) {
  Start();
  EXPECT_THAT(Exchange(Get("/dropped")),
              AllOf(StartsWith("HTTP/1.1 500 "), HasSubstr("\r\nx-request-id: req-")));
  EXPECT_THAT(Exchange(Get("/half")), AllOf(HasSubstr("half"), Not(EndsWith("0\r\n\r\n"))));
}

TEST_F(HttpServerTest, MoreConnectionsThanAllowedAreToldSoIfNoneIsIdle) {
  options_.max_connections = 3;
  Start();
  RawClient waiting(server_->port()), sending(server_->port()), going(server_->port());
  waiting.Send(Get("/wait"));
  const auto first = NextWaiting();
  going.Send(Get("/wait"));
  const auto second = NextWaiting();
  // Told to go on when its headers are there: a request is begun.
  sending.Send(
      Post("{}", "Expect: 100-continue\r\n").substr(0, Post("{}", "Expect: 100-continue\r\n").size() - 2));
  sending.ReadUntil("100 Continue");
  EXPECT_THAT(Exchange(""), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("\r\nx-request-id: req-")));
  going.Close();
  while (server_->num_connections() > 2) {
  }
  EXPECT_THAT(Exchange(Get("/things/1")), StartsWith("HTTP/1.1 200 "));
  first->Send({.body = "served", .headers = {}});
  EXPECT_THAT(waiting.ReadToEnd(), EndsWith("served"));
}

TEST_F(HttpServerTest, TheConnectionThatIsIdleLongestMakesRoom) {
  const HeardLog log;
  std::atomic<int> evicted = 0;
  options_.on_evicted = [&] { ++evicted; };
  options_.limit_names = {{503, "--max-connections"}};
  options_.max_connections = 3;
  Start();
  const auto ask = [](RawClient& client) {
    client.Send(Get("/things/1", ""));
    EXPECT_THAT(client.ReadUntil("1?"), StartsWith("HTTP/1.1 200 "));
  };
  RawClient waiting(server_->port());
  waiting.Send(Get("/wait"));
  const auto responder = NextWaiting();
  RawClient early(server_->port()), silent(server_->port());
  while (server_->num_connections() < 3) {
  }
  ask(early);  // so the other one has been idle for longer, which never asked
  RawClient newcomer(server_->port());
  ask(newcomer);
  EXPECT_EQ(silent.ReadToEnd(), "");
  ask(early);
  RawClient another(server_->port());
  ask(another);
  EXPECT_EQ(newcomer.ReadToEnd(), "");
  ask(early);
  responder->Send({.body = "served", .headers = {}});
  EXPECT_THAT(waiting.ReadToEnd(), EndsWith("served"));
  server_ = nullptr;
  EXPECT_EQ(evicted, 2);
  EXPECT_EQ(log.Count("an idle connection was closed to make room for another: there were 3 already; limit: "
                      "--max-connections"),
            1);
  EXPECT_EQ(log.Count("refused with status"), 0);
}

// More at once than there is room for: each in its turn, and nobody is refused.
TEST_F(HttpServerTest, NewcomersInCrowdsAreServedWhileOthersAreIdle) {
  options_.max_connections = 4;
  Start();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(std::make_unique<RawClient>(server_->port()));
    ASSERT_TRUE(idle.back()->connected());
    EXPECT_LE(server_->num_connections(), 4);
  }
  EXPECT_THAT(Exchange(Get("/things/1")), StartsWith("HTTP/1.1 200 "));
  for (size_t i = 0; i < 196; ++i) EXPECT_EQ(idle[i]->ReadToEnd(), "") << i;
}

TEST_F(HttpServerTest, WhatTakesLongHoldsUpOnlyItsLike) {
  options_.num_handler_threads = 1;
  Start();
  RawClient holding(server_->port());
  const std::string request = absl::StrReplaceAll(Post("{}"), {{"/echo", "/hold/long"}});
  holding.Send(request);
  held_.WaitForNotification();
  EXPECT_THAT(Exchange(Get("/things/1")), StartsWith("HTTP/1.1 200 "));
  let_go_.Notify();
  EXPECT_THAT(holding.ReadToEnd(), EndsWith("held"));
}

TEST_F(HttpServerTest, RequestsWhoseClientsHaveGoneAreNotHandled) {
  options_.num_handler_threads = 1;
  Start();
  RawClient holding(server_->port());
  const std::string request = absl::StrReplaceAll(Post("{}"), {{"/echo", "/hold"}});
  holding.Send(request);
  held_.WaitForNotification();
  {
    RawClient impatient(server_->port());
    impatient.Send(request);
    while (server_->num_connections() < 2) {
    }
  }
  while (server_->num_connections() > 1) {
  }
  let_go_.Notify();
  EXPECT_THAT(holding.ReadToEnd(), EndsWith("held"));
  EXPECT_THAT(Exchange(Get("/things/1")), StartsWith("HTTP/1.1 200 ")) << "which comes behind both";
  EXPECT_EQ(num_held_, 1);
}

TEST_F(HttpServerTest, DrainingClosesIdleConnectionsAndAnswersTheOthers) {
  Start();
  RawClient idle(server_->port()), busy(server_->port());
  idle.Send(Get("/things/1", ""));
  EXPECT_THAT(idle.ReadUntil("1?"), HasSubstr("Connection: keep-alive\r\n"));
  busy.Send(Get("/wait", ""));
  const auto responder = NextWaiting();
  server_->Drain();
  EXPECT_EQ(idle.ReadToEnd(), "");
  responder->Send({.body = "done", .headers = {}});
  EXPECT_THAT(busy.ReadToEnd(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("done")));
  EXPECT_THAT(Exchange(Get("/things/1", "")), HasSubstr("Connection: close\r\n"));
}

TEST_F(HttpServerTest, DrainingWaitsForNoRequestThatIsStillArriving) {
  options_.request_timeout = options_.idle_timeout = absl::Hours(1);
  Start();
  RawClient body(server_->port()), head(server_->port());
  body.Send(
      "POST /echo HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
      "Content-Length: 9\r\n\r\n{");
  body.ReadUntil("100 Continue\r\n\r\n");  // so it is arriving
  head.Send(Get("/things/1", "") + "GET /thin");
  head.ReadUntil("1?");
  server_->Drain();
  EXPECT_THAT(body.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("the server is shutting down")));
  server_->Shutdown(absl::InfiniteFuture());
  EXPECT_EQ(server_->num_connections(), 0);
}

TEST_F(HttpServerTest, ShutdownClosesWhatComesMeanwhile) {
  options_.idle_timeout = absl::Hours(1);  // whoever waits for a connection that nobody closes waits for this
  for (int round = 0; round < 200; ++round) {
    Start();
    std::vector<std::thread> comers;
    for (int i = 0; i < 3; ++i) {
      comers.emplace_back([port = server_->port()] {
        while (true) {
          RawClient client(port);
          if (!client.connected()) return;
          // The system may forget a connection that was on its way to a socket that is closed, and tell the
          // client so only when it sends something.
          client.Send("GET");
          client.ReadToEnd();
        }
      });
    }
    server_->Shutdown(absl::InfinitePast());
    EXPECT_EQ(server_->num_connections(), 0);
    for (std::thread& comer : comers) comer.join();
    server_ = nullptr;
  }
}

TEST_F(HttpServerTest, ShutdownClosesWhatIsNotAnswered) {
  Start();
  RawClient client(server_->port());
  client.Send(Get("/wait", ""));
  const auto responder = NextWaiting();
  server_->Shutdown(absl::InfinitePast());
  WaitUntilGone(1);
  EXPECT_EQ(client.ReadToEnd(), "");
  const int port = server_->port();
  server_ = nullptr;
  EXPECT_FALSE(RawClient(port).connected());
  responder->Send({.body = "nobody is there", .headers = {}});
}

}  // namespace
}  // namespace kvblend::server
