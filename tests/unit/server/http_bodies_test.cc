// What a server does before and while it receives bodies: guards, and the room that all bodies share.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
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
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(HttpServerTest, GuardsAnswerBeforeTheBodyIsReadOrAskedFor) {
  const HeardLog log;
  std::map<int, int> refused;
  options_.on_refused = [&](int status) {
    absl::MutexLock lock(&mutex_);
    ++refused[status];
  };
  guard_ = [](HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.FindHeader("authorization") != nullptr) return std::nullopt;
    return HttpResponse{.status = 401, .body = "whose is it?", .headers = {{"WWW-Authenticate", "Bearer"}}};
  };
  Start();
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n";
  for (const char* more : {"Expect: 100-continue\r\n\r\n", "\r\n", "\r\nthe beginning of a body"}) {
    EXPECT_THAT(Exchange(head + more),
                AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("\r\nWWW-Authenticate: Bearer\r\n"),
                      HasSubstr("\r\nConnection: close\r\n"), HasSubstr("\r\nx-request-id: req-"),
                      EndsWith("\r\n\r\nwhose is it?"), Not(HasSubstr("100 Continue"))));
  }
  // What is wrong with the request itself is told first, as to those who may ask.
  EXPECT_THAT(Exchange("POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\n"),
              StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(Exchange(Get("/things/1")), StartsWith("HTTP/1.1 200 ")) << "has no body";
  EXPECT_THAT(Exchange(Post("{}", "Connection: close\r\nAuthorization: it's me\r\n")),
              EndsWith("\r\n\r\n{}"));
  server_ = nullptr;
  EXPECT_EQ(refused, (std::map<int, int>{{401, 3}, {415, 1}}));
  EXPECT_EQ(log.Count("refused with status 401 (Unauthorized): asked by ipv4:127.0.0.1"), 1);
}

TEST_F(HttpServerTest, WithoutRoomTheLargestBodyGoesAndNotTheOneThatComes) {
  const HeardLog log;
  std::map<int, int> refused;
  options_.on_refused = [&](int status) {
    absl::MutexLock lock(&mutex_);
    ++refused[status];
  };
  options_.max_pending_body_bytes = 12000;
  options_.small_body_bytes = 100;
  Start();
  RawClient largest(server_->port()), another(server_->port());
  const std::string large = Post(std::string(10000, 'x')), medium = Post(std::string(5000, 'x'));
  largest.Send(large.substr(0, large.size() - 1));
  another.Send(medium.substr(0, medium.size() - 1));
  EXPECT_THAT(largest.ReadToEnd(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too many large requests")));
  another.Send(medium.substr(medium.size() - 1));
  EXPECT_THAT(another.ReadToEnd(), StartsWith("HTTP/1.1 200 "));
  server_ = nullptr;
  EXPECT_EQ(refused, (std::map<int, int>{{503, 1}}));
  EXPECT_EQ(
      log.Count(
          "refused with status 503 (Service Unavailable): the server has too many large requests in hand"),
      1);
}

TEST_F(HttpServerTest, SmallBodiesAreTakenWithoutRoom) {
  options_.max_pending_body_bytes = 10000;
  options_.small_body_bytes = 100;
  options_.num_handler_threads = 2;
  Start();
  RawClient holding(server_->port());
  holding.Send(absl::StrReplaceAll(Post(std::string(10000, 'x')), {{"/echo", "/hold"}}));
  held_.WaitForNotification();
  EXPECT_THAT(Exchange(Post(std::string(101, 'x'))), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Exchange(Post(std::string(100, 'x'))), StartsWith("HTTP/1.1 200 "));
  let_go_.Notify();
  EXPECT_THAT(holding.ReadToEnd(), EndsWith("held"));
}

TEST_F(HttpServerTest, BodiesOfAllConnectionsTogetherAreBounded) {
  options_.max_pending_body_bytes = 12000;
  options_.small_body_bytes = 0;
  Start();
  RawClient first(server_->port());
  const std::string request = Post(std::string(10000, 'x'));
  first.Send(request.substr(0, request.size() - 1));
  // The second body fits only when the first has gone.
  std::string answer = Exchange(request);
  while (!absl::StrContains(answer, "503")) answer = Exchange(request);  // until the first has arrived
  first.Close();
  while (!absl::StrContains(answer, "200 OK")) answer = Exchange(request);
}

TEST_F(HttpServerTest, BodiesCountUntilTheirHandlerIsDone) {
  options_.max_pending_body_bytes = 12000;
  options_.small_body_bytes = 0;
  options_.num_handler_threads = 2;
  Start();
  RawClient holding(server_->port());
  const std::string request = Post(std::string(10000, 'x'));
  holding.Send(absl::StrReplaceAll(request, {{"/echo", "/hold"}}));
  held_.WaitForNotification();
  EXPECT_THAT(Exchange(request), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Exchange(Get("/things/1")), StartsWith("HTTP/1.1 200 ")) << "what has no body fits";
  let_go_.Notify();
  EXPECT_THAT(holding.ReadToEnd(), EndsWith("held"));
  std::string answer = Exchange(request);
  while (absl::StrContains(answer, "503")) answer = Exchange(request);  // until the handler has returned
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
}

// What waits for a handler's thread is the network's to order: whoever has most waiting is not served first.
TEST_F(HttpServerTest, WaitingRequestsTakeTurns) {
  options_.num_handler_threads = 1;
  std::vector<std::string> order;  // of the one thread
  let_in_ = [&order](const std::string& body) { order.push_back(body); };
  guard_ = [](HttpRequest& request) -> std::optional<HttpResponse> {
    request.turn = *request.FindHeader("authorization");
    return std::nullopt;
  };
  Start();
  const auto post = [](const std::string& who, const std::string& path, const std::string& body) {
    return absl::StrReplaceAll(Post(body, absl::StrCat("Connection: close\r\nAuthorization: ", who, "\r\n")),
                               {{"/echo", path}});
  };
  RawClient holding(server_->port());
  holding.Send(post("much", "/hold", "{}"));
  held_.WaitForNotification();
  // Each is waiting before the next one comes.
  std::vector<std::unique_ptr<RawClient>> clients;
  int64_t waiting = 0;
  for (const char* name : {"much 1", "much 2", "much 3", "little 1", "little 2"}) {
    const std::string body = name;
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send(post(body.substr(0, body.size() - 2), "/noted", body));
    ++waiting;
    while (server_->num_waiting() < waiting) std::this_thread::yield();
  }
  let_go_.Notify();
  for (const auto& client : clients) client->ReadToEnd();
  server_ = nullptr;
  EXPECT_THAT(order, ElementsAre("much 1", "little 1", "much 2", "little 2", "much 3"));
}

}  // namespace
}  // namespace kvblend::server
