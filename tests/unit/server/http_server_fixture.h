// An HTTP server with a handler of every kind, and clients whose bytes the test writes itself.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"

namespace kvblend::server {

/// A connection whose bytes the test writes itself.
class RawClient {
 public:
  /// `v6`: to ::1 instead of 127.0.0.1.
  explicit RawClient(int port, int receive_buffer = 0, bool v6 = false)
      : socket_(socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    }
    timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (v6) {
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      address.sin6_port = htons(static_cast<uint16_t>(port));
      address.sin6_addr = in6addr_loopback;
      connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
      return;
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  void Send(const std::string& bytes) { send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// All that comes until the server closes the connection.
  std::string ReadToEnd() {
    return ReadUntil([](const std::string&) { return false; });
  }
  std::string ReadUntil(const std::function<bool(const std::string&)>& enough) {
    std::string bytes;
    char buffer[4096];
    while (!enough(bytes)) {
      const ssize_t received = recv(socket_, buffer, sizeof(buffer), 0);
      if (received <= 0) break;
      bytes.append(buffer, static_cast<size_t>(received));
    }
    return bytes;
  }
  /// Up to this text, which is there when the connection was not closed before.
  std::string ReadUntil(const std::string& text) {
    return ReadUntil([&text](const std::string& bytes) { return absl::StrContains(bytes, text); });
  }
  void Close() {
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }

 private:
  int socket_;
  bool connected_ = false;
};

inline HttpResponse ErrorPageForTests(int status, const std::string& message) {
  return {.status = status, .content_type = "text/plain", .body = message, .headers = {}};
}

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    options_.address = {"127.0.0.1", 0};
    options_.max_header_bytes = 2048;
    options_.max_body_bytes = 10000;
  }

  void Start() {
    Router router;
    router.Add("POST", "/echo", [](HttpRequest request, const std::shared_ptr<HttpResponder>& responder) {
      responder->Send({.body = std::move(request.body), .headers = {}});
    });
    router.Add("POST", "/headers",
               [](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                 HttpResponse response;
                 for (const auto& [name, value] : request.headers)
                   absl::StrAppend(&response.body, name, "=", value, ";");
                 responder->Send(std::move(response));
               });
    // Keeps its thread until the test lets go of it.
    const auto hold = [this](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
      ++num_held_;
      if (!held_.HasBeenNotified()) held_.Notify();
      let_go_.WaitForNotification();
      responder->Send({.body = "held", .headers = {}});
    };
    router.Add("POST", "/hold", hold);
    router.Add("POST", "/hold/long", hold, HandlerKind::kLong);
    router.Add("GET", "/", [](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
      responder->Send({.body = absl::StrCat("root?", request.query), .headers = {}});
    });
    router.Add("POST", "/things/all", [](const HttpRequest&, const std::shared_ptr<HttpResponder>&) {});
    router.Add("GET", "/things/{id}",
               [](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                 responder->Send({.body = absl::StrCat(request.path_values.at("id"), "?", request.query),
                                  .headers = {{"X-Odd", "a\r\nb"}}});
               });
    router.Add("GET", "/peer",
               [](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                 responder->Send({.body = absl::StrCat(request.peer_host, " ", request.peer), .headers = {}});
               });
    router.Add("GET", "/stream", [](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
      responder->Begin({.body = "one ", .headers = {}});
      responder->Write("two ");
      responder->Write("");
      responder->Write("three");
      responder->Finish();
    });
    router.Add("GET", "/dropped", [](const HttpRequest&, const std::shared_ptr<HttpResponder>&) {});
    router.Add("GET", "/half", [](const HttpRequest&, const std::shared_ptr<HttpResponder>& responder) {
      responder->Begin({.body = "half", .headers = {}});
    });
    // Answers are left to the test.
    router.Add("GET", "/wait", [this](const HttpRequest&, std::shared_ptr<HttpResponder> responder) {
      responder->OnGone([this] {
        absl::MutexLock lock(&mutex_);
        ++gone_;
      });
      absl::MutexLock lock(&mutex_);
      waiting_.push_back(std::move(responder));
    });
    router.Add("POST", "/noted",
               [this](const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
                 let_in_(request.body);
                 responder->Send({.body = "noted", .headers = {}});
               });
    if (guard_ != nullptr) router.GuardPosts(guard_);
    auto server = HttpServer::Start(options_, std::move(router), ErrorPageForTests);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::string Exchange(const std::string& bytes) {
    RawClient client(server_->port());
    client.Send(bytes);
    return client.ReadToEnd();
  }
  std::shared_ptr<HttpResponder> NextWaiting() {
    absl::MutexLock lock(&mutex_);
    const auto some = [this] { return !waiting_.empty(); };
    mutex_.Await(absl::Condition(&some));
    auto responder = waiting_.back();
    waiting_.pop_back();
    return responder;
  }
  void WaitUntilGone(int count) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [this, count] { return gone_ >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Minutes(1)));
  }

  HttpServerOptions options_;
  HttpGuard guard_ = nullptr;
  std::function<void(const std::string& body)> let_in_;
  absl::Mutex mutex_;
  int gone_ = 0;
  std::atomic<int> num_held_{0};
  absl::Notification held_, let_go_;
  std::vector<std::shared_ptr<HttpResponder>> waiting_;
  std::unique_ptr<HttpServer> server_;
};

inline std::string Get(const std::string& target, const std::string& more = "Connection: close\r\n") {
  return absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: here\r\n", more, "\r\n");
}
inline std::string Post(const std::string& body, const std::string& more = "Connection: close\r\n") {
  return absl::StrCat(
      "POST /echo HTTP/1.1\r\nHost: here\r\nContent-Type: application/json; charset=utf-8\r\n", more,
      "Content-Length: ", body.size(), "\r\n\r\n", body);
}

}  // namespace kvblend::server
