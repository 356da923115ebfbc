// The server's clients that are slow, and those that go.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/once_a_minute.h"
#include "gmock/gmock.h"
#include "tests/unit/server/few_files.h"
#include "tests/unit/server/http_server_fixture.h"

namespace kvblend::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(HttpServerTest, SlowSendersGet408AndIdleConnectionsAreClosed) {
  options_.request_timeout = absl::Milliseconds(50);
  options_.idle_timeout = absl::Milliseconds(50);
  Start();
  EXPECT_EQ(Exchange(""), "");
  EXPECT_THAT(Exchange("GET /stream HTTP/1.1\r\nHo"), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(
      Exchange(
          "POST /echo HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"),
      StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, AnAnswerLearnsThatItsClientHasGone) {
  Start();
  RawClient client(server_->port());
  client.Send(Get("/wait"));
  const auto responder = NextWaiting();
  client.Close();
  WaitUntilGone(1);
  responder->Send({.body = "too late", .headers = {}});
  absl::Notification told;
  const auto another = [&] {
    RawClient going(server_->port());
    going.Send(Get("/wait"));
    return NextWaiting();
  }();
  WaitUntilGone(2);
  another->OnGone([&told] { told.Notify(); });
  told.WaitForNotification();
}

TEST_F(HttpServerTest, AnAnswerLearnsThatAClientWithRequestsBehindItHasGone) {
  Start();
  RawClient client(server_->port());
  client.Send(Get("/wait", ""));
  const auto responder = NextWaiting();
  // More than the server reads ahead.
  for (int i = 0; i < 1000; ++i) client.Send(Get("/things/1", ""));
  client.Close();
  WaitUntilGone(1);
}

TEST_F(HttpServerTest, RequestsBehindALongAnswerAreAnsweredAllTheSame) {
  Start();
  RawClient client(server_->port());
  std::string behind;
  for (int i = 0; i < 1000; ++i) behind += Get("/things/1", "");
  client.Send(Get("/wait", "") + behind + Get("/things/last"));
  NextWaiting()->Send({.body = "at last", .headers = {}});
  EXPECT_THAT(client.ReadToEnd(), AllOf(HasSubstr("at last"), EndsWith("last?")));
}

TEST_F(HttpServerTest, AReaderThatDoesNotReadIsCutOffByBytes) {
  options_.max_unsent_bytes = 1 << 20;
  Start();
  RawClient client(server_->port(), /*receive_buffer=*/4096);
  client.Send(Get("/wait"));
  const auto responder = NextWaiting();
  responder->Begin({.body = "", .headers = {}});
  for (int i = 0; i < 64; ++i) responder->Write(std::string(1 << 20, 'x'));
  WaitUntilGone(1);
  EXPECT_THAT(Exchange(Get("/things/1")), HasSubstr("200 OK")) << "others are served";
}

TEST_F(HttpServerTest, OfReadersThatDoNotReadTheOneWithMostIsCutOff) {
  options_.max_unsent_bytes_of_all = 10 << 20;
  Start();
  const std::string most(6 << 20, 'm'), less(5 << 20, 'l');
  RawClient first(server_->port(), 4096), second(server_->port(), 4096);
  first.Send(Get("/wait"));
  NextWaiting()->Send({.body = most, .headers = {}});
  second.Send(Get("/wait"));
  NextWaiting()->Send({.body = less, .headers = {}});
  EXPECT_TRUE(absl::EndsWith(second.ReadToEnd(), less));
  EXPECT_LT(first.ReadToEnd().size(), most.size());
  // What has gone is no longer counted.
  RawClient third(server_->port());
  third.Send(Get("/wait"));
  NextWaiting()->Send({.body = most, .headers = {}});
  EXPECT_TRUE(absl::EndsWith(third.ReadToEnd(), most));
}

TEST_F(HttpServerTest, AReaderThatDoesNotReadIsCutOffByTime) {
  options_.max_unsent_bytes = 64 << 20;
  options_.write_timeout = absl::Milliseconds(100);
  Start();
  RawClient client(server_->port(), /*receive_buffer=*/4096);
  client.Send(Get("/wait"));
  const auto responder = NextWaiting();
  responder->Begin({.body = "", .headers = {}});
  responder->Write(std::string(32 << 20, 'x'));
  WaitUntilGone(1);
}

TEST_F(HttpServerTest, AReaderOfALargeAnswerHasTimeWhileItReads) {
  options_.write_timeout = absl::Seconds(1);
  Start();
  RawClient client(server_->port(), /*receive_buffer=*/4096);
  client.Send(Get("/wait"));
  constexpr size_t kMuch = 8 << 20;
  NextWaiting()->Send({.body = std::string(kMuch, 'x'), .headers = {}});
  const absl::Time slow_until = absl::Now() + absl::Milliseconds(2500);
  const std::string answer = client.ReadUntil([&](const std::string&) {
    if (absl::Now() < slow_until) absl::SleepFor(absl::Milliseconds(5));  // some 400 KB/s
    return false;
  });
  EXPECT_GT(answer.size(), kMuch);
}

TEST_F(HttpServerTest, WhatIsKeptUntilAnAnswerIsSentGoesBeforeItsEndIsSeen) {
  options_.max_unsent_bytes = 64 << 20;
  Start();
  constexpr size_t kMuch = 16 << 20;  // more than the system takes of it
  const auto send = [](HttpResponder& responder) {
    responder.Send({.body = std::string(kMuch, 'x'), .headers = {}});
  };
  const auto stream = [](HttpResponder& responder) {
    responder.Begin({.body = std::string(kMuch, 'x'), .headers = {}});
    responder.Finish();
  };
  const auto has_all = [](size_t size, const std::string&) { return size == kMuch; };
  const auto has_last_chunk = [](size_t, const std::string& rest) { return rest.ends_with("\r\n0\r\n\r\n"); };
  const auto never = [](size_t, const std::string&) { return false; };  // but for the end of the connection
  const struct {
    const char* version;
    std::function<void(HttpResponder&)> answer;
    std::function<bool(size_t body_bytes, const std::string& rest)> ended;
  } cases[] = {{"1.1", send, has_all}, {"1.1", stream, has_last_chunk}, {"1.0", stream, never}};
  for (const auto& one : cases) {
    std::atomic<bool> dropped = false;
    RawClient client(server_->port(), /*receive_buffer=*/4096);
    client.Send(absl::StrCat("GET /wait HTTP/", one.version, "\r\nHost: here\r\n\r\n"));
    auto responder = NextWaiting();
    responder->KeepUntilSent(
        std::shared_ptr<void>(&dropped, [](void* told) { *static_cast<std::atomic<bool>*>(told) = true; }));
    one.answer(*responder);
    responder = nullptr;
    const std::string begin = client.ReadUntil("\r\n\r\n");
    EXPECT_FALSE(dropped);
    const size_t early = begin.size() - begin.find("\r\n\r\n") - 4;
    client.ReadUntil([&](const std::string& rest) { return one.ended(early + rest.size(), rest); });
    EXPECT_TRUE(dropped);
  }
}

TEST_F(HttpServerTest, TheLastOpenFilesAreForServersThatMayHaveThem) {
  const HeardLog log;
  Start();
  Router pages;
  pages.Add("GET", "/", [](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
    responder->Send({.body = "page", .headers = {}});
  });
  options_.leaves_spare_files = false;
  const auto other = HttpServer::Start(options_, std::move(pages), ErrorPageForTests);
  ASSERT_TRUE(other.ok()) << other.status();
  const FewFiles few(40);
  std::vector<std::unique_ptr<RawClient>> clients;
  do {
    ASSERT_LT(clients.size(), 40);
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->Send(Get("/things/1", ""));
  } while (absl::StartsWith(clients.back()->ReadUntil("1?"), "HTTP/1.1 200 "));
  EXPECT_GE(clients.size(), 5);
  // The one that was refused keeps its descriptor: a library may have had one for a moment when it came.
  EXPECT_THAT(Exchange(""), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("too many connections")));
  RawClient client((*other)->port());
  client.Send(Get("/"));
  EXPECT_THAT(client.ReadToEnd(), EndsWith("\r\n\r\npage"));
  clients.clear();
  while (server_->num_connections() > 0) {
  }
  EXPECT_THAT(Exchange(Get("/things/1")), StartsWith("HTTP/1.1 200 "));
  server_ = nullptr;
  EXPECT_EQ(log.Count("a connection was refused because it is open file"), 1);
}

TEST_F(HttpServerTest, ConnectionsWaitForOpenFilesAndTheLogSaysSo) {
  const HeardLog log;
  options_.leaves_spare_files = false;
  Start();
  EarlyClients clients;
  {
    const FewFiles few(0);
    clients.Connect(server_->port());
    while (log.Count("connections have to wait, as none can be accepted: Too many open files") == 0) {
    }
  }
  clients.Expect(Get("/things/1"), "HTTP/1.1 200 ");
  server_ = nullptr;
}

TEST(OnceAMinuteTest, TheFirstIsDueAndNotTheNext) {
  OnceAMinute once;
  EXPECT_TRUE(once.IsDue());
  EXPECT_FALSE(once.IsDue());
}

TEST_F(HttpServerTest, WhatIsKeptUntilAnAnswerIsSentGoesWithAClientThatDoesNotRead) {
  options_.write_timeout = absl::Milliseconds(100);
  Start();
  absl::Notification dropped;
  RawClient client(server_->port(), /*receive_buffer=*/4096);
  client.Send(Get("/wait"));
  auto responder = NextWaiting();
  responder->KeepUntilSent(
      std::shared_ptr<void>(&dropped, [](void* told) { static_cast<absl::Notification*>(told)->Notify(); }));
  responder->Send({.body = std::string(16 << 20, 'x'), .headers = {}});
  EXPECT_TRUE(dropped.WaitForNotificationWithTimeout(absl::Minutes(1)));
}

}  // namespace
}  // namespace kvblend::server
