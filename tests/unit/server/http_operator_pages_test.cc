#include <httplib.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/http_server.h"
#include "server/http/operator_pages.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

class OperatorPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = StartPages(0);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_GT(server_->port(), 0);
  }

  absl::StatusOr<std::unique_ptr<HttpServer>> StartPages(int port) {
    OperatorCallbacks callbacks;
    callbacks.metrics = [this] { return "scrapes_total " + std::to_string(++scrapes_) + "\n"; };
    callbacks.vllm_metrics = [] { return std::string("vllm:scrapes_total 7\n"); };
    callbacks.not_ready_reason = [this] { return ready_ ? std::string() : std::string("loading"); };
    HttpServerOptions options;
    options.address = {"127.0.0.1", port};
    return HttpServer::Start(options, OperatorPages(callbacks), PlainErrorPage);
  }

  httplib::Result Get(const char* path) { return httplib::Client("127.0.0.1", server_->port()).Get(path); }

  std::atomic<int> scrapes_{0};
  std::atomic<bool> ready_{false};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(OperatorPagesTest, VllmsNamesHaveAPageOfTheirOwn) {
  const auto page = Get("/metrics/vllm");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->body, "vllm:scrapes_total 7\n");
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
}

TEST_F(OperatorPagesTest, ServesMetricsInPrometheusTextForm) {
  const httplib::Result response = Get("/metrics");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(response->body, "scrapes_total 1\n");
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
}

TEST_F(OperatorPagesTest, ReadinessFollowsTheCallbackAndLivenessDoesNot) {
  EXPECT_EQ(Get("/readyz")->status, 503);
  EXPECT_EQ(Get("/readyz")->body, "loading\n");
  EXPECT_EQ(Get("/healthz")->status, 200);
  ready_ = true;
  EXPECT_EQ(Get("/readyz")->status, 200);
  EXPECT_EQ(Get("/healthz")->status, 200);
  ready_ = false;
  EXPECT_EQ(Get("/readyz")->status, 503);
}

TEST_F(OperatorPagesTest, OtherPathsMethodsAndLargeBodiesAreRefused) {
  EXPECT_EQ(Get("/")->status, 200);
  EXPECT_EQ(Get("/nothing")->status, 404);
  EXPECT_EQ(Get("/../etc/passwd")->status, 404);
  httplib::Client client("127.0.0.1", server_->port());
  EXPECT_EQ(client.Post("/metrics", "body", "text/plain")->status, 405);
  EXPECT_EQ(client.Post("/metrics", "body", "text/plain")->get_header_value("Allow"), "GET, HEAD");
  const httplib::Result large = client.Post("/metrics", std::string(1 << 20, 'x'), "text/plain");
  EXPECT_TRUE(!large || large->status >= 400);
  EXPECT_EQ(Get("/healthz")->status, 200);
}

TEST_F(OperatorPagesTest, ManyClientsAtOnce) {
  std::vector<std::thread> clients;
  std::atomic<int> answered{0};
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        const httplib::Result response = Get("/metrics");
        if (response && response->status == 200) ++answered;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 160);
  EXPECT_EQ(scrapes_, 160);
}

TEST_F(OperatorPagesTest, APortInUseIsAnErrorThatNamesIt) {
  const auto second = StartPages(server_->port());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("port " + std::to_string(server_->port())));
}

TEST_F(OperatorPagesTest, CanBeStartedAgainOnTheSamePort) {
  const int port = server_->port();
  EXPECT_EQ(Get("/healthz")->status, 200);
  server_ = nullptr;
  auto again = StartPages(port);
  ASSERT_TRUE(again.ok()) << again.status();
  server_ = *std::move(again);
  EXPECT_EQ(Get("/healthz")->status, 200);
}

}  // namespace
}  // namespace kvblend::server
